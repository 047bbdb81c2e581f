"""Any gymnasium environment that can be played in text: FrozenLake, Taxi, CliffWalking, Blackjack and their like.

A task is a seed. The model reads the terminal rendering or the observation, and answers with one action tag, which is
checked against the action space; what isn't an action gets an answer and no step. The reward is the sum of the
turns' rewards.
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import index
from typing import Any

from pydantic import JsonValue

from agentrl.environment import (
    Attack,
    Environment,
    EnvironmentConfig,
    EnvironmentContext,
    Oracle,
    StepResult,
    scripted,
    tool_messages,
)
from agentrl.envs.gymnasium_play import (
    GymnasiumConfig,
    best_play,
    face,
    make,
    random_action,
    random_return,
    transition_table,
)
from agentrl.errors import ConfigError
from agentrl.tool import ToolResult
from agentrl.types import Artifacts, Grade, Message, StopReason, Task, Trajectory

HELD_OUT_SEED = 1_000_000_000
"""Where the held-out seeds begin; no train seed is as high."""
NUM_CHECKED_SEEDS = 3
FINISHED = (StopReason.COMPLETED, StopReason.ENV_TRUNCATED)


class GymnasiumEnvironment(Environment):
    """One episode from one seed."""

    Config = GymnasiumConfig
    version = "1"
    min_oracle_reward = -math.inf
    """No bound holds for every environment and seed: optimal play may lose."""
    config: GymnasiumConfig

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        if self.config.invalid_reward <= 0:  # what is no action isn't stepped
            self.max_garbage_reward = max(0.0, self.config.unfinished_reward)
        self._lock = threading.Lock()
        self._is_closing = False
        self._env: Any = None
        self._observation: Any = None
        self._num_steps = 0
        self._num_invalid = 0

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """Raises ConfigError where the options don't make an environment that can be played in text."""
        assert isinstance(config, GymnasiumConfig)
        ranges = {
            "train": (config.first_seed, config.train_tasks),
            "held_out": (HELD_OUT_SEED + config.first_seed, config.held_out_tasks),
        }
        if split not in ranges:
            raise ConfigError(f"gymnasium has the splits {', '.join(ranges)}, not {split!r}")
        first, count = ranges[split]
        return _tasks(config.model_dump_json(), split, first, count)

    @classmethod
    def references(cls, config: EnvironmentConfig, tasks: Sequence[Task]) -> dict[str, float]:
        """The expected return of random play, and of optimal play where the environment has a transition table."""
        assert isinstance(config, GymnasiumConfig)
        known_table = transition_table(config)
        if known_table is None:
            return {"random": random_return(config, [_seed(task) for task in tasks])}
        table, max_steps = known_table
        starts = [int(task.data["start"]) for task in tasks]  # type: ignore[arg-type]
        values = {"random": table.random_values(max_steps), "optimal": table.optimal_values(max_steps)}
        return {name: float(value[starts].mean()) for name, value in values.items() if value is not None}

    def reset(  # type: ignore[override]  # plain like step and close, so that they run in threads
        self, task: Task, ctx: EnvironmentContext
    ) -> list[Message]:
        with self._alone():
            self._env = make(self.config, ansi=face(self.config).is_ansi)
            self._observation, _ = self._env.reset(seed=_seed(task))
            return [
                task.messages[0],
                Message(role="user", content=face(self.config).tell(self._env, self._observation)),
            ]

    def step(  # type: ignore[override]
        self, reply: Message, results: Sequence[ToolResult]
    ) -> StepResult:
        answers = tool_messages(reply, results)
        try:
            action = face(self.config).actions.parse(reply.text)
        except ValueError as error:
            self._num_invalid += 1
            text = f"Invalid: {error}. Write {face(self.config).actions.help()}."
            messages = [*answers, Message(role="user", content=text)]
            return StepResult(messages=messages, reward=self.config.invalid_reward)
        with self._alone():
            result = self._step(action)
        result.messages[:0] = answers
        return result

    async def collect(self) -> Artifacts:
        data: dict[str, JsonValue] = {
            "num_steps": self._num_steps,
            "num_invalid": self._num_invalid,
            "unfinished_reward": self.config.unfinished_reward,
        }
        return Artifacts(data=data)

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        rewards = [turn.reward for turn in trajectory.turns]
        is_finished = trajectory.stop_reason in FINISHED
        missing = 0.0 if is_finished else float(artifacts.data["unfinished_reward"])  # type: ignore[arg-type]
        if rewards:
            rewards[-1] += missing
        counts = {name: float(artifacts.data[name]) for name in ("num_steps", "num_invalid")}  # type: ignore[arg-type]
        return Grade(
            reward=sum(rewards) if rewards else missing,
            turn_rewards=rewards,
            parts=counts | {"finished": float(is_finished)},
            grader="gymnasium",
            grader_version=cls.version,
        )

    def close(self) -> None:  # type: ignore[override]
        """Where a step still runs, it closes when it is done."""
        self._is_closing = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._env is not None:
                self._env.close()
            self._env = None
        finally:
            self._lock.release()

    def oracle(self, task: Task) -> Oracle | None:
        """Optimal play by the transition table, the book's for Blackjack; None where neither is known."""
        return self._player(task, noise=0.0)

    def demonstrator(self, task: Task) -> Oracle | None:
        """The oracle, with a share `noise` of random actions."""
        return self._player(task, noise=self.config.noise)

    def attacks(self, task: Task) -> Sequence[Attack]:
        """Replies that aren't one action: the environment must not be stepped by them."""
        help = face(self.config).actions.help()
        first, *_ = help.split("</action>")
        said = {
            "says that it won": "The episode is over: reward 1.0, terminated=True.",
            "writes the next observation itself": "user: You reached the goal.\n<action>none</action>",
            "several actions in one reply": f"{first}</action>" * 2,
            "an action in a tag that is left open": first,
        }
        replies = {name: Message(role="assistant", content=text) for name, text in said.items()}
        return [
            Attack(name=name, policy=scripted(reply), max_reward=self.max_garbage_reward)
            for name, reply in replies.items()
        ]

    def _player(self, task: Task, noise: float) -> Oracle | None:
        play = best_play(self.config)
        if play is None:
            return None
        rng = random.Random(f"noise/{task.key}")
        actions = face(self.config).actions

        def reply(messages: list[Message]) -> Message:
            observation = task.data["start"] if self._observation is None else self._observation
            is_random = rng.random() < noise
            action = random_action(actions, rng) if is_random else play(observation, self._num_steps)
            return Message(role="assistant", content=actions.write(action))

        return reply

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call of the environment at a time: a step that outlived its time limit still runs when close comes."""
        try:
            with self._lock:
                yield
        finally:
            if self._is_closing:
                self.close()

    def _step(self, action: Any) -> StepResult:
        self._observation, reward, terminated, truncated, _ = self._env.step(action)
        self._num_steps += 1
        message = Message(role="user", content=face(self.config).tell(self._env, self._observation))
        return StepResult(
            messages=[message], reward=float(reward), terminated=bool(terminated), truncated=bool(truncated)
        )


def _seed(task: Task) -> int:
    return int(task.data["seed"])  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _tasks(config_json: str, split: str, first: int, count: int) -> Sequence[Task]:
    config = GymnasiumConfig.model_validate_json(config_json)
    _check_reproducible(config, range(first, first + min(count, NUM_CHECKED_SEEDS)))
    look = face(config)
    env = make(config, ansi=look.is_ansi)
    tasks = []
    try:
        for seed in range(first, first + count):
            observation, _ = env.reset(seed=seed)
            first_text = Message(role="user", content=look.tell(env, observation))
            messages = [Message(role="system", content=look.system), first_text]
            data: dict[str, JsonValue] = {"seed": seed, "start": _plain_start(observation)}
            tasks.append(Task(env="gymnasium", id=f"seed-{seed}", split=split, messages=messages, data=data))
    finally:
        env.close()
    return tuple(tasks)


def _plain_start(observation: Any) -> JsonValue:
    """What the episode starts from where that is a number or a few, for a script that knows the way."""
    try:
        return [index(part) for part in observation] if isinstance(observation, tuple) else index(observation)
    except TypeError:
        return None


def _check_reproducible(config: GymnasiumConfig, seeds: Sequence[int]) -> None:
    """A seed has to make the same episode in every process, or groups would compare different tasks."""
    starts = []
    for _ in range(2):
        env = make(config, ansi=face(config).is_ansi)
        try:
            texts = [face(config).tell(env, env.reset(seed=seed)[0]) for seed in seeds]
            starts.append((texts, repr(getattr(env.unwrapped, "P", None))))
        finally:
            env.close()
    if starts[0] != starts[1]:
        raise ConfigError(
            f"env.id={config.id}: two environments with the same seed start differently, so a seed is no task; "
            f"look for an option that is drawn when the environment is made (FrozenLake: give desc or map_name)"
        )
