import pytest

from gridtext import cells


@pytest.mark.parametrize(
    "value, text",
    [(None, ""), (True, "yes"), (False, "no"), (3, "3"), (0.1, "0.1"), (2 / 3, "0.666667"), ("x", "x")],
)
def test_text_of(value, text):
    assert cells.text_of(value) == text


def test_width_of_ascii():
    assert cells.width_of("") == 0
    assert cells.width_of("hello") == 5


def test_pad():
    assert cells.pad("ab", 5) == "ab   "
    assert cells.pad("ab", 5, "right") == "   ab"
    assert cells.pad("ab", 5, "center") == " ab  "
    assert cells.pad("abcdef", 3) == "abcdef"


def test_pad_refuses_unknown_alignment():
    with pytest.raises(ValueError, match="left, right or center"):
        cells.pad("a", 3, "middle")


def test_wrap_at_spaces():
    assert cells.wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_wrap_keeps_a_short_line():
    assert cells.wrap("short", 10) == ["short"]


def test_wrap_refuses_no_width():
    with pytest.raises(ValueError):
        cells.wrap("a", 0)


def test_lines_of_text_with_line_ends():
    assert cells.lines_of("a\nb") == ["a", "b"]
    assert cells.lines_of("") == [""]
