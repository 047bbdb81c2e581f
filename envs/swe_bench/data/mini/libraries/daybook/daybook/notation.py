"""Spans and durations as text."""

import re
from datetime import datetime, timedelta

from daybook.span import Span

MOMENT = "%Y-%m-%d %H:%M"
UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = re.compile(r"(\d+)([dhms])")


def parse_duration(text):
    """`1h30m` → timedelta. Units are d, h, m and s, each at most once, the larger ones first."""
    compact = text.replace(" ", "")
    parts = _PART.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise ValueError("no duration: %r; write e.g. 1h30m" % (text,))
    units = [unit for _, unit in parts]
    if units != sorted(set(units), key="dhms".index):
        raise ValueError("each unit once, the larger first: %r" % (text,))
    return timedelta(**{UNITS[unit]: int(number) for number, unit in parts})


def format_duration(duration):
    """timedelta → `1h30m`; parts that are zero are left out."""
    if duration < timedelta(0):
        raise ValueError("a duration isn't negative: %s" % duration)
    seconds = duration.days * 86400 + duration.seconds
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, size)
        if number:
            parts.append("%d%s" % (number, unit))
    return "".join(parts) or "0s"


def parse_span(text):
    """`2024-03-04 09:00/10:30` or `2024-03-04 09:00/2024-03-05 10:30` → Span."""
    first, slash, second = text.partition("/")
    if not slash:
        raise ValueError("no span: %r; write e.g. 2024-03-04 09:00/10:30" % (text,))
    start = datetime.strptime(first.strip(), MOMENT)
    second = second.strip()
    if len(second) <= 5:
        second = "%s %s" % (start.date(), second)
    return Span(start, datetime.strptime(second, MOMENT))


def format_span(span):
    """Span → text; the date of the end is left out where it is the start's."""
    if span.start.date() == span.end.date():
        return "%s/%s" % (span.start.strftime(MOMENT), span.end.strftime("%H:%M"))
    return "%s/%s" % (span.start.strftime(MOMENT), span.end.strftime(MOMENT))
