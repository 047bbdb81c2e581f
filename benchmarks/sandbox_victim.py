"""A process that plays episodes in boxes until it is killed: `python -m benchmarks.sandbox_victim CONFIG NUM`.

CONFIG: a SandboxConfig as JSON. It prints a line for each episode. Each agent leaves processes behind in its box, one
of them in a session of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys

from agentrl.config import LimitsConfig, SamplingConfig
from agentrl.config_sandbox import SandboxConfig
from agentrl.environment import EnvironmentConfig, EnvironmentContext, Oracle
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.loop import AgentLoop, RolloutSpec
from agentrl.rollout.unrendered import Unrendered
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.memory import MemoryRecorder
from agentrl.testing.toy import Toy
from agentrl.tool import ToolContext, tool
from agentrl.types import Artifacts, Grade, Message, Sample, Sampler, Task, ToolCall, Trajectory

IMAGE = os.environ.get("SOAK_IMAGE")
SPEC_BYTES = 256 * 1024**2
COMMAND = "(setsid sleep 86399 &) ; sleep 86399 & mkdir -p deep/er && echo done > deep/er/out"


@tool
async def shell(command: str, ctx: ToolContext) -> str:
    """Run a command."""
    assert ctx.sandbox is not None
    return (await (await ctx.sandbox.session()).run(command, timeout_s=30)).text


class Leaves(Toy):
    """One command that leaves processes, then a grade in a fresh box."""

    tools = (shell,)

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self.box: Sandbox | None = None

    def sandbox(self, task: Task) -> SandboxSpec:
        return SandboxSpec(image=IMAGE, memory_bytes=SPEC_BYTES, files={"seen.txt": b"x" * 1000})

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec:
        return SandboxSpec(image=IMAGE, memory_bytes=SPEC_BYTES)

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self.box = ctx.sandbox
        return task.messages

    async def collect(self) -> Artifacts:
        assert self.box is not None
        return Artifacts(files={"out": await self.box.read("deep/er/out")})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        assert ctx.sandbox is not None
        await ctx.sandbox.write("out", artifacts.files["out"])
        done = await ctx.sandbox.exec(["cat", "out"], timeout_s=30)
        return Grade(reward=float(done.text == "done\n"))

    def oracle(self, task: Task) -> Oracle:
        def reply(messages: list[Message]) -> Message:
            if messages[-1].role == "tool":
                return Message(role="assistant", content="done")
            call = ToolCall(id="0", name="shell", arguments=f'{{"command": "{COMMAND}"}}')
            return Message(role="assistant", tool_calls=[call])

        return reply


class Scripted:
    """A sampler that says what the oracle says, without a tokenizer."""

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        message = self.oracle(messages)
        return Generation(
            request_id=request_id, engine="scripted", ids=[], logprobs=[], spans=[], finish_reason="stop",
            sampler=Sampler.TEXT, message=message,
        )  # fmt: skip


async def main(config: SandboxConfig, num_episodes: int) -> None:
    async with Boxes(config, run=f"soak-{os.getppid()}") as boxes:
        loop = AgentLoop(
            env_class=Leaves, env_config=Toy.Config(), sampler=lambda env, trajectory: Scripted(env.oracle(task)),  # type: ignore[arg-type]
            renderer=Unrendered(), recorder=MemoryRecorder(), limits=LimitsConfig(tool_timeout_s=60.0),
            sampling=SamplingConfig(), window=2**31, boxes=boxes,
        )  # fmt: skip
        (task, *_) = Leaves.tasks(Toy.Config(), "train")
        slots = asyncio.Semaphore(config.max_boxes)

        async def play(number: int) -> None:
            async with slots:
                sample = await loop.run(RolloutSpec(run="soak", task=task, group=None, ordinal=number))
            print(f"episode {number} {_told(sample)}", flush=True)

        await asyncio.gather(*map(play, range(num_episodes)))


def _told(sample: Sample) -> str:
    """Its reward; where it isn't the highest, on the same line why."""
    calls = [call for turn in sample.trajectory.turns for call in turn.tool_calls]
    why = [sample.trajectory.error, sample.grade, *((call.status, call.result, call.seconds) for call in calls)]
    return str(sample.reward) if sample.reward == 1.0 else repr(why)


if __name__ == "__main__":
    asyncio.run(main(SandboxConfig.model_validate_json(sys.argv[1]), int(sys.argv[2])))
