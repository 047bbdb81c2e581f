"""The nouns of agentrl: what flows from a task to a gradient.

Stored or sent values are pydantic models (they are checked where they enter); values that hold tokens are
dataclasses of plain lists, so that this module needs neither torch nor numpy.

Worked example, two turns of one agent in `append` mode::

    turn 0: parent None, keep 0, prompt_ids [1, 2, 3],  sampled_ids [7, 8]   full = 1 2 3 7 8
    turn 1: parent 0,    keep 5, prompt_ids [4, 5],     sampled_ids [9]      full = 1 2 3 7 8 4 5 9
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Role = Literal["system", "user", "assistant", "tool"]


class _Record(BaseModel):
    """A value that is stored or sent: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class TextPart(_Record):
    """One part of a message. Only text for now; images will be a second class, not a migration."""

    type: Literal["text"] = "text"
    text: str


class ToolCall(_Record):
    """A call as the model emitted it: `arguments` is raw text, never repaired."""

    id: str
    name: str
    arguments: str


class Message(_Record):
    """One message of a conversation."""

    role: Role
    content: str | list[TextPart] = ""
    reasoning: str | None = None
    tool_calls: list[ToolCall] = Field(default_factory=list)
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class Task(_Record):
    """One problem. `id` is unique within (env, split)."""

    env: str
    id: str
    split: str
    messages: list[Message]
    data: dict[str, JsonValue] = Field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """Hash of (env, messages, data), without id and split: the same task in two splits has one key.

        Kept once it was asked for, which is several times a rollout: don't change a task, copy it.
        """
        content = {"env": self.env, "messages": [m.model_dump() for m in self.messages], "data": self.data}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with a key of its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("key", None)
        return copied


class Artifacts(_Record):
    """What grading needs besides the turns: JSON values and named files. Stored before grading."""

    data: dict[str, JsonValue] = Field(default_factory=dict)
    files: dict[str, bytes] = Field(default_factory=dict)


class Grade(_Record):
    """How well an episode went. `reward` None means "could not measure", which is never 0 (R2)."""

    reward: float | None
    unmeasured: str | None = None
    """Why there is no reward; set exactly when `reward` is None."""
    parts: dict[str, float] = Field(default_factory=dict)
    turn_rewards: list[float] | None = None
    """How `reward` spreads over the turns; it is not added to `reward`."""
    grader: str = ""
    grader_version: str = ""
    output: str | None = None
    """What the grader wrote, for whoever asks why: a test log, a judge's words."""

    def settled(self) -> Grade:
        """This grade with a finite reward, or with None and a reason: graders may return None or NaN."""
        if self.reward is None:
            return self.model_copy(update={"unmeasured": self.unmeasured or "the grader returned no reward"})
        if not math.isfinite(self.reward):
            return self.model_copy(update={"reward": None, "unmeasured": f"the grader returned {self.reward}"})
        return self.model_copy(update={"unmeasured": None})


class StopReason(StrEnum):
    """The one way in which a rollout ended (closed list)."""

    COMPLETED = "completed"
    ENV_TRUNCATED = "env_truncated"
    MAX_TURNS = "max_turns"
    TOKEN_BUDGET = "token_budget"
    TURN_LENGTH = "turn_length"
    CONTEXT_OVERFLOW = "context_overflow"
    EPISODE_TIMEOUT = "episode_timeout"
    PARSE_LIMIT = "parse_limit"
    TOOL_ERROR = "tool_error"
    ENV_ERROR = "env_error"
    SANDBOX_ERROR = "sandbox_error"
    ENGINE_ERROR = "engine_error"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    LOST = "lost"

    @property
    def ending(self) -> Ending:
        """What follows from this ending."""
        return ENDINGS[self]


class Ending(NamedTuple):
    """The consequences of a StopReason; every consumer looks them up here."""

    graded: bool
    trained: bool
    in_baseline: bool
    retried: bool


