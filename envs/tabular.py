"""Exact play where an environment has a transition table: what random and optimal play are worth, and how to play.

Value iteration without discount (Sutton and Barto, Reinforcement Learning: An Introduction, 2nd edition, section 4.4;
policy evaluation: section 4.1)::

    V_0(s) = 0,   V_k+1(s) = pick_a  Σ_(p, s', r, done) P(s, a):  p · (r + (0 if done else V_k(s')))

with `pick` = max for optimal play and mean for random play. V_H is exact for an episode that is cut after H steps.
Without such a limit the sweeps go on until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
MAX_SWEEPS = 200_000
"""For episodes without a limit; values that still grow by then have no limit either."""
TOLERANCE = 1e-9
UNLIMITED_STEPS = 1000
"""What a policy looks ahead where episodes have no limit."""
STEP_COST = 1e-6
"""A cost per step by which the shorter of two equally good ways is told; far below any reward."""


class Table:
    """`P` of a gymnasium environment as arrays: [state, action, outcome]."""

    def __init__(self, transitions: dict[int, dict[int, list[tuple[Any, ...]]]]) -> None:
        """`transitions[state][action]` = [(probability, next state, reward, done), …]."""
        num_states, num_actions = len(transitions), len(transitions[0])
        num_outcomes = max(len(outcomes) for actions in transitions.values() for outcomes in actions.values())
        shape = (num_states, num_actions, num_outcomes)
        self.probability, self.reward, self.goes_on = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self.next_state = np.zeros(shape, dtype=np.int64)
        for state, actions in transitions.items():
            for action, outcomes in actions.items():
                for place, (probability, next_state, reward, done) in enumerate(outcomes):
                    self.probability[state, action, place] = probability
                    self.next_state[state, action, place] = next_state
                    self.reward[state, action, place] = reward
                    self.goes_on[state, action, place] = not done

    def optimal_values(self, max_steps: int | None) -> Values | None:
        """[state]: the expected return of optimal play; None where it has no limit."""
        return self._sweep(lambda worth: worth.max(axis=1), max_steps)

    def random_values(self, max_steps: int | None) -> Values | None:
        """[state]: the expected return of actions drawn at random; None where it has no limit."""
        return self._sweep(lambda worth: worth.mean(axis=1), max_steps)

    def policy(self, max_steps: int | None) -> list[NDArray[np.int64]]:
        """[steps left - 1][state]: the action of optimal play; of equally good ones, a shortest way.

        Without a limit the last entry is for any number of steps.
        """
        values = np.zeros(len(self.probability))
        actions: list[NDArray[np.int64]] = []
        for _ in range(max_steps or UNLIMITED_STEPS):
            worth = self._worth(values, STEP_COST)
            values = worth.max(axis=1)
            actions.append(worth.argmax(axis=1))
        return actions

    def _worth(self, values: Values, step_cost: float = 0.0) -> Values:
        """[state, action]: expected return of an action, then of what `values` says."""
        after = self.reward - step_cost + self.goes_on * values[self.next_state]
        worth: Values = (self.probability * after).sum(axis=2)
        return worth

    def _sweep(self, pick: Callable[[Values], Values], max_steps: int | None) -> Values | None:
        values = np.zeros(len(self.probability))
        for _ in range(max_steps or MAX_SWEEPS):
            before, values = values, pick(self._worth(values))
            if np.abs(values - before).max() <= TOLERANCE * (1 + np.abs(values).max()):
                return values
        return values if max_steps else None
