"""The checks of the contract suite, one function each. `agentrl.testing.contract` runs them."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import subprocess
import sys

from agentrl.environment import Environment, EnvironmentConfig, null_policy
from agentrl.testing.attacks import attacks_do_not_pay, garbage_pays_little
from agentrl.testing.episode import ContractError, Episode, called, ended, grade, in_thread
from agentrl.testing.players import silence, solver
from agentrl.testing.subject import SPLITS, TOLERANCE, Check, NotShown, Subject
from agentrl.testing.together import episodes_at_once_are_as_alone
from agentrl.types import Message, Task

PROCESS_TIMEOUT_S = 120.0


async def _tasks_are_data(subject: Subject) -> str:
    stage = subject.stage
    for split in SPLITS:
        stage.now = f"tasks({split!r})"
        tasks = await subject.make_tasks(split)
        subject.tasks[split] = tasks
        if not tasks:
            raise ContractError(f"there are no {split} tasks")
        ids = [task.id for task in tasks]
        double = next((id for id in ids if ids.count(id) > 1), None) if len(set(ids)) < len(ids) else None
        if double is not None:
            raise ContractError(f"two {split} tasks have the id {double!r}; an id is unique within a split")
        for task in tasks:
            _check_task(task, split, subject.name)
    return ", ".join(f"{len(subject.tasks[split])} {split}" for split in SPLITS)


def _check_task(task: Task, split: str, name: str | None) -> None:
    if task.split != split:
        raise ContractError(f"task {task.id!r} says split {task.split!r}, but was returned for {split!r}")
    if name is not None and task.env != name:
        raise ContractError(f"task {task.id!r} says env {task.env!r}; the environment is registered as {name!r}")
    if not any(message.text.strip() for message in task.messages):
        raise ContractError(f"task {task.id!r} has no messages with text")
    try:
        json.dumps(task.data, allow_nan=False)
        again = Task.model_validate_json(task.model_dump_json())
    except ValueError as error:
        raise ContractError(f"task {task.id!r} can't be stored as JSON: {error}") from None
    if again.key != task.key:
        raise ContractError(
            f"task {task.id!r} changes when it is stored as JSON; use strings, numbers, lists and dicts"
        )


async def _tasks_are_the_same_again(subject: Subject) -> str | None:
    stage = subject.stage
    stage.now = "tasks"
    for split in SPLITS:
        keys = [task.key for task in subject.tasks.get(split, [])]
        if keys != [task.key for task in await subject.make_tasks(split)]:
            raise ContractError(f"tasks({split!r}) differs when called again; draw from a seed in the config")
    mine = {split: [task.key for task in subject.tasks.get(split, [])] for split in SPLITS}
    theirs = await in_thread("tasks", lambda: _keys_elsewhere(stage.env_class, stage.options))
    if theirs is None:
        return "not asked in another process: the class can't be imported by name"
    if theirs != mine:
        raise ContractError(
            "another process gets other tasks; don't depend on hash(), the order of a set, time or files"
        )
    return None


_KEYS_CODE = """
import importlib, json, sys
module, name, splits, options = json.load(sys.stdin)
env = importlib.import_module(module)
for part in name.split("."):
    env = getattr(env, part)
