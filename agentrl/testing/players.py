"""Who plays in the checks and in a validation: the oracle, and a policy that says nothing."""

from __future__ import annotations

from agentrl.environment import Environment, Oracle, null_policy
from agentrl.testing.subject import Player
from agentrl.types import Task


def silence(env_class: type[Environment]) -> Player:
    """Says nothing."""
    return Player(
        name="the null policy",
        policy=lambda env: null_policy,
        highest=env_class.max_null_reward,
        bound="max_null_reward",
    )


def solver(env_class: type[Environment], task: Task) -> Player:
    """The oracle of a task that has one."""

    def policy(env: Environment) -> Oracle:
        return env.oracle(task) or null_policy

    return Player(name="the oracle", policy=policy, lowest=env_class.min_oracle_reward, bound="min_oracle_reward")
