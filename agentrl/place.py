"""Where in a run the code is: run, step, task, sample, trajectory, turn. Log lines and error messages show it.

Each rollout is an asyncio task with a place of its own, and threads made by `asyncio.to_thread` inherit theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

Place = Mapping[str, object]
ORDER = ("run", "step", "task", "sample", "attempt", "trajectory", "turn")

_HERE: ContextVar[Place] = ContextVar("agentrl_place", default=MappingProxyType({}))
_ATTRIBUTE = "agentrl_place"


def here() -> Place:
    """The place of the code that asks."""
    return _HERE.get()


def locate(**names: object) -> None:
    """More is known about the place, until the enclosing `at` or the asyncio task ends."""
    _HERE.set({**_HERE.get(), **names})


@contextmanager
def at(**names: object) -> Iterator[None]:
    """The place of what runs within; an error that leaves it remembers where it was raised."""
    outside = _HERE.get()
    locate(**names)
    try:
        yield
    except Exception as error:
        error.__dict__[_ATTRIBUTE] = {**_HERE.get(), **error.__dict__.get(_ATTRIBUTE, {})}
        raise
    finally:
        _HERE.set(outside)


def place_of(error: BaseException | None) -> Place:
    """Where an error was raised; of an error taken out of a group, what the group knows is added."""
    if error is None:
        return {}
    outer = place_of(error.__cause__) if isinstance(error.__cause__, BaseExceptionGroup) else {}
    return {**outer, **error.__dict__.get(_ATTRIBUTE, {})}


def place_text(place: Place) -> str:
    """`run ab12 step 3 turn 0`, from large to small."""
    return " ".join(f"{name} {place[name]}" for name in ORDER if name in place)
