"""By what a publish tells new weights from old ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.sync.base import Canary
from agentrl.train.policy import Policy
from agentrl.types import Group

MAX_PROBE_TOKENS = 64
"""Of a reply that are scored, but never its last one: a reply may fill the window, and an engine that scores ids needs
room for one more."""


@dataclass(slots=True)
class Probe:
    """A continuation that the trainer scored before an update, so that it can tell old weights from new."""

    policy: Policy
    prompt_ids: list[int]
    forced_ids: list[int]
    previous: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.previous = self.score()

    @classmethod
    def of(cls, policy: Policy, groups: Sequence[Group]) -> Probe | None:
        """The first sampled reply of a step's groups of more than one id; None where nothing was sampled."""
        replies = [
            (sample.trajectory.context(turn.index), turn.sampled_ids)
            for group in groups
            for sample in group.samples
            for turn in sample.trajectory.turns_of()[:1]
            if turn.sampled_ids
        ]
        if not replies:
            return None
        context, sampled = next((reply for reply in replies if len(reply[1]) > 1), replies[0])
        return cls(policy, context, sampled[:-1][:MAX_PROBE_TOKENS] or sampled)

    def canary(self, noise: float) -> Canary:
        """What an engine must say of it now. `noise`: see Canary."""
        return Canary(
            prompt_ids=self.prompt_ids,
            forced_ids=self.forced_ids,
            expected=self.score(),
            previous=self.previous,
            noise=noise,
        )

    def score(self) -> list[float]:
        """Logprobs (temperature 1) of forced_ids by the trainer's weights of now."""
        ids = self.prompt_ids + self.forced_ids
        return self.policy.logprobs(ids, range(len(self.prompt_ids), len(ids)))
