"""Collects what a log tells, line by line."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.envs.swe_bench.verdict import Status

FAILURES: tuple[Status, ...] = ("failed", "error")


@dataclass(kw_only=True, slots=True)
class Told:
    """What was told so far."""

    statuses: dict[str, Status] = field(default_factory=dict, kw_only=False)
    conflicting: set[str] = field(default_factory=set)
    """Tests of which two things were told."""
    num_unknown_lines: int = 0
    """Lines that look like results and name no test."""

    def add(self, test: str, status: Status) -> None:
        """The first status stays, unless a later one is a failure."""
        first = self.statuses.setdefault(test, status)
        if first == status or (first in FAILURES and status in FAILURES):
            return
        self.conflicting.add(test)
        if status in FAILURES:
            self.statuses[test] = status
