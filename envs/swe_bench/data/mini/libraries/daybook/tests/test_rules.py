from datetime import date

import pytest

from daybook import rules


def test_daily():
    assert rules.take(rules.daily(date(2024, 2, 28)), 3) == [date(2024, 2, 28), date(2024, 2, 29), date(2024, 3, 1)]


def test_daily_every_other_day():
    assert rules.take(rules.daily(date(2024, 1, 1), every=2), 2) == [date(2024, 1, 1), date(2024, 1, 3)]


def test_weekly():
    assert rules.take(rules.weekly(date(2024, 3, 6)), 2) == [date(2024, 3, 6), date(2024, 3, 13)]


def test_weekly_on_several_days():
    found = rules.take(rules.weekly(date(2024, 3, 6), weekdays=[0, 2]), 3)
    assert found == [date(2024, 3, 6), date(2024, 3, 11), date(2024, 3, 13)]


def test_weekly_refuses_unknown_days():
    with pytest.raises(ValueError):
        rules.take(rules.weekly(date(2024, 3, 6), weekdays=[7]), 1)


def test_monthly():
    found = rules.take(rules.monthly(date(2024, 11, 15)), 3)
    assert found == [date(2024, 11, 15), date(2024, 12, 15), date(2025, 1, 15)]


def test_until_includes_the_end():
    assert list(rules.until(rules.daily(date(2024, 1, 1)), date(2024, 1, 2))) == [date(2024, 1, 1), date(2024, 1, 2)]


def test_skipping():
    found = rules.skipping(rules.daily(date(2024, 1, 1)), [date(2024, 1, 1), date(2024, 1, 3)])
    assert rules.take(found, 2) == [date(2024, 1, 2), date(2024, 1, 4)]


def test_every_must_be_positive():
    with pytest.raises(ValueError):
        rules.take(rules.daily(date(2024, 1, 1), every=0), 1)
