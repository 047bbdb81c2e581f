import pytest

from daybook import Span


def test_a_span_ends_after_it_starts():
    with pytest.raises(ValueError):
        Span(2, 2)


def test_a_span_cant_be_changed():
    with pytest.raises(AttributeError):
        Span(1, 2).start = 0


def test_contains_its_start_and_not_its_end():
    assert 1 in Span(1, 3)
    assert 3 not in Span(1, 3)


def test_overlaps():
    assert Span(1, 4).overlaps(Span(3, 6))
    assert Span(1, 9).overlaps(Span(3, 6))
    assert not Span(1, 2).overlaps(Span(5, 6))


def test_covers():
    assert Span(1, 9).covers(Span(1, 3))
    assert not Span(1, 9).covers(Span(5, 10))


def test_intersection():
    assert Span(1, 4).intersection(Span(3, 6)) == Span(3, 4)
    assert Span(1, 2).intersection(Span(5, 6)) is None


def test_shift():
    assert Span(1, 4).shift(10) == Span(11, 14)
