"""A gymnasium environment that counts, blocks and breaks, as options say."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

ID = "AgentRLTest-v0"


class Fake(gymnasium.Env[int, int]):
    """Ends after two steps with reward 1 each."""

    log: ClassVar[list[str]] = []
    """What was called, the making of tasks aside."""
    released: ClassVar[threading.Event] = threading.Event()
    numbers: ClassVar[itertools.count[int]] = itertools.count()

    def __init__(self, fault: str | None = None) -> None:
        self.observation_space = spaces.Discrete(10_000)
        self.action_space = spaces.Discrete(2)
        self.fault = fault
        self.number = next(self.numbers)
        self.num_steps = 0

    def _called(self, name: str) -> None:
        self.log.append(name)
        assert threading.current_thread() is not threading.main_thread()
        if self.fault == name:
            raise RuntimeError(f"{name} is broken on purpose")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if threading.current_thread() is not threading.main_thread():  # not when the tasks are made
            self._called("reset")
        return self.number if self.fault == "seed" else 7, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._called("step")
        if self.fault == "block":
            assert self.released.wait(20), "nobody else could run"
        if self.fault == "nested":
            asyncio.run(asyncio.sleep(0))
        self.num_steps += 1
        return self.num_steps, 1.0, self.num_steps == 2, False, {}

    def close(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._called("close")


def register() -> None:
    if ID not in gymnasium.registry:
        gymnasium.register(id=ID, entry_point=Fake)
