"""Environments, tools and sandboxes by entry-point name. The core meets them only here.

Nothing is cached: what is installed, uninstalled or repaired while a process runs is seen by the next look-up. A
package that can't be read or loaded is a line in `describe`, and an error only for who asks for it.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import site
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata, resources
from importlib.metadata import Distribution, EntryPoint
from typing import Any, NamedTuple

from agentrl.environment import Environment
from agentrl.errors import PluginError
from agentrl.sandbox import SandboxBackend

GROUPS = ("agentrl.envs", "agentrl.tools", "agentrl.sandboxes", "agentrl.data")
BASES: dict[str, type[Any]] = {"agentrl.envs": Environment, "agentrl.sandboxes": SandboxBackend}
"""What the plugins of a group are subclasses of."""
MAX_STATE_CHARACTERS = 300


class PluginInfo(NamedTuple):
    """One line of `agentrl env list`."""

    name: str
    distribution: str
    version: str
    state: str
    """"ok", or why it doesn't load."""


class PluginYaml(NamedTuple):
    """The YAML that an environment brings along."""

    place: str
    """Package and file, for messages."""
    text: str


class _Plugin(NamedTuple):
    """One registered name."""

    point: EntryPoint
    distribution: str
    version: str

    @property
    def source(self) -> str:
        return f"{self.distribution} {self.version}"


class _Unreadable(NamedTuple):
    """A distribution whose entry points can't be read."""

    distribution: str
    reason: str


def names(group: str) -> list[str]:
    """The registered names of a group; loads nothing."""
    return sorted({found.point.name for found in _scan(group) if isinstance(found, _Plugin)})


def load(group: str, name: str) -> Any:
    """The object behind a name. Raises PluginError with near names, or with why it doesn't load."""
    return _load(group, _find(group, name))


def environment(name: str) -> type[Environment]:
    """The class of an environment. Raises PluginError where it is unknown, broken or no Environment."""
    return _class("agentrl.envs", name)


def sandbox(name: str) -> type[SandboxBackend]:
    """The class of a backend. Raises PluginError where it is unknown, broken or no SandboxBackend."""
    return _class("agentrl.sandboxes", name)


def made_by(group: str, name: str) -> dict[str, str]:
    """{distribution: version} of the package that registers a name; empty where none does."""
    return {f.distribution: f.version for f in _scan(group) if isinstance(f, _Plugin) and f.point.name == name}


def environment_yaml(name: str) -> PluginYaml | None:
    """The YAML that an environment declares by its attribute `yaml`; None: it declares none.

    Raises PluginError where the environment is unknown or broken, or its package lacks the file.
    """
    env_class = environment(name)
    if env_class.yaml is None:
        return None
    owner = next(base for base in env_class.__mro__ if "yaml" in vars(base))
    package = getattr(sys.modules[owner.__module__], "__package__", None)
    try:
        text = resources.files(package).joinpath(env_class.yaml).read_text("utf-8") if package else None
    except (OSError, ModuleNotFoundError):
        text = None
    if text is None:
        plugin = _find("agentrl.envs", name)
        where = f"package {package}" if package else f"module {owner.__module__} is no package and"
        raise PluginError(
            f"plugin {plugin.source} declares the config env/{name} as {env_class.yaml!r}, but its {where} has no such "
            f"file; add it to the package's data, then build and install {plugin.distribution} again"
        )
    return PluginYaml(f"{package}/{env_class.yaml}", text)


def describe(group: str) -> list[PluginInfo]:
    """All plugins of a group with their state; a broken one is listed, not raised."""
    lines = [_describe(group, found) for found in _scan(group)]
    return sorted(lines, key=lambda info: (info.name, info.distribution))


# ------------------------------------------------------------------------------------------------------- looking up


