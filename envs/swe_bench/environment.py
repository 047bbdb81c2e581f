"""The environment swe_bench: a repository, an issue, a shell; hidden tests decide.

::

    records ─SweTask─▶ the agent's box: tree set up, one commit, no history ─ bash, view, edit, search ─ submit
                          │ collect: a patch against that commit
                          ▼
                       the grader's box: the same tree, the patch, the task's tests ─▶ Grade
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from agentrl.environment import Attack, Environment, EnvironmentConfig, EnvironmentContext, Oracle, StepResult, scripted
from agentrl.envs.dataset_files import FilesConfig
from agentrl.envs.splits import of_split, split_of
from agentrl.envs.swe_bench import records, sources
from agentrl.envs.swe_bench.attacks import attacks_on
from agentrl.envs.swe_bench.data import MINI
from agentrl.envs.swe_bench.grade import Measured, measure
from agentrl.envs.swe_bench.prepare import Baseline, TaskError, ask, offer_pytest, prepare
from agentrl.envs.swe_bench.task import SweTask
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.tool import Tool, ToolResult
from agentrl.tools.bash import bash
from agentrl.tools.edit import edit
from agentrl.tools.search import search
from agentrl.tools.submit import submit
from agentrl.tools.view import view
from agentrl.types import Artifacts, CallStatus, Grade, Message, Task, ToolCall, Trajectory

ToolName = Literal["bash", "view", "edit", "search", "submit"]
TOOLS: dict[str, Tool] = {"bash": bash, "view": view, "edit": edit, "search": search, "submit": submit}
SYSTEM = (
    "You are in the folder of a repository. Solve the issue that the user tells of by changing its files. Tests that "
    "you don't see decide whether it is solved. The repository's own tests run with `{python} -m pytest`. "
    "There is no network. Call submit when you are done."
)
PATCH = "patch.diff"
COLLECT_S = 120.0
MARGIN_S = 2.0
"""Of a grade, kept for what comes after the tests."""
APPLIES_REWARD, FORMAT_ERROR_COST = 0.1, 0.05
FORMAT_ERRORS = (CallStatus.INVALID_JSON, CallStatus.UNKNOWN_TOOL, CallStatus.INVALID_ARGUMENTS)
VARIABLES = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_PAGER": "cat",
    "PAGER": "cat",
}
WITHOUT_IMAGE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""What happens to be installed on this machine has no say in how tests run."""


class SweBenchConfig(FilesConfig):
    """Options of the swe_bench environment."""

    takes_folders = True
    path: str | None = None
    """JSONL, Parquet or a dataset's folder; None: the tasks that come along."""
    format: str | None = None
    """The kind of record; None: recognised by the keys."""
    held_out_path: str | None = None
    """Tasks that are held out; None: a fraction of `path`."""
    held_out_fraction: float = Field(0.25, ge=0, le=1)
    """Which tasks are in it follows from a hash of each id, so it stays when tasks are added."""
    split_seed: int = 0
    tools: tuple[ToolName, ...] = ("bash", "view", "edit", "search", "submit")
    reward: Literal["resolved", "fraction", "shaped"] = "resolved"
    """resolved: 1 where all tests that decide pass, else 0. fraction: the share of the failing ones that pass now, 0
    where one is broken. shaped: resolved, 0.1 for a patch that applies, and 0.05 less for each malformed call."""
    grade_unsubmitted: bool = True
    """Without a submit, what there is at the end counts."""
    max_patch_bytes: int = Field(1024**2, gt=0)
    memory_bytes: int = Field(4 * 1024**3, gt=0)
    disk_bytes: int = Field(1024**3, gt=0)
    max_processes: int = Field(512, gt=0)
    cpus: float = Field(2.0, gt=0)


