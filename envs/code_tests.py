"""Write a function that passes tests: HumanEval's 164 tasks, or JSONL of one's own.

The agent may try its code in a box, against the public tests too. What it hands in is tested in a fresh box, with
the hidden tests in a process that the code can't reach; see `agentrl.envs.code_tests_judge`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from agentrl.environment import Attack, Environment, EnvironmentConfig, EnvironmentContext, Oracle, StepResult, scripted
from agentrl.envs.code_tests_attacks import LEAVES_FILES, attacks_on
from agentrl.envs.code_tests_box import Trial, Verdict, try_code
from agentrl.envs.code_tests_tasks import Problem, human_eval, read
from agentrl.envs.dataset_files import FilesConfig
from agentrl.envs.splits import of_split, split_of
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.tool import Tool, ToolContext, ToolResult, tool
from agentrl.tools.bash import bash
from agentrl.tools.python import python
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory

ToolName = Literal["python", "bash", "run_public_tests", "submit"]
WITH_TOOLS = (
    "Write the Python function that is asked for. Try it out with the tools. Hand in the whole code with submit."
)
WITHOUT_SUBMIT = "Write the Python function that is asked for. Reply with the whole code in one ```python block."
MEMORY_BYTES = 1024**3
MAX_CODE_CHARACTERS = 100_000
MAX_TESTS_TIME_S = 60.0
"""Of all tests of a grade, where limits.grade_timeout_s leaves so much."""
MARGIN_S = 3.0
"""Kept for what comes before the tests and after them."""
MAX_SHOWN_FAILURES = 5
_BLOCK = re.compile(r"^```[^\n`]*\n(.*?)^```", re.M | re.S)


class CodeTestsConfig(FilesConfig):
    """Options of the code_tests environment."""

    path: str | None = None
    """JSONL; None: HumanEval."""
    held_out_fraction: float = Field(0.25, ge=0, le=1)
    """Which tasks are in it follows from a hash of each prompt, so it stays when lines are added."""
    split_seed: int = 0
    tools: tuple[ToolName, ...] = ("python", "run_public_tests", "submit")
    """Without submit, the last code block of the last reply is graded."""
    reward: Literal["binary", "fraction"] = "binary"
    """1 where all hidden tests pass, else 0; or the share of them that pass."""
    test_timeout_s: float = Field(5.0, gt=0)
    """Of one test."""
    image: str | None = None
    """A container image with python3; None: what the backend offers."""


class CodeTests(Environment):
    """One function to write."""

    Config = CodeTestsConfig
    version = "1"
    max_garbage_reward = 0.0
    config: CodeTestsConfig

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        known = {
            "python": python,
            "bash": bash,
            "run_public_tests": tool(self.run_public_tests),
            "submit": tool(self.submit),
        }
        self.tools: Sequence[Tool] = [known[name] for name in dict.fromkeys(self.config.tools)]
        self._task: Task | None = None
        self._code: str | None = None
        self._last_reply = ""

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """Raises ConfigError with file and line for what is no task."""
        assert isinstance(config, CodeTestsConfig)
        tasks = _load(config.model_dump_json())
        return of_split("code_tests", tasks, split, held_out_fraction=config.held_out_fraction)

    def sandbox(self, task: Task) -> SandboxSpec | None:
        """A box where a tool needs one. No test is in it."""
        works_in_box = set(self.config.tools) - {"submit"}
        return SandboxSpec(image=self.config.image, memory_bytes=2 * MEMORY_BYTES) if works_in_box else None

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec | None:
        image = task.data["image"]
        assert image is None or isinstance(image, str)
        return SandboxSpec(image=image, memory_bytes=2 * MEMORY_BYTES, max_processes=64)

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self._task = task
        return task.messages

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        self._last_reply = reply.text
        return await super().step(reply, results)

    async def collect(self) -> Artifacts:
        """What was handed in, else the last code block of the last reply; and how it is to be graded."""
        blocks = _BLOCK.findall(self._last_reply)
        code = self._code if self._code is not None else blocks[-1] if blocks else ""
        config = self.config
        how = {"reward": config.reward, "test_timeout_s": config.test_timeout_s}
        return Artifacts(data={"code": code[:MAX_CODE_CHARACTERS], **how})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        code, data = str(artifacts.data["code"]), artifacts.data
        if not code.strip():
            return cls._graded(0.0, "nothing was handed in", passed=0.0, handed_in=0.0)
        if ctx.sandbox is None:
            raise RuntimeError("grading needs a box, and there is none")
        await ctx.sandbox.exec(["python3", "-c", ""], timeout_s=MAX_TESTS_TIME_S)  # it works, as long as it is empty
        trial = _trial(task, code, "tests", float(str(data["test_timeout_s"])), ctx.deadline)
        try:
            verdict = await try_code(ctx.sandbox, trial)
        except SandboxError as error:
            if error.kind not in (SandboxFault.DIED, SandboxFault.CHANNEL):
                raise
            return cls._graded(0.0, f"the code ended the box: {error}", passed=0.0, handed_in=1.0)
        return cls._measured(verdict, is_binary=data["reward"] == "binary")

    def oracle(self, task: Task) -> Oracle | None:
        """Hands in the canonical solution; None where the task has none."""
        code = task.data["canonical_solution"]
        if code is None:
            return None
        return lambda messages: self._handing_in(str(code))

    def attacks(self, task: Task) -> Sequence[Attack]:
        """Wrong code that tries to pass all the same, in the box of its tests and in the one before."""
        codes = attacks_on(str(task.data["entry_point"]), may_return=self.config.reward == "binary")
        found = [Attack(name=name, policy=scripted(self._handing_in(code))) for name, code in codes.items()]
        if "python" in self.config.tools:
            call = ToolCall(id="call_1", name="python", arguments=json.dumps({"code": LEAVES_FILES}))
            left = Message(role="assistant", tool_calls=[call])
            replies = [left, self._handing_in("raise ValueError\n")]
            found.append(Attack(name="leaves modules of its own behind", policy=scripted(*replies)))
        return found

    def _handing_in(self, code: str) -> Message:
        if "submit" not in self.config.tools:
            return Message(role="assistant", content=f"```python\n{code}\n```")
        call = ToolCall(id="call_0", name="submit", arguments=json.dumps({"code": code}))
        return Message(role="assistant", tool_calls=[call])

    async def run_public_tests(self, code: str, ctx: ToolContext) -> str:
        """Run the public tests on your code, the whole of it. There are further tests in the end."""
        assert self._task is not None and ctx.sandbox is not None
        if not self._task.data["public_tests"]:
            return "This task has no public tests."
        trial = _trial(self._task, code, "public_tests", self.config.test_timeout_s, ctx.deadline)
        verdict = await try_code(ctx.sandbox, trial)
        failed = [message for message in verdict.messages if message]
        text = f"{sum(verdict.passed)} of {len(verdict.passed)} public tests passed."
        return "\n".join([text, *(f"failed: {message}" for message in failed[:MAX_SHOWN_FAILURES])])

    async def submit(self, code: str) -> ToolResult:
        """Hand in your code, the whole of it. This ends the episode."""
        self._code = code
        return ToolResult(content="Handed in.", terminated=True)

    @classmethod
    def _measured(cls, verdict: Verdict, *, is_binary: bool) -> Grade:
        failures = [f"test {number}: {text}" for number, text in enumerate(verdict.messages) if text]
        text = f"{sum(verdict.passed)} of {len(verdict.passed)} hidden tests passed"
        reward = float(all(verdict.passed)) if is_binary else verdict.share
        return cls._graded(reward, "\n".join([text, *failures]), passed=verdict.share, handed_in=1.0)

    @classmethod
    def _graded(cls, reward: float, output: str, **parts: float) -> Grade:
        return Grade(reward=reward, parts=parts, grader="code_tests", grader_version=cls.version, output=output)


def _trial(task: Task, code: str, tests: str, test_timeout_s: float, deadline: float) -> Trial:
    data = task.data
    chosen = data[tests]
    assert isinstance(chosen, list)
    return Trial(
        prompt=str(data["prompt"]),
        entry_point=str(data["entry_point"]),
        code=code,
        tests=[str(test) for test in chosen],
        test_timeout_s=test_timeout_s,
        total_timeout_s=max(1.0, min(MAX_TESTS_TIME_S, deadline - time.monotonic() - MARGIN_S)),
        memory_bytes=MEMORY_BYTES,
    )


@lru_cache(maxsize=4)
def _load(config_json: str) -> tuple[Task, ...]:
    """Keyed by the whole config, which holds the file's hash."""
    config = CodeTestsConfig.model_validate_json(config_json)
    problems = human_eval() if config.path is None else read(Path(config.path).expanduser())
    return tuple({task.key: task for task in (_task(config, problem) for problem in reversed(problems))}.values())[::-1]


def _task(config: CodeTestsConfig, problem: Problem) -> Task:
    system = WITH_TOOLS if "submit" in config.tools else WITHOUT_SUBMIT
    data = problem.model_dump(exclude={"id"}) | {"image": config.image, "canonical_solution": problem.whole_solution()}
    return Task(
        env="code_tests",
        id=problem.id,
        split=split_of(problem.prompt, seed=config.split_seed, held_out_fraction=config.held_out_fraction),
        messages=[Message(role="system", content=system), Message(role="user", content=problem.prompt)],
        data=data,
    )