options = env.Config.model_validate(options)
sys.stdout.write("\\n" + json.dumps({split: [task.key for task in env.tasks(options, split)] for split in splits}))
"""


def _keys_elsewhere(env_class: type[Environment], options: EnvironmentConfig) -> dict[str, list[str]] | None:
    """The tasks' keys as a fresh process sees them, with another hash seed; None where it can't import the class."""
    module, name = env_class.__module__, env_class.__qualname__
    if module == "__main__" or "<" in name:
        return None
    request = json.dumps([module, name, SPLITS, options.model_dump(mode="json")])
    path = os.pathsep.join(p or os.getcwd() for p in sys.path)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [sys.executable, "-P", "-c", _KEYS_CODE],
        input=request,
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        timeout=PROCESS_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        words = done.stderr.strip().splitlines()[-1:] or ["no output"]
        raise ContractError(f"in another process its tasks can't be made: {words[0]}")
    keys: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return keys


async def _splits_are_disjoint(subject: Subject) -> None:
    train, held_out = ({task.key: task.id for task in subject.tasks.get(split, [])} for split in SPLITS)
    common = sorted(train.keys() & held_out.keys())
    if common:
        raise ContractError(
            f"{len(common)} tasks are in both splits, e.g. train {train[common[0]]!r} is held_out "
            f"{held_out[common[0]]!r}; what is measured must not be trained on"
        )


async def _tools_are_described(subject: Subject) -> str:
    subject.stage.now = "__init__"
    tools = subject.stage.env_class(subject.stage.options).tools
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ContractError(f"two tools have one name: {', '.join(sorted(names))}")
    for tool in tools:
        if not tool.description.strip():
            raise ContractError(f"tool {tool.name} has no description; give its function a docstring")
        if json.loads(json.dumps(tool.schema)).get("type") != "object":
            raise ContractError(f"tool {tool.name}: its schema must be a JSON schema of an object")
    return ", ".join(names) or "no tools"


async def _silence_pays_nothing(subject: Subject) -> str:
    silent = silence(subject.stage.env_class)
    rewards = [await subject.play(silent, task) for task in subject.sample()]
    return f"at most {max(rewards):g} in {len(rewards)} episodes"


async def _the_oracle_is_paid(subject: Subject) -> str:
    stage, rewards = subject.stage, []
    for task in subject.sample():
        stage.now = "oracle"
        if stage.env_class(stage.options).oracle(task) is None:
            raise NotShown("it has no oracle, so that nothing could be solved here")
        rewards.append(await subject.play(solver(stage.env_class, task), task))
    return f"at least {min(rewards):g} in {len(rewards)} episodes"


async def _reset_follows_the_seed(subject: Subject) -> None:
    first, second = [await _first_messages(subject, subject.sample()[0]) for _ in range(2)]
    if first != second:
        raise ContractError("two resets with one seed began differently; draw from ctx.seed, which a group shares")


async def _first_messages(subject: Subject, task: Task) -> list[Message]:
    episode = Episode.of(subject.stage, task, seed=7)
    try:
        return await episode.reset()
    finally:
        await episode.close()


async def _a_step_can_be_cut_off(subject: Subject) -> None:
    """What happens at a time limit: `step` is cancelled wherever it stands, then the environment is closed."""
    episode = Episode.of(subject.stage, subject.sample()[0])
    try:
        await episode.reset()
        step = asyncio.ensure_future(called("step", episode.env.step, null_policy([]), []))
        await asyncio.sleep(0)
        if not step.done():
            await ended(step, "step")
        await asyncio.gather(step, return_exceptions=True)
    finally:
        await episode.close()


async def _close_works_at_any_time(subject: Subject) -> None:
    """A rollout whose reset fails is closed too."""
    await Episode.of(subject.stage, subject.sample()[0]).close()


async def _grades_can_be_repeated(subject: Subject) -> str:
    """From what is stored alone, after all those episodes are closed and others were played."""
    if not subject.played:
        raise ContractError("no episode was played to its end")
    honest = [one for one in subject.played if not one.player.is_hostile]
    for one in honest:
        trajectory, first = one.trajectory, one.grade
        stored = copy.deepcopy(trajectory)
        stored.task = Task.model_validate_json(trajectory.task.model_dump_json())
        second = await grade(subject.stage, stored)
        if abs((first.reward or 0.0) - (second.reward or 0.0)) > TOLERANCE:
            raise ContractError(
                f"task {trajectory.task.id} was graded {first.reward:g}, then {second.reward:g}; use only what grade "
                f"is given, and put what it needs into the artifacts in collect()"
            )
    return f"{len(honest)} episodes"


CHECKS: dict[str, Check] = {
    "tasks are there, and are JSON": _tasks_are_data,
    "the same config gives the same tasks": _tasks_are_the_same_again,
    "train and held_out have no task in common": _splits_are_disjoint,
    "tools have a name, a description and a schema": _tools_are_described,
    "saying nothing pays nothing": _silence_pays_nothing,
    "the oracle is paid": _the_oracle_is_paid,
    "episodes at once are as alone": episodes_at_once_are_as_alone,
    "attacks don't pay": attacks_do_not_pay,
    "garbage pays little": garbage_pays_little,
    "the same seed gives the same start": _reset_follows_the_seed,
    "a step can be cut off": _a_step_can_be_cut_off,
    "close works without reset": _close_works_at_any_time,
    "grades follow from what is stored": _grades_can_be_repeated,
}
"""In this order; the first gives the others their tasks."""
