import pytest

from sumtree import SyntaxProblem, parse
from sumtree.lexer import tokens


def texts(text):
    return [token.text for token in tokens(text)][:-1]


def test_numbers_and_operators():
    assert texts("12+3.5*(x)") == ["12", "+", "3.5", "*", "(", "x", ")"]


def test_operators_of_two_characters():
    assert texts("a<=b>=c==d!=e") == ["a", "<=", "b", ">=", "c", "==", "d", "!=", "e"]


def test_names():
    assert texts("x_1 + Total") == ["x_1", "+", "Total"]


def test_comments_and_spaces_are_left_out():
    assert texts("1 +  # one\n 2") == ["1", "+", "2"]


def test_the_last_token_is_the_end():
    assert tokens("1")[-1].kind == "end"


def test_unknown_character():
    with pytest.raises(SyntaxProblem, match="unexpected '\\$'"):
        tokens("1 $ 2")


@pytest.mark.parametrize("text", ["1e3", "2.5e-3", "1E+6", ".5", "5.", ".5e1"])
def test_numbers_with_exponents_and_bare_points(text):
    assert texts(text) == [text]
    assert parse(text).value == float(text)


def test_a_name_that_begins_with_e_is_no_exponent():
    assert texts("2*e + e1") == ["2", "*", "e", "+", "e1"]
