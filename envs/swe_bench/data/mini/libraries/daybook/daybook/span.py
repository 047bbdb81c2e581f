"""A span: everything from a start up to, and without, an end.

Starts and ends may be anything that has an order: moments, dates, numbers.
"""


class Span:
    """From `start` up to `end`, which isn't in it. Never empty, never changed."""

    __slots__ = ("start", "end")

    def __init__(self, start, end):
        if not start < end:
            raise ValueError("a span ends after it starts: %s, %s" % (start, end))
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "end", end)

    def __setattr__(self, name, value):
        raise AttributeError("a span can't be changed; make a new one")

    def __eq__(self, other):
        if not isinstance(other, Span):
            return NotImplemented
        return (self.start, self.end) == (other.start, other.end)

    def __hash__(self):
        return hash((self.start, self.end))

    def __lt__(self, other):
        return (self.start, self.end) < (other.start, other.end)

    def __contains__(self, moment):
        return self.start <= moment < self.end

    def __repr__(self):
        return "Span(%r, %r)" % (self.start, self.end)

    def __str__(self):
        return "%s – %s" % (self.start, self.end)

    @property
    def length(self):
        """How long it is."""
        return self.end - self.start

    def overlaps(self, other):
        """Is there a moment that is in both?"""
        return self.start <= other.end and other.start <= self.end

    def touches(self, other):
        """Does one end where the other starts?"""
        return self.end == other.start or other.end == self.start

    def covers(self, other):
        """Is all of the other in this one?"""
        return self.start <= other.start and other.end <= self.end

    def intersection(self, other):
        """What is in both, or None."""
        if not self.overlaps(other):
            return None
        return Span(max(self.start, other.start), min(self.end, other.end))

    def shift(self, amount):
        """As long, but earlier or later."""
        return Span(self.start + amount, self.end + amount)
