"""`agentrl env validate` finds tasks that can't be trusted, and `tasks.exclude` leaves them out everywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.config import RunConfig
from agentrl.environment import EnvironmentConfig, EnvironmentContext
from agentrl.errors import ConfigError, SandboxError, SandboxFault
from agentrl.progress import Silent
from agentrl.run_folder import open_run
from agentrl.tasks import load_tasks, num_excluded
from agentrl.testing.toy import Toy, repeat
from agentrl.types import Artifacts, Grade, Message, Task, Trajectory
from tests.excluding import line_of


class Mixed(Toy):
    """Of four tasks one is paid for silence, one never, one now and then."""

    num_graded = 0
    num_faults = 0
    tools = (repeat,)

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        cls.num_graded += task.id == "train-2"
        if task.id == "train-3" and cls.num_faults:
            cls.num_faults -= 1
            raise SandboxError("the box died", kind=SandboxFault.DIED)
        grade = await super().grade(task, trajectory, artifacts, ctx)
        flaky = float(grade.reward == 1.0 and cls.num_graded % 2)
        reward = {"train-0": 1.0, "train-1": 0.0, "train-2": flaky}.get(task.id, grade.reward)
        return Grade(reward=reward, output="two tests were run\n2 failed, as said by the clock\n")


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> type[Mixed]:
    monkeypatch.setattr(plugins, "environment", lambda name: Mixed)
    Mixed.num_graded, Mixed.num_faults = 0, 0
    return Mixed


def validated(*words: str) -> int:
    return main(["env", "validate", "toy", "--repeat", "4", *words])


def test_h10_broken_and_flaky_tasks_are_listed_with_their_reasons_and_left_out(
    mixed: type[Mixed], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert validated() == 1
    out = capsys.readouterr().out
    assert "✗ train-0 (train): the null policy is paid 1 where at most 0 (max_null_reward) is due" in out
    assert (
        "✗ train-1 (train): the oracle is paid 0 where at least 1 (min_oracle_reward) is due; the grader says: 2" in out
    )
    assert "✗ train-2 (train): flaky, wrong " in out and " of 4 times: the oracle is paid 0" in out
    assert "8 of 8 tasks" in out and "2 broken; 1 flaky" in out

    file = tmp_path / "bad tasks.jsonl"
    assert validated("--write", str(file)) == 0
    assert f"tasks.exclude={file}" in capsys.readouterr().out
    listed = [json.loads(line) for line in file.read_text().splitlines()]
    tasks = {task.id: task for task in load_tasks(load_config("toy"), "train")}
    assert {one["id"]: one["key"] for one in listed} == {id: tasks[id].key for id in ("train-0", "train-1", "train-2")}
    assert all(one["split"] == "train" and one["reason"] for one in listed)

    config = load_config("toy", [f"tasks.exclude='{file}'"])
    assert [task.id for task in load_tasks(config, "train")] == ["train-3"]
    assert [task.id for task in load_tasks(config, "held_out")] == [f"held_out-{number}" for number in range(4, 8)]
    assert num_excluded(config) == {"train": 3, "held_out": 0} and num_excluded(load_config("toy")) == {}
    assert validated(f"tasks.exclude='{file}'", "--split", "train") == 0


def test_what_the_machine_spoils_is_played_again_and_never_blamed_on_the_task(
    mixed: type[Mixed], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.jsonl"
    mixed.num_faults = 2
    assert validated("--write", str(file)) == 0
    mixed.num_faults = 99
    assert validated("--write", str(file)) == 1
    out = capsys.readouterr().out
    assert "? train-3 (train): not measured: grade raised SandboxError: the box died" in out and "1 not measured" in out
    assert "train-3" not in file.read_text()


def test_without_an_oracle_only_silence_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class NoOracle(Toy):
        def oracle(self, task: Task) -> Any:
            return None

    monkeypatch.setattr(plugins, "environment", lambda name: NoOracle)
    assert validated() == 0 and "8 without an oracle" in capsys.readouterr().out


class Whole(Toy):
    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        return [Task(env="toy", id=split, split=split, messages=[Message(role="user", content=split)])]


def test_a_list_that_is_none_or_of_other_tasks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: Whole)
    file = tmp_path / "list.jsonl"
    config = [f"tasks.exclude={file}"]
    with pytest.raises(ConfigError, match=r"list.jsonl: No such file .*agentrl env validate NAME --write FILE"):
        load_config("toy", config)
    file.write_text('{"key": "1"}\n')
    with pytest.raises(ConfigError, match=r"tasks.exclude=.*list.jsonl:1: id: Field required; a line is"):
        load_tasks(load_config("toy", config), "train")
    file.write_text(line_of(Task(env="toy", id="other", split="train", messages=[])))
    with pytest.raises(ConfigError, match="none of its 1 tasks is one of environment 'toy'"):
        num_excluded(load_config("toy", config))
    file.write_text(line_of(Whole.tasks(EnvironmentConfig(), "train")[0]))
    with pytest.raises(ConfigError, match="all 1 train tasks are in it"):
        load_tasks(load_config("toy", config), "train")
    stored = load_config("toy", config).public()
    file.write_text("")
    with pytest.raises(ValueError, match="another list than exclude_sha256 says"):
        load_config("toy").of_stored(stored, "x.db")
    file.unlink()
    replayed = load_config("toy").of_stored(stored, "x.db", for_replay=True)
    assert replayed.tasks.model_dump() == stored["tasks"]


async def test_a_run_skips_the_list_and_says_how_many(tmp_path: Path) -> None:
    size = ["env.level=1", "env.train_tasks=3", "env.held_out_tasks=3", f"runs_dir={tmp_path}"]
    first, second, third = load_tasks(load_config("calculator", size), "train")
    file = tmp_path / "bad.jsonl"
    file.write_text(line_of(first) + line_of(second))
    config = load_config("calculator", [*size, f"tasks.exclude={file}"])
    async with open_run(config, "rollout", Silent()) as run:
        assert run.tasks("train") == [third]
        assert run.store.find_run(run.id).config["num_excluded"] == {"train": 2, "held_out": 0}
        stored = RunConfig.of_stored(run.store.find_run(run.id).config, config.database)
    assert stored.tasks.exclude_sha256 == config.tasks.exclude_sha256 is not None
    assert '"kind": "excluded"' in (run.folder / "metrics.jsonl").read_text()