_AGENT = Ending(graded=True, trained=True, in_baseline=True, retried=False)
"""The agent's own doing, good or bad: data."""
_FAULT = Ending(graded=False, trained=False, in_baseline=False, retried=True)
"""Something around the agent broke: nothing was measured, so try again within the budget."""
_STOPPED = Ending(graded=False, trained=False, in_baseline=False, retried=False)
"""We stopped it: nothing was measured. A group that is issued again gets new trajectories."""

ENDINGS: dict[StopReason, Ending] = {
    StopReason.COMPLETED: _AGENT,
    StopReason.ENV_TRUNCATED: _AGENT,
    StopReason.MAX_TURNS: _AGENT,
    StopReason.TOKEN_BUDGET: _AGENT,
    StopReason.TURN_LENGTH: _AGENT,
    StopReason.CONTEXT_OVERFLOW: _AGENT,
    StopReason.EPISODE_TIMEOUT: _AGENT,
    StopReason.PARSE_LIMIT: _AGENT,
    StopReason.TOOL_ERROR: _FAULT,
    StopReason.ENV_ERROR: _FAULT,
    StopReason.SANDBOX_ERROR: _FAULT,
    StopReason.ENGINE_ERROR: _FAULT,
    StopReason.CANCELLED: _STOPPED,
    StopReason.INTERRUPTED: _STOPPED,
    StopReason.LOST: _STOPPED,
}


class Sampler(StrEnum):
    """Who produced the sampled ids of a turn. Only an engine's turns have logprobs and versions."""

    ENGINE = "engine"
    TEXT = "text"
    """A server that gives text alone. The ids, where there are any, were made from the text: never trained on."""
    SCRIPTED = "scripted"
    HUMAN = "human"
    IMPORT = "import"


class CallStatus(StrEnum):
    """What became of a tool call."""

    OK = "ok"
    ERROR = "error"
    """The tool raised or returned an error; the model saw it."""
    TIMEOUT = "timeout"
    INVALID_JSON = "invalid_json"
    """Not a JSON object of the expected form; nothing was run."""
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments don't fit the tool's schema; nothing was run."""
    TRUNCATED = "truncated"
    """The reply was cut inside the call; nothing was run."""
    NOT_RUN = "not_run"
    """The episode ended before the call's turn came."""


@dataclass(kw_only=True, slots=True)
class ParsedCall:
    """A tool call with what became of it."""

    call: ToolCall
    status: CallStatus
    span: tuple[int, int]
    """[start, end) over the turn's sampled ids."""
    arguments: dict[str, Any] | None = None
    """The decoded object where `status` allows running it."""
    error: str | None = None
    result: str | None = None
    """What the tool returned, whole, before the cap on observations."""
    seconds: float = 0.0


@dataclass(kw_only=True, slots=True)
class EngineCall:
    """One request to an engine, over [start, end) of a turn's sampled ids, all of one version."""

    start: int
    end: int
    version: int
    request_id: str
    engine: str
    finish_reason: str
    sampling: dict[str, Any]


@dataclass(kw_only=True, slots=True)
class Turn:
    """One reply of one agent. context = full(parent)[:keep] + prompt_ids; full = context + sampled_ids."""

    index: int
    parent: int | None
    keep: int
    prompt_ids: list[int]
    """Only the ids that are new; nobody sampled them (mask 0)."""
    sampled_ids: list[int]
    logprobs: list[float]
    """Behaviour logprobs, one per sampled id; NaN where the sampler is no engine."""
    calls: list[EngineCall]
    """Cover sampled_ids without gaps where a server sampled (sampler engine or text), else empty."""
    prompt_messages: list[Message]
    """The messages behind prompt_ids, raw."""
    message: Message
    tool_calls: list[ParsedCall] = field(default_factory=list)
    agent: str = "main"
    trained: bool = True
    sampler: Sampler = Sampler.ENGINE
    reward: float = 0.0
    started_at: float = 0.0
    """Unix time."""
    timings: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: render, sample, tools, env."""

    @property
    def num_ids(self) -> int:
        """Of the turn's context and of what was sampled in it."""
        return self.keep + len(self.prompt_ids) + len(self.sampled_ids)

    @property
    def versions(self) -> list[int]:
        """The policy version of every sampled id; -1 where the sampler is no engine."""
        versions = [-1] * len(self.sampled_ids)
        for call in self.calls:
            versions[call.start : call.end] = [call.version] * (call.end - call.start)
        return versions


