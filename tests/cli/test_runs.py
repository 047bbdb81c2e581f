"""`agentrl runs`: what ran, what became of it, and what to type next."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.interrupts import locked
from agentrl.store import RunStatus, Store
from tests.store.builders import leased, planned, record, trajectory


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "s.db"
    asyncio.run(fill(path, tmp_path))
    return path


async def fill(path: Path, folder: Path) -> None:
    """One run of each status; the first trained two steps and abandoned a third."""
    with Store.open(path) as store:
        for name, status in (
            ("trained", RunStatus.COMPLETED), ("broken", RunStatus.FAILED), ("stopped", RunStatus.INTERRUPTED),
            ("killed", RunStatus.RUNNING), ("alive", RunStatus.RUNNING),
        ):  # fmt: skip
            own = folder / name
            own.mkdir()
            config = {"command": "train", "env": {"name": "toy"}, "model": {"path": "tiny"}}
            run = await store.create_run(name, config, seed=3, folder=str(own))
            await store.add_version(run, parent=None, step=None, weights_hash="w0", ordinal=0)
            if name == "trained":
                await train(store, run, own)
            if status is not RunStatus.RUNNING:
                await store.finish_run(run, status)


async def train(store: Store, run: str, folder: Path) -> None:
    for ordinal, reward in enumerate((0.25, 0.5, 0.75)):
        step = await store.begin_step(run, ordinal=ordinal, version=0)
        metrics = {"reward_mean": reward, "loss": float("nan"), "num_updates": 0}
        await store.record_step(run, step, rows=[], metrics=metrics, version_after=None)
    await store.abandon(run, version=0, step=1)
    group = await planned(store, run)
    lease = await leased(store, group)
    for sample in range(2):
        await record(store, trajectory(run, group, sample=sample), lease.generation)
    await store.queue.complete(lease)
    events = [{"kind": "eval", "sampling": kind, "success": s} for kind, s in (("greedy", 0.1), ("greedy", 0.9))]
    events.append({"kind": "eval", "sampling": "sampled", "success": 0.4})
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, events)) + '\n{"kind": "ev')


def test_a_run_of_another_machine_is_not_called_dead(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "killed").rmdir()
    assert main(["runs", "killed", "--db", str(database), "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    assert (run["status"], run["resume"]) == ("running", None)


def test_runs_shows_every_run_with_its_status_and_last_metrics(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path / "alive"):
        assert main(["runs", "--db", str(database), "--json"]) == 0
        runs = {run["name"]: run for run in json.loads(capsys.readouterr().out)}
        assert main(["runs", "--db", str(database)]) == 0
    assert {name: run["status"] for name, run in runs.items()} == {
        "trained": "completed",
        "broken": "failed",
        "stopped": "interrupted",
        "killed": "dead owner",
        "alive": "running",
    }
    trained = runs["trained"]
    assert (trained["steps"], trained["reward"], trained["held_out"]) == (2, 0.5, 0.9)
    assert (trained["command"], trained["env"], trained["model"]) == ("train", "toy", "tiny")
    assert runs["broken"]["reward"] is None and runs["broken"]["held_out"] is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6 and lines[0].split() == (
        ["id", "command", "env", "model", "status", "started", "steps", "reward", "held-out", "folder"]
    )
    (line,) = [line for line in lines if line.startswith(trained["id"])]
    assert line.split()[-4:] == ["2", "0.500", "0.900", str(tmp_path / "trained")]


def test_one_run_in_detail(database: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "trained", "--db", str(database)]) == 0
    out = capsys.readouterr().out
    assert "(trained): train of toy, completed" in out
    for line in ("abandoned-steps 1", "groups          complete 1", "rollouts        completed 2", "resume          -"):
        assert f"  {line}" in out
    assert "reward_mean                 0.500" in out and "loss                        -" in out
    assert main(["runs", "killed", "--db", str(database)]) == 0
    out = capsys.readouterr().out
    assert "dead owner" in out
    run = detail(database, "killed", capsys)
    assert run["resume"] == f"agentrl train --resume {run['id']} --db {database}"
    assert run["resume"] in out
    whole = detail(database, "trained", capsys)
    assert whole["last_metrics"] == {"reward_mean": 0.5, "num_updates": 0}  # no loss was measured
    assert whole["config"]["env"] == {"name": "toy"} and whole["seed"] == 3


def detail(database: Path, run: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["runs", run, "--db", str(database), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_runs_needs_a_database_and_names_an_unknown_run(
    database: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.db"
    assert main(["runs", "--db", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err and not missing.exists()
    assert main(["runs", "nope", "--db", str(database)]) == 1
    assert "'nope'" in capsys.readouterr().err
    Store.open(tmp_path / "empty.db").close()
    assert main(["runs", "--db", str(tmp_path / "empty.db")]) == 0
    assert capsys.readouterr().out == "no runs in this database yet\n"


def test_looking_at_runs_loads_nothing_heavy(database: Path) -> None:
    code = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]) or 'torch' in sys.modules)"
    command = [sys.executable, "-c", code, "runs", "--db", str(database)]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
