"""A calendar: bookings of one thing that can't be in two places."""

from daybook.span import Span
from daybook.spanset import SpanSet


class Conflict(Exception):
    """The time is taken. `bookings` has those that are in the way."""

    def __init__(self, span, bookings):
        self.span = span
        self.bookings = list(bookings)
        titles = ", ".join(booking.title for booking in self.bookings)
        super().__init__("%s is taken: %s" % (span, titles))


class Booking:
    """A span with a title and those who come."""

    def __init__(self, span, title, people=()):
        self.span = span
        self.title = title
        self.people = list(people)

    def invite(self, *people):
        """Add people; those who are there already aren't added again."""
        for person in people:
            if person not in self.people:
                self.people.append(person)

    def __repr__(self):
        return "Booking(%r, %r)" % (self.span, self.title)


class Calendar:
    """Bookings of one room, person or machine, by their starts."""

    def __init__(self, name):
        self.name = name
        self._bookings = []

    def __len__(self):
        return len(self._bookings)

    def __iter__(self):
        return iter(self._bookings)

    def book(self, span, title, people=()):
        """Add a booking. Raises Conflict where the time is taken, also in part."""
        taken = self.during(span)
        if taken:
            raise Conflict(span, taken)
        booking = Booking(span, title, people)
        self._bookings.append(booking)
        self._bookings.sort(key=lambda booking: booking.span)
        return booking

    def cancel(self, booking):
        """Take a booking out. Raises KeyError where it isn't in."""
        if booking not in self._bookings:
            raise KeyError("%r isn't booked in %s" % (booking.title, self.name))
        self._bookings.remove(booking)

    def move(self, booking, amount):
        """Put a booking earlier or later. Where it can't be, it stays where it was, and Conflict is raised."""
        span = booking.span.shift(amount)
        taken = [other for other in self.during(span) if other is not booking]
        if taken:
            raise Conflict(span, taken)
        booking.span = span
        self._bookings.sort(key=lambda booking: booking.span)

    def at(self, moment):
        """The booking at a moment, or None."""
        for booking in self._bookings:
            if moment in booking.span:
                return booking
        return None

    def during(self, span):
        """All bookings that overlap a span."""
        return [booking for booking in self._bookings if booking.span.overlaps(span)]

    def busy(self, span):
        """What is booked of a span."""
        return SpanSet([booking.span for booking in self._bookings]) & SpanSet([span])

    def free(self, span, at_least=None):
        """What is free of a span, as a list of spans, each at least that long."""
        gaps = SpanSet([span]) - self.busy(span)
        return [gap for gap in gaps if at_least is None or gap.length > at_least]

    def first_free(self, span, length):
        """The earliest span of that length that is free, or None."""
        for gap in self.free(span, at_least=length):
            return Span(gap.start, gap.start + length)
        return None

    def load(self, span):
        """The booked share of a span, from 0.0 to 1.0."""
        lengths = [busy.length for busy in self.busy(span)]
        if not lengths:
            return 0.0
        return sum(lengths[1:], lengths[0]) / span.length


def common_free(calendars, span, at_least=None):
    """When all of the calendars are free."""
    gaps = SpanSet([span])
    for calendar in calendars:
        gaps = gaps - calendar.busy(span)
    return [gap for gap in gaps if at_least is None or gap.length > at_least]
