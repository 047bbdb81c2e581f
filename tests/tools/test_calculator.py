"""The calculator: exact, bounded, and nothing but arithmetic."""

from __future__ import annotations

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.tools.calculator import evaluate

NUMBER = st.integers(-999, 999)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", "7"), ("(1 + 2) * 3", "9"), ("-7 - -3", "-4"), ("0.1 + 0.2", "3/10"), ("7 / 2", "7/2"),
     ("2 ** 64", str(2**64)), ("2 ** -2", "1/4"), (" 1_000 + 1 ", "1001"), ("1e3 - 1", "999")],
)  # fmt: skip
def test_values_are_exact(expression: str, value: str) -> None:
    assert str(evaluate(expression)) == value


@given(NUMBER, st.sampled_from("+-*"), NUMBER, st.sampled_from("+-*"), NUMBER)
def test_agrees_with_python(a: int, first: str, b: int, second: str, c: int) -> None:
    expression = f"({a} {first} {b}) {second} {c}"
    assert evaluate(expression) == eval(expression)


@pytest.mark.parametrize(
    "expression",
    ["", "1 +", "a + 1", "__import__('os').system('true')", "(1).real", "[1]", "1 if 1 else 2", "True + 1", "1j",
     "'a' * 9", "1 / 0", "0 ** -1", "2 ** 65", "2 ** 0.5", "5 % 2", "5 // 2", "1 < 2", "(2 ** 64) ** 64", "9" * 201,
     "(" * 99 + "1" + ")" * 99 + "+", "lambda: 1", "f'{1}'", "1; 2", "\x00"],
)  # fmt: skip
def test_everything_else_is_refused(expression: str) -> None:
    with pytest.raises(ValueError):
        evaluate(expression)


@given(st.text(max_size=60))
def test_any_text_is_a_number_or_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(evaluate(text), Fraction)


def test_operations_per_call_are_counted() -> None:
    assert evaluate("3 - -1", max_operations=1) == 4
    with pytest.raises(ValueError, match="2 operations in one call; at most 1"):
        evaluate("1 + 2 + 3", max_operations=1)
