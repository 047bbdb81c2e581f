"""What is wrong with a database, a port or an installation is told, with what to do."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from agentrl.cli import main
from tests.installed import MAIN
from tests.store.builders import sql
from tests.view.conftest import reading
from tests.view.stage import Stage


@pytest.fixture
def copy(stage: Stage, tmp_path: Path) -> str:
    """The path of a database that may be spoilt."""
    return str(shutil.copy(stage.database, tmp_path / "copy.db"))


async def test_a_database_without_runs_says_how_to_make_one(copy: str) -> None:
    sql(copy, *(f"DELETE FROM {table}" for table in ("trajectories", "steps", "runs")))
    async with reading(copy) as reader:
        assert "agentrl train --env calculator" in (await reader.get("/")).text


async def test_a_damaged_record_is_named_and_the_rest_can_be_read(copy: str, stage: Stage) -> None:
    sql(copy, f"UPDATE turns SET prompt_ids = x'ff' WHERE trajectory_id = '{stage.learnt}' AND turn = 1")
    async with reading(copy) as reader:
        for path in (f"/trajectory/{stage.learnt}", f"/tokens/0/{stage.learnt}"):
            answer = await reader.get(path)
            assert answer.status_code == 500, path
            assert f"trajectory_id={stage.learnt}, turn=1" in answer.text and "agentrl db verify" in answer.text
        others = f"/step/0/{stage.runs[0]}", f"/group/{stage.groups[0]}", f"/trajectory/{stage.branched}"
        for path in ("/", f"/run/{stage.runs[0]}", *others):
            assert (await reader.get(path)).status_code == 200, path


async def test_a_damaged_config_or_metric_is_named(copy: str, stage: Stage) -> None:
    sql(copy, f"UPDATE steps SET metrics = '{{' WHERE run_id = '{stage.runs[0]}' AND id = 1")
    async with reading(copy) as reader:
        answer = await reader.get(f"/run/{stage.runs[0]}")
        assert answer.status_code == 500 and "agentrl db verify" in answer.text
        assert (await reader.get(f"/trajectory/{stage.branched}")).status_code == 200


async def test_a_run_that_is_deleted_while_it_is_looked_at(copy: str, stage: Stage) -> None:
    run = stage.runs[0]
    async with reading(copy) as reader:
        assert (await reader.get(f"/run/{run}")).status_code == 200
        sql(copy, f"DELETE FROM runs WHERE id = '{run}'")
        for path in (f"/run/{run}", f"/changed/run/{run}", f"/step/0/{run}"):
            answer = await reader.get(path)
            assert answer.status_code == 404 and "deleted" in answer.text
        assert (await reader.get("/")).status_code == 200


async def test_a_schema_that_changes_meanwhile_is_named(copy: str, stage: Stage) -> None:
    async with reading(copy) as reader:
        sql(copy, "UPDATE alembic_version SET version_num = '9999'", "ALTER TABLE turns RENAME COLUMN text TO words")
        answer = await reader.get(f"/trajectory/{stage.learnt}")
        assert answer.status_code == 500 and "upgrade agentrl, or use another database" in answer.text


def test_a_missing_or_newer_database_is_one_line(capsys: pytest.CaptureFixture[str], copy: str, tmp_path: Path) -> None:
    assert main(["view", "--db", str(tmp_path / "none.db")]) == 1
    assert "no database there; name it with --db" in capsys.readouterr().err
    sql(copy, "UPDATE alembic_version SET version_num = '9999'")
    assert main(["view", "--db", copy]) == 1
    assert "newer than schema" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["used", "70000"])
def test_a_port_that_cant_be_had_is_one_line(capsys: pytest.CaptureFixture[str], stage: Stage, port: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        number = str(taken.getsockname()[1]) if port == "used" else port
        assert main(["view", "--db", stage.database, "--port", number]) == 2
    error = capsys.readouterr().err
    assert f"port {number} can't be had" in error and "--port 0" in error


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stage: Stage
) -> None:
    monkeypatch.delitem(sys.modules, "agentrl.view.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["view", "--db", stage.database]) == 2
    assert "pip install 'agentrl[view]'" in capsys.readouterr().err


def test_the_command_serves_until_it_is_stopped(stage: Stage) -> None:
    command = [sys.executable, "-c", MAIN, "view", "--db", stage.database, "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True,
        # In the background of a shell, as in CI, SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        assert process.stdout is not None
        said = process.stdout.readline() + process.stdout.readline()
        (address,) = re.findall(r"http://127\.0\.0\.1:\d+/\?token=\S+", said)
        with httpx.Client(follow_redirects=True, trust_env=False) as client:
            answer = client.get(address)
            assert answer.status_code == 200 and "token" not in str(answer.url)
            assert client.get(str(answer.url.join(f"/run/{stage.runs[0]}"))).status_code == 200
            process.send_signal(signal.SIGINT)  # while the browser keeps its connection
            assert process.wait(timeout=60) == 130
