"""A run whose database or disk is at fault: one clear line, nothing that was finished lost, and it can be resumed."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.errors import StoreError
from agentrl.progress import Silent
from agentrl.run import resume, train
from agentrl.store import RunStatus, Store
from agentrl.testing.audit import audit
from tests.small import EvenIds, small_config, small_overrides
from tests.store.disks import small_disk


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model is made once."""
    folder = tmp_path_factory.mktemp("cache")
    assert main(["sft", "--env", "calculator", *small_overrides(tmp_path_factory.mktemp("sft"), folder)]) == 0
    return folder


def newer(path: Path) -> None:
    Store.open(path).close()
    execute(path, "update alembic_version set version_num = '0999'")


def execute(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement)
    connection.close()


def corrupt(path: Path) -> None:
    Store.open(path).close()
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996
    path.write_bytes(content)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "newer": (newer, "has schema 0999, newer than schema .*: upgrade agentrl"),
    "text": (lambda path: path.write_text("notes " * 999), "file is not a database .*give another path"),
    "another program's": (lambda path: execute(path, "create table notes (x)"), "tables of another program"),
    "corrupt": (corrupt, "malformed .*corrupt; restore a copy"),
    "folder": (lambda path: path.mkdir(), "unable to open .*make sure that it is a file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_database_that_cant_be_used_ends_each_command_with_one_line(
    name: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.db"
    make, says = BAD[name]
    make(path)
    runs = tmp_path / "runs"
    overrides = small_overrides(runs, cache, f"store.url={path}")
    commands = [[command, "--env", "calculator", *overrides] for command in ("train", "eval")]
    if not path.is_dir():
        commands += [["train", "--resume", "x", "--db", str(path)], ["runs", "--db", str(path)]]
    for command in commands:
        capsys.readouterr()
        assert main(command) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert line.startswith(f"agentrl {command[0]}: error: ") and str(path) in line
        assert re.search(says, line)


def test_a_database_in_a_folder_that_is_not_there_yet_is_made(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "not" / "there" / "yet.db"
    overrides = small_overrides(tmp_path / "runs", cache, f"store.url={path}", "eval.sampled=false")
    assert main(["eval", "--env", "calculator", *overrides]) == 0
    assert audit(path) == []


@pytest.mark.parametrize("command", ["eval", "train"])
def test_a_read_only_disk_ends_a_command_with_one_line(
    command: str, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        path = disk.folder / "s.db"
        Store.open(path).close()
        disk.mount("remount", "ro")
        capsys.readouterr()
        overrides = small_overrides(tmp_path / "runs", cache, f"store.url={path}")
        assert main([command, "--env", "calculator", *overrides]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert str(path) in line and "that you may write to" in line


class After(Silent):
    """Does something once the first step is over."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["ordinal"] == 0:
            self.do()


def finished(path: Path) -> set[str]:
    with Store.open(path) as store:
        return {one.id for one in store.find_trajectories() if one.stop_reason and one.reward is not None}


async def check_resumed(folder: Path, cache: Path, path: Path, overrides: list[str]) -> None:
    """What was finished is there, the run goes on to its end, and the auditor finds nothing."""
    before = finished(path)
    assert before and audit(path) == []
    with Store.open(path) as store:
        run = store.find_run("a-run").id
    summary = await resume(small_config(folder, cache, *overrides), Silent(), run)
    assert summary.steps == 3
    assert before <= finished(path) and audit(path) == []
    with Store.open(path) as store:
        assert store.find_run(run).status is RunStatus.COMPLETED
        assert [step.ordinal for step in store.steps(run) if not step.abandoned] == [0, 1, 2]


COMMON = ["train.steps=3", "train.checkpoint_every=1", "eval.sampled=false", "name=a-run", "algorithm.group_size=2"]


async def test_a_lock_for_too_long_stops_a_run_by_name_and_it_is_resumed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    path = tmp_path / "agentrl.db"
    overrides = [*COMMON, "store.busy_timeout_s=0.2"]
    holder = sqlite3.connect(tmp_path / "agentrl.db", isolation_level=None)
    with pytest.raises((StoreError, ExceptionGroup)) as caught:
        await train(small_config(tmp_path, cache, *overrides), After(lambda: holder.execute("begin immediate")))
    errors = leaves(caught)
    assert all(isinstance(error, StoreError) and f"{path}: database is locked" in str(error) for error in errors)
    holder.close()
    await check_resumed(tmp_path, cache, path, overrides)


def leaves(caught: pytest.ExceptionInfo[Any]) -> list[BaseException]:
    """The errors in a group of groups."""
    found: list[BaseException] = []
    waiting: list[BaseException] = [caught.value]
    while waiting:
        error = waiting.pop()
        waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else []
        found += [] if isinstance(error, BaseExceptionGroup) else [error]
    return found


@pytest.mark.parametrize("what", ["database", "folder"])
async def test_a_full_disk_stops_a_run_by_name_and_it_is_resumed(
    what: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    with small_disk(tmp_path / "disk", "256m") as disk:
        folder = tmp_path / "runs" if what == "database" else disk.folder / "runs"
        path = (disk.folder if what == "database" else tmp_path) / "s.db"
        overrides = [*COMMON, f"store.url={path}"]
        with pytest.raises((StoreError, ExceptionGroup)) as caught:
            await train(small_config(folder, cache, *overrides), After(disk.fill))
        place = str(path) if what == "database" else str(folder / "a-run")
        assert any(place in str(error) and "free some space" in str(error) for error in leaves(caught))
        assert all(isinstance(error, StoreError) for error in leaves(caught))
        (disk.folder / "ballast").unlink()
        await check_resumed(folder, cache, path, overrides)


@pytest.mark.long  # in short: tests/store/test_processes.py, tests/store/test_writer.py
def test_two_processes_run_on_one_database_at_once(tmp_path: Path, cache: Path) -> None:
    overrides = small_overrides(tmp_path, cache, "train.steps=1", "eval.sampled=false", "algorithm.group_size=2")
    command = [str(Path(sys.executable).parent / "agentrl"), "train", "--env", "calculator", *overrides]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    outcomes = [run.communicate(timeout=300) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outcomes
    path = tmp_path / "agentrl.db"
    with Store.open(path) as store:
        stored = store.runs()
        assert {run.status for run in stored} == {RunStatus.COMPLETED} and len({run.folder for run in stored}) == 2
        for run in stored:
            assert len(store.find_trajectories(run=run.id)) == 2 * 2 + 2 * 5
    assert audit(path) == []
