"""The environment contract. The smallest environment is `tasks`, one tool function and `grade`.

One instance lives for one episode. The AgentLoop calls, in this order::

    tasks (class)  sandbox  reset  ( reply → tools → step )*  collect  close  grade (class)

An environment that asks for a box by `sandbox` has it as `ctx.sandbox` in `reset` and in its tools, and may use it
until `collect` is done. Shells are closed before `collect`, and the box is gone before `grade`: no process of the agent
lives on while it is measured. A `grade` that runs something asks for a fresh box by `grading_sandbox`.

Plain Python errors are fine: the loop catches what `reset`, `step`, `collect` and `grade` raise and records it
as the rollout's ending or as an unmeasured grade; it never reaches the siblings. Each of the async methods may also be
a plain function: it then runs in a thread, where it may block or run an event loop of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, ValidationInfo

from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.tool import Tool, ToolResult
from agentrl.types import Artifacts, Grade, Message, Task, Trajectory

Chat = Callable[[str, list[Message]], Awaitable[Message]]
"""(agent, messages) → reply: a user simulator or judge at `chat.url`, recorded as a turn with trained = False.

Raises EngineError where the endpoint doesn't answer. In `grade` it isn't there: a grade follows from what is stored,
so ask a judge in `collect` and put its verdict into the artifacts.
"""
Oracle = Callable[[list[Message]], Message]
"""The conversation so far → the next assistant message of a scripted solver."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """A way to be paid without solving the task, which the environment withstands."""

    name: str
    """What it does, e.g. "answers before it calls"; one name per attack of a task."""
    policy: Oracle
    """Plays it. Its calls may be malformed, or of tools that don't exist: they get an error, as a model's do."""
    max_reward: float | None = None
    """What it gets at most; None: `max_null_reward` of the class."""


def null_policy(messages: list[Message]) -> Message:
    """The policy that says nothing: what an environment pays for no work."""
    return Message(role="assistant", content="")


def scripted(*replies: Message) -> Oracle:
    """Says these replies in turn, then nothing. It plays one episode."""
    left = iter(replies)
    return lambda messages: next(left, None) or null_policy(messages)


async def no_chat(agent: str, messages: list[Message]) -> Message:
    """Where nobody can be asked: raises RuntimeError."""
    raise RuntimeError(f"ctx.chat({agent!r}, …) isn't there in grade: ask in collect, and grade from the artifacts")


class EnvironmentConfig(BaseModel):
    """Base of an environment's options. Each field is a key `env.<field>` on the command line.

    A validator that looks at files asks `needs_files` first.
    """

    model_config = ConfigDict(extra="forbid")


FOR_REPLAY = {"for_replay": True}
"""The context in which a stored run's config is validated to replay it."""


def needs_files(info: ValidationInfo) -> bool:
    """Must the files that a config names be there, and be the same? Not for a replay: each task is in the database."""
    return not (info.context or {}).get("for_replay")


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentContext:
    """What an episode may use."""

    sandbox: Sandbox | None
    """The box of `sandbox`; in `grade` the one of `grading_sandbox`."""
    seed: int
    """Equal for the samples of one group."""
    deadline: float
    """On the clock of `time.monotonic`."""
    chat: Chat = no_chat


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What follows a reply."""

    messages: list[Message] = field(default_factory=list)
    reward: float = 0.0
    terminated: bool = False
    """The episode is over."""
    truncated: bool = False
    """The environment cut it off; the stop reason is env_truncated."""
    history: list[Message] | None = None
    """What the model shall see in place of all that was said until here, the last reply included: a summary, or a
    conversation with a part left out. `messages` come after it. What was sampled is trained as it was sampled."""


def tool_messages(reply: Message, results: Sequence[ToolResult]) -> list[Message]:
    """The results of a reply's tool calls, as messages."""
    pairs = zip(reply.tool_calls, results, strict=True)
    return [Message(role="tool", content=r.content, tool_call_id=c.id, name=c.name) for c, r in pairs]


class Environment(ABC):
    """One episode of one task. A plugin subclasses it and registers in the entry-point group agentrl.envs."""

    Config: type[EnvironmentConfig] = EnvironmentConfig
    version: str = "0"
    """Changes when tasks, observations or grading change; stored with each trajectory."""
    tools: Sequence[Tool] = ()
    one_at_a_time: bool = False
    """True: episodes share state (a global, a port, a licence), so that only one may be open at a time in a process.
    `reset` must still clear what the episode before it left behind."""
    yaml: str | None = None
    """The plugin's YAML, a file in the package of this class, e.g. "configs/backwards.yaml". It may set any key."""
    min_oracle_reward: float = 1.0
    """What the oracle gets at least; `agentrl env check` plays it."""
    max_null_reward: float = 0.0
    """What a policy that says nothing gets at most."""
    max_garbage_reward: float | None = None
    """What random texts and calls get at most; None: that isn't shown. `__init__` may set it by the options."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self.config = config

    @classmethod
    @abstractmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """The tasks of "train" or "held_out", always the same for the same config."""

    def sandbox(self, task: Task) -> SandboxSpec | None:
        """The box that the episode needs; None: no box."""
        return None

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec | None:
        """The box that `grade` gets, new for each grade; None: no box. It follows from the task alone, as the grade."""
        return None

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        """Start; returns the first messages of the conversation."""
        return task.messages

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        """Answer a reply. By default tool results go back, and a reply without calls ends the episode."""
        messages = tool_messages(reply, results)
        return StepResult(messages=messages, terminated=not results or any(r.terminated for r in results))

    async def collect(self) -> Artifacts:
        """What grading needs besides the turns; stored before grading."""
        return Artifacts()

    @classmethod
    @abstractmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        """Measure the episode. It may run again years later: use only what is passed in."""

    @classmethod
    def references(cls, config: EnvironmentConfig, tasks: Sequence[Task]) -> dict[str, float]:
        """What to show beside the held-out reward on these tasks, e.g. the return of random and of optimal play."""
        return {}

    async def close(self) -> None:  # noqa: B027 - optional hook, not forgotten
        """Release what the episode holds."""

    def oracle(self, task: Task) -> Oracle | None:
        """A scripted solver, which gets the highest reward there is; None: there is none."""
        return None

    def attacks(self, task: Task) -> Sequence[Attack]:
        """Cheats that don't pay here; `agentrl env check` plays each in an episode of its own. Empty: none is shown."""
        return ()

    def demonstrator(self, task: Task) -> Oracle | None:
        """Who plays what `agentrl sft` imitates: the oracle, or one with habits that are left for RL to correct."""
        return self.oracle(task)
