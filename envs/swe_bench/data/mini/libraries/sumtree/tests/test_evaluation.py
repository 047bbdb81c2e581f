import math

import pytest

from sumtree import EvaluationProblem, Evaluator, evaluate


@pytest.mark.parametrize(
    "text, value",
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("7 / 2", 3.5),
        ("7 % 3", 1),
        ("2 ^ 10", 1024),
        ("10 - 4 - 3", 3),
        ("- 3 + 5", 2),
        ("1 < 2", 1),
        ("2 == 3", 0),
        ("max(1, 5, 3)", 5),
        ("sqrt(16)", 4),
        ("round(2.6)", 3),
    ],
)
def test_values(text, value):
    assert evaluate(text) == value


def test_names():
    assert evaluate("2 * x", {"x": 21}) == 42
    assert evaluate("pi") == math.pi


def test_unknown_name():
    with pytest.raises(EvaluationProblem, match="unknown name y; there are e, pi, x"):
        evaluate("y", {"x": 1})


def test_unknown_function():
    with pytest.raises(EvaluationProblem, match="unknown function sin"):
        evaluate("sin(1)")


def test_division_by_zero():
    with pytest.raises(EvaluationProblem, match="division by zero"):
        evaluate("1 / 0")


def test_no_real_number():
    with pytest.raises(EvaluationProblem):
        evaluate("(0 - 8) ^ 0.5")


def test_large_exponents_are_refused():
    with pytest.raises(EvaluationProblem, match="exponents"):
        evaluate("9 ^ 99999")


def test_assignments():
    assert evaluate("a = 2; b = a + 1; a * b") == 6


def test_an_evaluator_remembers():
    evaluator = Evaluator({"x": 1})
    evaluator.run("y = x + 1")
    assert evaluator.run("y") == 2
