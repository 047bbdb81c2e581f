"""Environments, tools and sandboxes by entry-point name. The core meets them only here."""

from __future__ import annotations

import difflib
import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from agentrl.environment import Environment
from agentrl.errors import PluginError

GROUPS = ("agentrl.envs", "agentrl.tools", "agentrl.sandboxes")


class PluginInfo(NamedTuple):
    """One line of `agentrl env list`."""

    name: str
    distribution: str
    version: str
    state: str
    """"ok", or why it doesn't load."""


def names(group: str) -> list[str]:
    """The registered names of a group; loads nothing."""
    return sorted({point.name for point in entry_points(group=group)})


def load(group: str, name: str) -> Any:
    """The object behind a name. Raises PluginError with near names, or with why it doesn't load."""
    point = _find(group, name)
    try:
        return point.load()
    except Exception as error:  # a stranger's import may raise anything
        raise PluginError(
            f"{group}: {name!r} ({point.value}) doesn't load: {type(error).__name__}: {error}; "
            f"fix or uninstall the package that provides it"
        ) from error


def environment(name: str) -> type[Environment]:
    """The class of an environment. Raises PluginError where it is unknown, broken or no Environment."""
    loaded = load("agentrl.envs", name)
    if not (isinstance(loaded, type) and issubclass(loaded, Environment)):
        raise PluginError(
            f"agentrl.envs: {name!r} is {loaded!r}; register a subclass of agentrl.environment.Environment"
        )
    return loaded


def describe(group: str) -> list[PluginInfo]:
    """All plugins of a group with their state; a broken one is listed, not raised."""
    return [_describe(group, point) for point in sorted(entry_points(group=group), key=lambda p: p.name)]


def _describe(group: str, point: EntryPoint) -> PluginInfo:
    name, version = (point.dist.name, point.dist.version) if point.dist else ("?", "?")
    try:
        load(group, point.name)
        state = "ok"
    except PluginError as error:
        state = str(error.__cause__ or error)
    return PluginInfo(point.name, name, version, state)


def _find(group: str, name: str) -> EntryPoint:
    importlib.invalidate_caches()  # a package installed since the last look is found
    points = {point.name: point for point in entry_points(group=group)}
    if name in points:
        return points[name]
    near = difflib.get_close_matches(name, points, n=3) or sorted(points)
    known = ", ".join(near) or "none: is agentrl installed? `pip install -e .` registers its own"
    kind = group.removeprefix("agentrl.").removesuffix("s")
    raise PluginError(f"unknown {kind} {name!r}; known: {known}. A package adds one by the entry-point group {group}")
