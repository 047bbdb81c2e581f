from daybook import Span, SpanSet


def test_joins_what_overlaps():
    assert list(SpanSet([Span(5, 8), Span(1, 3), Span(2, 4)])) == [Span(1, 4), Span(5, 8)]


def test_joins_what_touches():
    assert list(SpanSet([Span(1, 3), Span(3, 5)])) == [Span(1, 5)]


def test_contains():
    spans = SpanSet([Span(1, 3), Span(5, 8)])
    assert 2 in spans and 5 in spans
    assert 3 not in spans


def test_union():
    assert SpanSet([Span(1, 3)]) | SpanSet([Span(2, 6)]) == SpanSet([Span(1, 6)])


def test_intersection():
    assert SpanSet([Span(1, 5), Span(7, 9)]) & SpanSet([Span(4, 8)]) == SpanSet([Span(4, 5), Span(7, 8)])


def test_difference_with_one_hole():
    assert SpanSet([Span(1, 9)]) - SpanSet([Span(3, 5)]) == SpanSet([Span(1, 3), Span(5, 9)])


def test_difference_that_leaves_nothing():
    assert not SpanSet([Span(1, 3)]) - SpanSet([Span(0, 4)])
