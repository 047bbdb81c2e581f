from datetime import datetime, timedelta

import pytest

from daybook import Span, notation


@pytest.mark.parametrize(
    "text, duration",
    [
        ("45m", timedelta(minutes=45)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("2d 4h", timedelta(days=2, hours=4)),
        ("90s", timedelta(seconds=90)),
    ],
)
def test_parse_duration(text, duration):
    assert notation.parse_duration(text) == duration


@pytest.mark.parametrize("text", ["", "1", "h", "1x", "30m1h", "1h1h", "1.5h"])
def test_parse_duration_refuses(text):
    with pytest.raises(ValueError):
        notation.parse_duration(text)


def test_format_duration():
    assert notation.format_duration(timedelta(hours=25, minutes=5)) == "1d1h5m"
    assert notation.format_duration(timedelta(0)) == "0s"


def test_parse_span():
    span = notation.parse_span("2024-03-04 09:00/10:30")
    assert span == Span(datetime(2024, 3, 4, 9), datetime(2024, 3, 4, 10, 30))


def test_parse_span_over_midnight():
    span = notation.parse_span("2024-03-04 22:00/2024-03-05 01:00")
    assert span.length == timedelta(hours=3)


def test_parse_span_without_an_end():
    with pytest.raises(ValueError, match="no span"):
        notation.parse_span("2024-03-04 09:00")


def test_format_span():
    for text in ("2024-03-04 09:00/10:30", "2024-03-04 22:00/2024-03-05 01:00"):
        assert notation.format_span(notation.parse_span(text)) == text
