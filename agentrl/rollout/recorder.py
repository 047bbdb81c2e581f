"""What the AgentLoop asks of a store. `run.py` passes the store in; rollout never imports it."""

from __future__ import annotations

from typing import Protocol

from agentrl.types import Grade, Trajectory, Turn


class Recorder(Protocol):
    """Each call returns once the write is durable. Raises StoreError; LeaseLost where the group moved on."""

    async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        """A rollout starts (no turns, no stop reason yet)."""

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """A turn is sampled; its tool calls, results and reward are written by `update_turn`."""

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """The turn's tools have run and the environment has stepped. Comes before turns whose prompts hold results."""

    async def finish(self, trajectory: Trajectory) -> None:
        """The rollout has ended; stop reason, error and artifacts are set. Immutable from here on."""

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        """Append a grade; returns its id. `lease_generation`: of the grader, if it isn't the player's."""
