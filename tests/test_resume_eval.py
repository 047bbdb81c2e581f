"""An evaluation that was killed goes on where it was, and is never mixed with one of another config (J12)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.cli.common import resumed_config
from agentrl.errors import ConfigError
from agentrl.rollout.transport import key_of
from agentrl.store import Store
from agentrl.testing.audit import audit
from agentrl.types import StopReason
from tests.small import small_config, small_overrides

KILLED = """
import asyncio, sys
from agentrl import plugins
from agentrl.cli import main
from agentrl.envs.calculator import Calculator

class Stuck(Calculator):
    "Seven episodes end as they should; in the eighth, the hook named on the command line never returns."
    ended = 0

    async def reset(self, task, ctx):
        await stop_at("reset")
        return await super().reset(task, ctx)

    @classmethod
    async def grade(cls, task, trajectory, artifacts, ctx):
        await stop_at("grade")
        grade = await super().grade(task, trajectory, artifacts, ctx)
        Stuck.ended += 1
        return grade

async def stop_at(hook):
    if Stuck.ended == 7 and hook == sys.argv[1]:
        print("stuck", flush=True)
        await asyncio.sleep(3600)

plugins.environment = lambda name: Stuck
sys.exit(main(["eval", *sys.argv[2:]]))
"""


@dataclass
class Killed:
    """An evaluation of ten tasks, one after another, that was killed in the eighth."""

    folder: Path
    overrides: list[str]
    database: Path
    run: str


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def kill_in(hook: str, folder: Path, cache: Path) -> Killed:
    overrides = small_overrides(folder, cache, "eval.tasks=10", "eval.sampled=false", "rollout.concurrency=1")
    overrides = ["--env", "calculator", *overrides]
    if not list(cache.iterdir()):
        assert main(["sft", *overrides]) == 0  # the model to measure
    command = [sys.executable, "-c", KILLED, hook, *overrides, "name=killed"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        assert any(line == "stuck\n" for line in process.stdout), "it ended by itself"
        process.kill()
    database = folder / "agentrl.db"
    with Store.open(database) as store:
        run = store.find_run("killed").id
    return Killed(folder=folder, overrides=overrides, database=database, run=run)


def test_j12_after_kill_9_seven_of_ten_are_kept_and_three_are_played(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = kill_in("reset", tmp_path, cache)
    seven = ended(killed)
    assert len(seven) == 7 and audit(killed.database) == []
    assert main(["eval", "--resume", "killed", "--db", str(killed.database)]) == 0
    assert "held-out success (greedy): 0.000" in capsys.readouterr().out
    ten = ended(killed)
    assert len(ten) == 10 and seven.items() <= ten.items() and len(set(ten.values())) == 10
    with Store.open(killed.database) as store:
        (lost,) = store.find_trajectories(run=killed.run, stop_reason=StopReason.LOST)
    assert lost.id not in ten and lost.task_id in set(ten.values()) - set(seven.values())
    assert audit(killed.database) == []
    summary = json.loads((killed.folder / "killed" / "summary.json").read_text())
    assert summary["num_held_out_tasks"] == 10 and summary["run"] == killed.run
    check_refusals(killed, capsys)


def ended(killed: Killed) -> dict[str, str]:
    """Task by id of the rollouts that have an ending of their own, and a grade."""
    with Store.open(killed.database) as store:
        found = store.find_trajectories(run=killed.run)
    return {one.id: one.task_id for one in found if one.reward is not None}


def check_refusals(killed: Killed, capsys: pytest.CaptureFixture[str]) -> None:
    """The same command may be repeated; a change of config, weights or kind of run is refused by name."""
    before = ended(killed)
    resume = ["eval", "--resume", killed.run]
    assert main([*resume, *killed.overrides]) == 0
    for change, says in (
        ("sampling.top_k=3", "sampling.top_k=3, but the run has 0"),
        ("env.level=1", "env.level=1, but the run has 2"),
        ("eval.tasks=11", "eval.tasks=11, but the run has 10"),
    ):
        capsys.readouterr()
        assert main([*resume, *killed.overrides, change]) == 2
        assert says in capsys.readouterr().err
    assert main(["train", "--resume", killed.run, "--db", str(killed.database)]) == 2
    assert "no training run" in capsys.readouterr().err
    assert ended(killed) == before


def test_j12_what_was_played_but_not_graded_is_graded_and_other_weights_are_refused(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = kill_in("grade", tmp_path, cache)
    assert len(ended(killed)) == 7
    with Store.open(killed.database) as store:
        folder = Path(store.find_run(killed.run).config["model_folder"])
        (ungraded,) = [
            one.id for one in store.find_trajectories(run=killed.run) if one.stop_reason and one.reward is None
        ]
    whole, other = tmp_path / "whole", tmp_path / "other"
    shutil.copytree(folder, whole)
    assert main(["sft", *killed.overrides, "seed=1", f"model.cache_dir={other}"]) == 0
    (stranger,) = other.glob("tiny-*")
    shutil.copy(stranger / "model.safetensors", folder / "model.safetensors")
    resume = ["eval", "--resume", killed.run, "--db", str(killed.database)]
    assert main(resume) == 2
    assert "weights was" in capsys.readouterr().err
    shutil.copy(whole / "model.safetensors", folder / "model.safetensors")
    assert main(resume) == 0
    assert ungraded in ended(killed) and len(ended(killed)) == 10
    assert audit(killed.database) == []


async def test_a_servers_key_is_not_stored_but_where_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hush")
    config = small_config(tmp_path, tmp_path, "engine.urls='http://127.0.0.1:9'", "engine.key_env=MY_KEY")
    with Store.open(tmp_path / "agentrl.db") as store:
        run = await store.create_run("an eval", config.public() | {"command": "eval", "model_folder": "tiny"})
    assert b"hush" not in (tmp_path / "agentrl.db").read_bytes()
    stored = resumed_config(run, Namespace(overrides=[], env=None, db=str(tmp_path / "agentrl.db")), "eval")
    assert stored is not None and key_of(stored.engine) == "hush"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match=r"engine\.key_env=MY_KEY: this environment variable is not set"):
        key_of(stored.engine)