class SweBench(Environment):
    """One issue to solve."""

    Config = SweBenchConfig
    version = "1"
    config: SweBenchConfig

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        self.max_garbage_reward = APPLIES_REWARD if self.config.reward == "shaped" else 0.0
        self.tools: Sequence[Tool] = [TOOLS[name] for name in dict.fromkeys(self.config.tools)]
        self._task: SweTask | None = None
        self._box: Sandbox | None = None
        self._baseline: Baseline | None = None
        self._is_submitted = False

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """Raises ConfigError with file and line for what is no task."""
        assert isinstance(config, SweBenchConfig)
        tasks = _load(config.model_dump_json())
        return of_split("swe_bench", tasks, split, held_out_fraction=config.held_out_fraction)

    def sandbox(self, task: Task) -> SandboxSpec | None:
        """The repository. Neither the tests that decide nor the grader are in it."""
        box, swe = _box(task), swe_task(task)
        folders = ":".join(f"{swe.workdir}/{folder}" for folder in swe.python_path)
        return replace(box, environment={**box.environment, "PYTHONPATH": folders}) if folders else box

    @classmethod
    def grading_sandbox(cls, task: Task) -> SandboxSpec | None:
        return _box(task)

    async def reset(self, task: Task, ctx: EnvironmentContext) -> list[Message]:
        self._task, self._box = swe_task(task), _box_of(ctx)
        self._baseline = await prepare(self._box, self._task, ctx.deadline, for_agent=True)
        await offer_pytest(self._box, self._task, ctx.deadline)
        return task.messages

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        self._is_submitted |= any(result.terminated for result in results)
        return await super().step(reply, results)

    async def collect(self) -> Artifacts:
        """The patch, and how it is to be graded. Whatever the agent made of its box, it is its own doing."""
        assert self._task is not None and self._box is not None and self._baseline is not None
        config, baseline = self.config, self._baseline
        request: dict[str, Any] = {"do": "changes", "commit": baseline.commit, "copy": baseline.copy}
        request |= {"ignored": baseline.ignored, "max_bytes": config.max_patch_bytes}
        try:
            told, patch = await ask(self._box, self._task, request, time.monotonic() + COLLECT_S)
        except TaskError as error:
            told, patch = {"problem": f"no patch can be taken: {error}"}, b""
        data = {"baseline": baseline.commit, "submitted": self._is_submitted, "problem": told.get("problem")}
        data |= {"too_large": bool(told.get("too_large")), "reward": config.reward}
        return Artifacts(data=data | {"grade_unsubmitted": config.grade_unsubmitted}, files={PATCH: patch})

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        """Raises SandboxError and TaskError where nothing was measured."""
        data, patch = artifacts.data, artifacts.files.get(PATCH, b"")
        num_errors = sum(call.status in FORMAT_ERRORS for turn in trajectory.turns_of() for call in turn.tool_calls)
        mode = str(data["reward"])
        if (why := _not_gradable(data, patch)) is not None:
            parts = {"empty_patch": float(why == EMPTY), "patch_too_large": float(bool(data["too_large"]))}
            return cls._graded(mode, parts | NOTHING, num_errors, why)
        baseline = data["baseline"]
        assert baseline is None or isinstance(baseline, str)
        deadline = ctx.deadline - MARGIN_S
        measured = await measure(_box_of(ctx), swe_task(task), patch, baseline, deadline)
        return cls._graded(mode, _parts(measured), num_errors, measured.words())

    def oracle(self, task: Task) -> Oracle | None:
        """Applies the gold patch in the shell, and submits; None where the task has none, or a tool is missing."""
        swe = swe_task(task)
        if not swe.gold_patch or not {"bash", "submit"} <= set(self.config.tools):
            return None
        apply = apply_command(swe.gold_patch, is_reversed=swe.gold_is_reversed)
        return lambda messages: (
            _call("submit", {}) if messages[-1].role == "tool" else _call("bash", {"command": apply})
        )

    def attacks(self, task: Task) -> Sequence[Attack]:
        """Cheats that are played in the shell; none where a tool is missing for that."""
        if not {"bash", "submit"} <= set(self.config.tools):
            return ()
        commands = attacks_on(swe_task(task)).items()
        return [
            Attack(
                name=name,
                policy=scripted(_call("bash", {"command": command}), _call("submit", {})),
                max_reward=self.max_garbage_reward,
            )
            for name, command in commands
        ]

    @classmethod
    def _graded(cls, mode: str, parts: dict[str, float], num_errors: int, output: str) -> Grade:
        parts = parts | {"format_errors": float(num_errors)}
        reward = _reward(mode, parts)
        return Grade(reward=reward, parts=parts, grader="swe_bench", grader_version=cls.version, output=output)


EMPTY = "nothing was changed"
END_OF_PATCH = "END"
NOTHING = dict.fromkeys(
    ("resolved", "fail_to_pass", "pass_to_pass", "patch_applies", "tampered", "tests_timed_out"), 0.0
)


