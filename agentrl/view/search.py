"""Stored trajectories by what is asked for, as `agentrl find` does; the address holds all of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from agentrl.errors import ConfigError, NotStored
from agentrl.selection import CALLS, ENDINGS, PURPOSES, Wanted, place_of
from agentrl.store import TrajectorySummary
from agentrl.view.viewer import Viewer, viewer_of
from agentrl.visible import one_line

AT_ONCE = 50
"""Trajectories on a page."""
RUNS = 100
"""The newest ones are offered."""
NAMES = ("run", "env", "stop_reason", "purpose", "call", "step", "version", "min_reward", "max_reward", "text")
"""Of the fields of a search: those of a `Wanted`."""


def page(request: Request) -> Response:
    viewer = viewer_of(request)
    given = {name: request.query_params.get(name, "").strip() for name in NAMES}
    given = {name: value for name, value in given.items() if value}
    after = request.query_params.get("after") or None
    found, wrong = _found(viewer, given, after)
    is_more = len(found) > AT_ONCE
    return viewer.page(
        "search.html",
        400 if wrong else 200,
        given=given,
        wrong=wrong,
        found=found[:AT_ONCE],
        first=f"/search?{urlencode(given)}" if after else None,
        following=f"/search?{urlencode(given | {'after': found[AT_ONCE - 1].id})}" if is_more else None,
        runs=viewer.store.runs()[:RUNS],
        choices={"stop_reason": ENDINGS, "call": CALLS, "purpose": PURPOSES},
        commands=[viewer.command("find", *_options(given), *(["--after", after] if after else []))],
    )


def _found(viewer: Viewer, given: Mapping[str, str], after: str | None) -> tuple[list[TrajectorySummary], str]:
    """One more than go on a page; and what of the question is wrong."""
    try:
        which = _wanted(given).selection(viewer.store)
        place = place_of(viewer.store, after)
    except (ConfigError, NotStored) as error:
        return [], str(error)
    return viewer.store.find_trajectories(limit=AT_ONCE + 1, after=place, **which), ""


def _wanted(given: Mapping[str, str]) -> Wanted:
    """Raises ConfigError for what is no number."""
    return Wanted(
        run=given.get("run"),
        step=_whole("step", given),
        version=_whole("version", given),
        env=given.get("env"),
        stop_reason=given.get("stop_reason"),
        purpose=given.get("purpose"),
        min_reward=_number("min_reward", given),
        max_reward=_number("max_reward", given),
        call=given.get("call"),
        text=given.get("text"),
    )


def _whole(name: str, given: Mapping[str, str]) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) < 10):
        raise ConfigError(f"the {name} {one_line(value)!r} is no whole number; the first one is 0")
    return int(value)


def _number(name: str, given: Mapping[str, str]) -> float | None:
    try:
        value = float(given[name]) if name in given else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise ConfigError(f"the {name.replace('_', ' ')} {one_line(given[name])!r} is no number; one is 0.5")
    return value


def _options(given: Mapping[str, str]) -> list[str]:
    """As `agentrl find` takes them."""
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
