import pytest

from sumtree import SyntaxProblem, parse


@pytest.mark.parametrize(
    "text, printed",
    [
        ("1+2*3", "1 + 2 * 3"),
        ("(1+2)*3", "(1 + 2) * 3"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("1-2-3", "1 - 2 - 3"),
        ("a=1;a+1", "a = 1; a + 1"),
        ("max(1, 2,3)", "max(1, 2, 3)"),
        ("-(1+2)", "-(1 + 2)"),
        ("x<1+2", "x < 1 + 2"),
        ("2*-3", "2 * -3"),
    ],
)
def test_printed(text, printed):
    assert str(parse(text)) == printed
    assert parse(printed) == parse(text)


@pytest.mark.parametrize("text", ["", "1 +", "(1", "1)", "f(1,)", "1 2", "* 2", "= 3"])
def test_no_expression(text):
    with pytest.raises(SyntaxProblem):
        parse(text)


def test_a_semicolon_at_the_end_does_no_harm():
    assert parse("1;") == parse("1")