def swe_task(task: Task) -> SweTask:
    """What the dataset's reader made."""
    return SweTask.model_validate(task.data["task"])


def apply_command(patch: str, *, is_reversed: bool = False) -> str:
    """What applies a patch in the shell: a text as it is, so that a model can imitate it, and all else encoded."""
    apply = f"git apply --whitespace=nowarn {'-R ' if is_reversed else ''}-"
    lines = patch.split("\n")
    if lines[-1] == "" and all(line.replace("\t", "").isprintable() for line in lines) and END_OF_PATCH not in lines:
        return f"{apply} <<'{END_OF_PATCH}'\n{patch}{END_OF_PATCH}"
    text = base64.b64encode(patch.encode("utf-8", "surrogateescape")).decode()
    return f"echo {text} | base64 -d | {apply}"


def _not_gradable(data: dict[str, Any], patch: bytes) -> str | None:
    if data["problem"] is not None:
        return str(data["problem"])
    if not data["submitted"] and not data["grade_unsubmitted"]:
        return "it was not submitted (env.grade_unsubmitted=false)"
    return None if patch else EMPTY


def _parts(measured: Measured) -> dict[str, float]:
    verdict, report = measured.verdict, measured.report
    return NOTHING | {
        "resolved": float(verdict.resolved),
        "fail_to_pass": verdict.fail_to_pass,
        "pass_to_pass": verdict.pass_to_pass,
        "patch_applies": float(measured.applied_by is not None),
        "tampered": float(report.tampered is not None),
        **report.parts,
    }


def _reward(mode: str, parts: dict[str, float]) -> float:
    if parts["tampered"]:
        return 0.0
    if mode == "fraction":
        return parts["fail_to_pass"] if parts["pass_to_pass"] == 1.0 else 0.0
    if mode == "shaped":
        return parts["resolved"] + APPLIES_REWARD * parts["patch_applies"] - FORMAT_ERROR_COST * parts["format_errors"]
    return parts["resolved"]


def _box(task: Task) -> SandboxSpec:
    swe, limits = swe_task(task), task.data["box"]
    assert isinstance(limits, dict)
    base = sources.folder_of(swe.source) if swe.image is None and swe.source is not None else None
    has_image = swe.image is not None
    return SandboxSpec(
        image=swe.image, base=base, workdir=swe.workdir, writable_root=has_image,
        environment=VARIABLES | ({} if has_image else WITHOUT_IMAGE), **limits,  # type: ignore[arg-type]
    )  # fmt: skip


def _box_of(ctx: EnvironmentContext) -> Sandbox:
    if ctx.sandbox is None:
        raise RuntimeError("swe_bench needs a box, and there is none")
    return ctx.sandbox


def _call(name: str, arguments: dict[str, str]) -> Message:
    call = ToolCall(id=f"call_{name}", name=name, arguments=json.dumps(arguments))
    return Message(role="assistant", tool_calls=[call])


@lru_cache(maxsize=4)
def _load(config_json: str) -> tuple[Task, ...]:
    config = SweBenchConfig.model_validate_json(config_json)
    if config.held_out_path is None:
        loaded = records.load(config.path or MINI, config.format)
        return tuple(make_task(config, task, _split(config, task)) for task in loaded)
    held_out = {task.id: task for task in records.load(config.held_out_path, config.format)}
    train = [task for task in records.load(config.path or MINI, config.format) if task.id not in held_out]
    tasks = [make_task(config, task, "train") for task in train]
    return (*tasks, *(make_task(config, task, "held_out") for task in held_out.values()))


def _split(config: SweBenchConfig, task: SweTask) -> str:
    return split_of(task.id, seed=config.split_seed, held_out_fraction=config.held_out_fraction)


def make_task(config: SweBenchConfig, task: SweTask, split: str) -> Task:
    """What an episode is about, with all that its grade needs."""
    limits = {name: getattr(config, name) for name in ("memory_bytes", "disk_bytes", "max_processes", "cpus")}
    messages = [
        Message(role="system", content=SYSTEM.format(python=task.python)),
        Message(role="user", content=task.problem_statement),
    ]
    data = {"task": sources.without_place(task).model_dump(mode="json"), "box": limits}
    return Task(env="swe_bench", id=task.id, split=split, messages=messages, data=data)
