"""Rules that repeat: dates without end, which `until` and `take` end."""

import itertools
from datetime import date, timedelta


def daily(start, every=1):
    """Every so many days."""
    _check(every)
    for number in itertools.count():
        yield start + timedelta(days=every * number)


def weekly(start, weekdays=None, every=1):
    """On some days of the week (0 is Monday), every so many weeks; by default on that of the start."""
    _check(every)
    days = sorted(set(weekdays)) if weekdays is not None else [start.weekday()]
    if not days or days[0] < 0 or days[-1] > 6:
        raise ValueError("weekdays are numbers from 0 (Monday) to 6 (Sunday)")
    monday = start - timedelta(days=start.weekday())
    for number in itertools.count():
        for day in days:
            found = monday + timedelta(weeks=every * number, days=day)
            if found >= start:
                yield found


def monthly(start, every=1):
    """On the start's day of the month, every so many months."""
    _check(every)
    for number in itertools.count():
        months = start.month - 1 + every * number
        year, month = start.year + months // 12, months % 12 + 1
        yield date(year, month, start.day)


def until(dates, end):
    """The dates up to the end, which is among them where a date falls on it."""
    for found in dates:
        if found > end:
            return
        yield found


def take(dates, number):
    """The first so many dates, as a list."""
    return list(itertools.islice(dates, number))


def skipping(dates, holidays):
    """The dates that aren't holidays."""
    left_out = set(holidays)
    return (found for found in dates if found not in left_out)


def _check(every):
    if every < 1:
        raise ValueError("every must be at least 1")
