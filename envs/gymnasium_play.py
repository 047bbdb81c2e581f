"""Makes gymnasium environments from options, and plays them at random or as well as is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, JsonValue

from agentrl.environment import EnvironmentConfig
from agentrl.envs.gymnasium_actions import Actions
from agentrl.envs.gymnasium_text import check_observations, describe, known, plain_text
from agentrl.envs.tabular import Table
from agentrl.errors import ConfigError

Play = Callable[[Any, int], int]
"""(observation, steps done) → action."""
MAX_RANDOM_EPISODES = 200
MAX_RANDOM_STEPS = 1000
"""Of a random episode whose environment sets no limit."""


class GymnasiumConfig(EnvironmentConfig):
    """Options of the gymnasium environment."""

    id: str = "FrozenLake-v1"
    """As `gymnasium.make` takes it; `module:Id-v0` imports the module that registers it."""
    kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Passed to `gymnasium.make`, e.g. env.kwargs.is_slippery=false."""
    text: Literal["auto", "ansi", "observation"] = "auto"
    """What the model reads: the terminal rendering, or the observation; auto: the rendering where there is one."""
    actions: tuple[str, ...] = ()
    """Names of a Discrete space's actions, in order; empty: the known names, else numbers."""
    system: str | None = None
    """System message; None: the rules that are known, and how to write an action."""
    max_steps: int | None = Field(None, ge=1)
    """Steps before the environment cuts an episode off; None: its own limit."""
    invalid_reward: float = 0.0
    """Reward of a turn without a valid action."""
    unfinished_reward: float = 0.0
    """Added where an episode ends in another way than by the environment (limits, a reply that was cut)."""
    train_tasks: int = Field(1024, ge=1, le=1_000_000)
    held_out_tasks: int = Field(300, ge=1, le=1_000_000)
    first_seed: int = Field(0, ge=0, le=100_000_000)
    noise: float = Field(0.3, ge=0, le=1)
    """Share of random actions in what `agentrl sft` imitates; what is left for RL to correct."""


class Face:
    """What the model meets: how observations read, and how actions are written."""

    def __init__(self, config: GymnasiumConfig) -> None:
        """Raises ConfigError where the options don't make an environment that can be played in text."""
        self.id = config.id
        env = make(config)
        modes = env.metadata.get("render_modes") or []
        self.is_ansi = config.text == "ansi" or (config.text == "auto" and "ansi" in modes)
        try:
            if self.is_ansi and "ansi" not in modes:
                raise ValueError(f"{config.id} has no ansi rendering, only {', '.join(modes)}; leave env.text out")
            if not self.is_ansi:
                check_observations(config.id, env.observation_space)
            facts = known(config.id)
            names = config.actions or (facts.actions if facts else ())
            self.actions = Actions.of(config.id, env.action_space, names)
        except ValueError as error:
            raise ConfigError(f"environment gymnasium: {error}") from None
        finally:
            env.close()
        rules = f"{facts.rules} " if facts else ""
        self.system = config.system or f"You play {config.id}. {rules}Reply with {self.actions.help()}."

    def tell(self, env: Any, observation: Any) -> str:
        """What the model reads."""
        if not self.is_ansi:
            return describe(self.id, observation)
        text = plain_text(env.render())
        return f"{text}\n{describe(self.id, observation)}" if self.id.startswith("Taxi-v") else text


def make(config: GymnasiumConfig, *, ansi: bool = False) -> Any:
    """A gymnasium environment. Raises ConfigError with gymnasium's own reason."""
    try:
        import gymnasium
    except ImportError:
        raise ConfigError("gymnasium is missing; install it with: pip install 'agentrl[gymnasium]'") from None
    options: dict[str, Any] = {"max_episode_steps": config.max_steps, "disable_env_checker": True}
    if ansi:
        options["render_mode"] = "ansi"
    try:
        return gymnasium.make(config.id, **_merged(options, config.kwargs))
    except Exception as error:  # an environment's constructor may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"env.id={config.id}: {reason}") from error


def face(config: GymnasiumConfig) -> Face:
    """Made once for a config."""
    return _face(config.model_dump_json())


def best_play(config: GymnasiumConfig) -> Play | None:
    """Optimal play where there is a transition table, the book's for Blackjack; None: not known."""
    facts = known(config.id)
    if facts is not None and facts.actions == ("stick", "hit"):
        return blackjack
    table = transition_table(config)
    return None if table is None else _optimal(config.model_dump_json())


def transition_table(config: GymnasiumConfig) -> tuple[Table, int | None] | None:
    """The table, and the steps before an episode is cut off; None where there is no table that holds."""
    return _table(config.model_dump_json())


def random_action(actions: Actions, rng: random.Random) -> int:
    """Of a Discrete space."""
    low, high = actions.ranges[0]
    return rng.randint(int(low), int(high))


def random_return(config: GymnasiumConfig, seeds: Sequence[int]) -> float:
    """Mean return of random episodes, one per seed."""
    env = make(config)
    try:
        returns = [_random_episode(env, seed) for seed in seeds[:MAX_RANDOM_EPISODES]]
    finally:
        env.close()
    return sum(returns) / len(returns)


def blackjack(observation: Any, num_steps: int) -> int:
    """Stick (0) or hit (1), after Sutton and Barto, Reinforcement Learning, 2nd edition, figure 5.2.

    `observation` = (own sum, the dealer's card with 1 for an ace, usable ace).
    """
    total, dealer, has_ace = (int(value) for value in observation)
    if has_ace:
        sticks = total >= 19 or (total == 18 and 2 <= dealer <= 8)
    else:
        sticks = total >= 17 or (total >= 13 and 2 <= dealer <= 6) or (total == 12 and 4 <= dealer <= 6)
    return 0 if sticks else 1


def _merged(options: dict[str, Any], kwargs: dict[str, JsonValue]) -> dict[str, Any]:
    if ours := sorted({*options, "render_mode"} & set(kwargs)):
        raise ValueError(f"env.kwargs.{ours[0]} can't be given; see env.text and env.max_steps")
    return options | kwargs


def _random_episode(env: Any, seed: int) -> float:
    env.reset(seed=seed)
    env.action_space.seed(seed)
    total = 0.0
    for _ in range(MAX_RANDOM_STEPS):
        _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        total += float(reward)
        if terminated or truncated:
            break
    return total


@lru_cache(maxsize=16)
def _face(config: str) -> Face:
    return Face(GymnasiumConfig.model_validate_json(config))


@lru_cache(maxsize=16)
def _table(config: str) -> tuple[Table, int | None] | None:
    env = make(GymnasiumConfig.model_validate_json(config))
    try:
        transitions: Any = getattr(env.unwrapped, "P", None)
        is_whole = isinstance(transitions, dict) and len(transitions) == getattr(env.observation_space, "n", None)
        # A passenger who changes the destination on the way isn't in Taxi's table.
        if not is_whole or getattr(env.unwrapped, "fickle_passenger", False):
            return None
        return Table(transitions), env.spec.max_episode_steps
    finally:
        env.close()


@lru_cache(maxsize=16)
def _optimal(config: str) -> Play:
    known_table = _table(config)
    assert known_table is not None
    table, max_steps = known_table
    by_steps_left = table.policy(max_steps)

    def play(observation: Any, num_steps: int) -> int:
        place = len(by_steps_left) - 1 - (num_steps if max_steps else 0)
        return int(by_steps_left[max(place, 0)][int(observation)])

    return play
