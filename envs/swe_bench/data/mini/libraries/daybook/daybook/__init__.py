"""Spans of time, calendars of bookings, and rules that repeat."""

from daybook.calendar import Booking, Calendar, Conflict
from daybook.span import Span
from daybook.spanset import SpanSet

__all__ = ["Booking", "Calendar", "Conflict", "Span", "SpanSet"]
__version__ = "1.2.0"
