"""A set of moments, kept as the fewest spans, in order."""

from daybook.span import Span


class SpanSet:
    """Spans that neither overlap nor touch, by their starts."""

    def __init__(self, spans=()):
        self._spans = tuple(merged(spans))

    def __iter__(self):
        return iter(self._spans)

    def __len__(self):
        return len(self._spans)

    def __bool__(self):
        return bool(self._spans)

    def __eq__(self, other):
        if not isinstance(other, SpanSet):
            return NotImplemented
        return self._spans == other._spans

    def __hash__(self):
        return hash(self._spans)

    def __contains__(self, moment):
        return any(moment in span for span in self._spans)

    def __repr__(self):
        return "SpanSet(%r)" % (list(self._spans),)

    def __or__(self, other):
        return SpanSet([*self, *other])

    def __and__(self, other):
        found = []
        for mine in self:
            for theirs in other:
                common = mine.intersection(theirs)
                if common is not None:
                    found.append(common)
        return SpanSet(found)

    def __sub__(self, other):
        rest = []
        for span in self:
            rest.extend(without(span, other))
        return SpanSet(rest)


def merged(spans):
    """Join what overlaps or touches."""
    joined = []
    for span in sorted(spans):
        if joined and span.start <= joined[-1].end:
            last = joined.pop()
            span = Span(last.start, max(last.end, span.end))
        joined.append(span)
    return joined


def without(span, holes):
    """The pieces of a span that are left beside the holes, which are in order."""
    holes = [hole for hole in holes if hole.overlaps(span)]
    if not holes:
        return [span]
    pieces = []
    first, last = holes[0], holes[-1]
    if span.start < first.start:
        pieces.append(Span(span.start, first.start))
    if last.end < span.end:
        pieces.append(Span(last.end, span.end))
    return pieces
