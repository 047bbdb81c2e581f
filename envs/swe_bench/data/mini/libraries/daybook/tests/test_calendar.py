from datetime import datetime, timedelta

import pytest

from daybook import Calendar, Conflict, Span
from daybook.calendar import common_free


def hours(start, end):
    return Span(datetime(2024, 3, 4, start), datetime(2024, 3, 4, end))


def room(*spans):
    calendar = Calendar("room")
    for number, span in enumerate(spans):
        calendar.book(span, "meeting %d" % number)
    return calendar


def test_book_keeps_the_order():
    assert [booking.title for booking in room(hours(14, 15), hours(9, 10))] == ["meeting 1", "meeting 0"]


def test_book_what_is_taken():
    calendar = room(hours(9, 11))
    with pytest.raises(Conflict, match="meeting 0") as error:
        calendar.book(hours(10, 12), "late")
    assert len(error.value.bookings) == 1
    assert len(calendar) == 1


def test_cancel():
    calendar = room(hours(9, 10))
    booking = calendar.at(datetime(2024, 3, 4, 9, 30))
    calendar.cancel(booking)
    assert len(calendar) == 0
    with pytest.raises(KeyError):
        calendar.cancel(booking)


def test_at():
    calendar = room(hours(9, 10))
    assert calendar.at(datetime(2024, 3, 4, 9)).title == "meeting 0"
    assert calendar.at(datetime(2024, 3, 4, 10)) is None


def test_move():
    calendar = room(hours(9, 10), hours(12, 13))
    booking = calendar.at(datetime(2024, 3, 4, 9))
    calendar.move(booking, timedelta(minutes=30))
    assert booking.span.start == datetime(2024, 3, 4, 9, 30)
    with pytest.raises(Conflict):
        calendar.move(booking, timedelta(hours=3))
    assert booking.span.start == datetime(2024, 3, 4, 9, 30)


def test_free_around_one_booking():
    assert room(hours(9, 10)).free(hours(8, 18)) == [hours(8, 9), hours(10, 18)]


def test_free_of_an_empty_calendar():
    assert room().free(hours(8, 18)) == [hours(8, 18)]


def test_load():
    assert room(hours(8, 10)).load(hours(8, 18)) == 0.2
    assert room().load(hours(8, 18)) == 0.0


def test_invite():
    booking = room().book(hours(9, 10), "talk", ["Ada"])
    booking.invite("Ada", "Grace")
    assert booking.people == ["Ada", "Grace"]
