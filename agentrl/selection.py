"""Which of the stored trajectories are meant, from words: for the terminal's options and the viewer's search alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, TypeVar

from agentrl.errors import ConfigError
from agentrl.types import CallStatus, Purpose, StopReason
from agentrl.visible import one_line

if TYPE_CHECKING:
    from agentrl.store.find import Selection
    from agentrl.store.store import Store

Word = TypeVar("Word", bound=StrEnum)
Other = TypeVar("Other", bound=str)
RUNNING: Literal["running"] = "running"
"""In the place of a stop reason: there is none yet."""
FAILED: Literal["failed"] = "failed"
"""In the place of a call's status: any of those that didn't go well."""
PURPOSES = tuple(map(str, Purpose))
ENDINGS = (*map(str, StopReason), RUNNING)
CALLS = (*map(str, CallStatus), FAILED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What is asked for; all that is given must hold."""

    run: str | None = None
    """Its id, the beginning of it, or its folder's name."""
    step: int | None = None
    """Of the run: it trained on them, whoever sampled them."""
    version: int | None = None
    """Of the run: it sampled some of their ids."""
    env: str | None = None
    stop_reason: str | None = None
    """One of `ENDINGS`."""
    purpose: str | None = None
    min_reward: float | None = None
    max_reward: float | None = None
    call: str | None = None
    """One of `CALLS`."""
    text: str | None = None

    def selection(self, store: Store) -> Selection:
        """Raises ConfigError for what can't be, NotStored for an unknown run."""
        self._check()
        run = None if self.run is None else store.find_run(self.run).id
        step = None if run is None or self.step is None else (run, self.step)
        if step and step[1] not in {one.id for one in store.steps(step[0])}:
            raise ConfigError(f"run {run} has no step {self.step}; agentrl runs {run} tells what it has")
        return {
            "run": None if step else run,
            "step": step,
            "version": self.version,
            "env": self.env,
            "stop_reason": _read(self.stop_reason, StopReason, RUNNING),
            "purpose": _read(self.purpose, Purpose),
            "min_reward": self.min_reward,
            "max_reward": self.max_reward,
            "call": _read(self.call, CallStatus, FAILED),
            "text": self.text,
        }

    def _check(self) -> None:
        low, high = self.min_reward, self.max_reward
        if low is not None and high is not None and low > high:
            raise ConfigError(f"no reward is at least {low:g} and at most {high:g}")
        if self.run is None and self.step is not None:
            raise ConfigError("a step needs the run that trained: name it too (--run); `agentrl runs` lists them")
        if self.run is None and self.version is not None:
            raise ConfigError("a version needs its run: name it too (--run); `agentrl runs` lists them")


def place_of(store: Store, trajectory: str | None) -> tuple[float, str] | None:
    """Where a list goes on behind a trajectory, of whose id the beginning may be given. Raises NotStored."""
    if trajectory is None:
        return None
    (one,) = store.find_trajectories(ids=[store.resolve("trajectory", trajectory)])
    return one.started_at, one.id


def _read(given: str | None, words: type[Word], *more: Other) -> Word | Other | None:
    """The word that is given. Raises ConfigError for one that is none of them."""
    if given is None:
        return None
    known: dict[str, Word | Other] = {str(word): word for word in (*words, *more)}
    if given not in known:
        raise ConfigError(f"{one_line(given)!r} is none of {', '.join(known)}")
    return known[given]