@dataclass(kw_only=True, slots=True)
class Trajectory:
    """One rollout. Immutable once `stop_reason` is set."""

    id: str
    run: str
    task: Task
    group: str | None
    sample: int = 0
    attempt: int = 0
    reissue: int = 0
    env_seed: int = 0
    """Shared by the samples of a group."""
    sampling_seed: int = 0
    env_version: str = ""
    renderer_mode: str = "append"
    template_hash: str = ""
    turns: list[Turn] = field(default_factory=list)
    stop_reason: StopReason | None = None
    error: str | None = None
    artifacts: Artifacts = field(default_factory=Artifacts)
    forked_from: tuple[str, int] | None = None
    started_at: float = 0.0
    finished_at: float | None = None

    def context(self, index: int) -> list[int]:
        """The ids that turn `index` was conditioned on."""
        turn = self.turns[index]
        kept = [] if turn.parent is None else self.full(turn.parent)[: turn.keep]
        return kept + turn.prompt_ids

    def full(self, index: int) -> list[int]:
        """The context of turn `index` and what was sampled there."""
        return self.context(index) + self.turns[index].sampled_ids

    @property
    def num_prefix_breaks(self) -> int:
        """Turns that don't keep all of their parent: branches, where a history was written anew."""
        return sum(turn.parent is not None and turn.keep < self.turns[turn.parent].num_ids for turn in self.turns)

    def turns_of(self, agent: str = "main") -> list[Turn]:
        """One agent's turns: the policy's are those of "main"; user simulators and judges have names of their own."""
        return [turn for turn in self.turns if turn.agent == agent]

    @property
    def turn_reward(self) -> float:
        """The sum of the turns' rewards: the default for a grade."""
        return sum(turn.reward for turn in self.turns)

    @property
    def num_sampled(self) -> int:
        """Ids sampled in trained turns."""
        return sum(len(turn.sampled_ids) for turn in self.turns if turn.trained)


class Purpose(StrEnum):
    """What a group is for. Only train groups can be claimed for training."""

    TRAIN = "train"
    EVAL = "eval"
    COLLECT = "collect"


class GroupState(StrEnum):
    """planned → leased → complete → archived or dropped."""

    PLANNED = "planned"
    LEASED = "leased"
    COMPLETE = "complete"
    ARCHIVED = "archived"
    DROPPED = "dropped"


@dataclass(kw_only=True, slots=True)
class Sample:
    """A trajectory with its latest grade (None: not graded), and the grade's id in the store."""

    trajectory: Trajectory
    grade: Grade | None
    grade_id: int | None = None

    @property
    def reward(self) -> float | None:
        """The measured reward that counts in a baseline, or None."""
        reason = self.trajectory.stop_reason
        if self.grade is None or reason is None or not reason.ending.in_baseline:
            return None
        return self.grade.reward


@dataclass(kw_only=True, slots=True)
class Group:
    """One task's samples, whose advantages are relative to one another."""

    id: str
    run: str
    task: Task
    purpose: Purpose
    ordinal: int
    """Place in the run's plan; seeds follow from it."""
    size: int
    state: GroupState = GroupState.PLANNED
    lease_generation: int = 0
    reissue: int = 0
    """How often it was given out again after a crash or a stop."""
    dropped_reason: str | None = None
    """Why it was dropped, where it was."""
    samples: list[Sample] = field(default_factory=list)
    """The final attempt of each sample."""


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from a hash of the parts, equal on every machine and in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
