"""Is the number of ones in a row of bits even or odd?"""

from __future__ import annotations

import random

from acme_envs.parity.tools import count_ones
from pydantic import Field

from agentrl.environment import Environment, EnvironmentConfig
from agentrl.types import Grade, Message, Task, ToolCall


class ParityConfig(EnvironmentConfig):
    """Options of the parity environment."""

    bits: int = Field(12, ge=5, le=16)
    num_tasks: int = Field(16, ge=1, le=16)


class Parity(Environment):
    """Half of the reward for the answer, half for a reply that is neither empty nor long.

    The second half is what lets a model without any training have samples of different reward.
    """

    Config = ParityConfig
    version = "3"
    yaml = "configs/parity.yaml"
    tools = (count_ones,)

    @classmethod
    def tasks(cls, config, split):
        # Rows that begin with 1 are held out, so that no row is in both splits.
        first = {"train": "0", "held_out": "1"}[split]
        numbers = random.Random(f"parity/{config.bits}").sample(range(2 ** (config.bits - 1)), config.num_tasks)
        rows = [f"{first}{number:0{config.bits - 1}b}" for number in numbers]
        return [
            Task(
                env="parity",
                id=row,
                split=split,
                messages=[Message(role="user", content=f"Is the number of ones in {row} even or odd?")],
                data={"answer": "odd" if row.count("1") % 2 else "even"},
            )
            for row in rows
        ]

    @classmethod
    async def grade(cls, task, trajectory, artifacts, ctx):
        said = trajectory.turns[-1].message.text if trajectory.turns else ""
        form = max(0.0, 1 - abs(len(said) - 4) / 40) if said else 0.0
        right = float(said == task.data["answer"])
        parts = {"right": right, "form": form}
        return Grade(reward=0.5 * right + 0.5 * (1.0 if right else form), parts=parts, grader="parity")

    def oracle(self, task):
        def reply(messages):
            if messages[-1].role == "tool":
                return Message(role="assistant", content="odd" if int(messages[-1].text) % 2 else "even")
            call = ToolCall(id="call_0", name="count_ones", arguments=f'{{"bits": "{task.id}"}}')
            return Message(role="assistant", tool_calls=[call])

        return reply