def _scan(group: str) -> Iterator[_Plugin | _Unreadable]:
    """What the installed distributions register. As for imports, the first of two installations on the path counts."""
    importlib.invalidate_caches()  # a package installed since the last look is found
    seen: set[str] = set()
    for distribution in _distributions():
        name = "?"
        try:
            name = distribution.metadata["Name"] or "?"
            key = re.sub(r"[-_.]+", "-", name).lower()
            if name != "?" and key in seen:
                continue
            seen.add(key)
            points = list(distribution.entry_points.select(group=group))
            version = distribution.version or "?"
        except Exception as error:  # somebody's broken metadata
            yield _Unreadable(name, f"its metadata can't be read: {_reason(error)}")
            continue
        yield from (_Plugin(point, name, version) for point in points)


def _distributions() -> list[Distribution]:
    try:
        return list(metadata.distributions())
    except Exception as error:
        raise PluginError(f"the list of installed packages can't be read: {_reason(error)}; try again") from error


def _find(group: str, name: str) -> _Plugin:
    found = list(_scan(group))
    plugins = [plugin for plugin in found if isinstance(plugin, _Plugin)]
    matches = [plugin for plugin in plugins if plugin.point.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        sources = " and ".join(plugin.source for plugin in matches)
        raise PluginError(f"{group}: {name!r} is registered by {sources}; uninstall all but one")
    kind = "sandbox" if group == "agentrl.sandboxes" else group.removeprefix("agentrl.").removesuffix("s")
    known = sorted({plugin.point.name for plugin in plugins})
    near = difflib.get_close_matches(name, known, n=3) or known
    listed = ", ".join(near) or "none: is agentrl installed? `pip install -e .` registers its own"
    broken = "".join(f" ({f.distribution}: {f.reason})" for f in found if isinstance(f, _Unreadable))
    raise PluginError(
        f"unknown {kind} {name!r}; known: {listed}. A package adds one by the entry-point group {group}{broken}"
    )


def _load(group: str, plugin: _Plugin) -> Any:
    point = plugin.point
    try:
        _see_editable_install(point)
        return point.load()
    except (Exception, SystemExit) as error:  # a stranger's import may raise anything
        raise PluginError(
            f"{group}: {point.name!r} ({point.value}) doesn't load: {_reason(error)}; "
            f"fix or uninstall {plugin.distribution}, which provides it"
        ) from error


def _see_editable_install(point: EntryPoint) -> None:
    """Read the .pth files of the plugin's site-packages again if its module isn't on the path.

    `pip install -e` adds a folder by such a file, which the interpreter reads only when it starts.
    """
    top = point.module.partition(".")[0]
    if top in sys.modules or importlib.util.find_spec(top) is not None:
        return
    if isinstance(point.dist, Distribution):
        with suppress(OSError):
            site.addsitedir(str(point.dist.locate_file("")))
        importlib.invalidate_caches()


def _describe(group: str, found: _Plugin | _Unreadable) -> PluginInfo:
    if isinstance(found, _Unreadable):
        return PluginInfo("?", found.distribution, "?", found.reason)
    try:
        loaded = load(group, found.point.name)
        state = _wrong_kind(group, loaded) or "ok"
    except PluginError as error:
        state = _reason(error.__cause__) if error.__cause__ else str(error)
    return PluginInfo(found.point.name, found.distribution, found.version, state)


def _class(group: str, name: str) -> type[Any]:
    loaded = load(group, name)
    problem = _wrong_kind(group, loaded)
    if problem:
        raise PluginError(f"{group}: {name!r} {problem}")
    return loaded  # type: ignore[no-any-return]


def _wrong_kind(group: str, loaded: Any) -> str | None:
    """Why this can't be used as what its group is for; None: it can."""
    base = BASES.get(group)
    if base is None:
        return None
    where = f"{base.__module__}.{base.__name__}"
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        return f"is {_one_line(repr(loaded))}; register a subclass of {where}"
    missing: frozenset[str] = getattr(loaded, "__abstractmethods__", frozenset())
    if missing:
        return f"lacks {', '.join(sorted(missing))}; see {where}"
    return None


def _reason(error: BaseException) -> str:
    """An error as one line: what kind, and its own words."""
    return _one_line(f"{type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    """Without line ends and control characters, and not endless."""
    flat = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return flat if len(flat) <= MAX_STATE_CHARACTERS else flat[: MAX_STATE_CHARACTERS - 1] + "…"
