"""A whole run whose database is a PostgreSQL server with a password: killed, resumed, and the password is nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import MetaData, create_engine, select

from agentrl.cli import main
from agentrl.store import RunStatus, Store
from agentrl.testing.audit import audit
from tests.postgres import need_postgres, postgres_server
from tests.small import small_overrides

ROOT = Path(__file__).parent.parent
PASSWORD = "Xq7vNoKe"


def everything(url: str) -> str:
    """All that the database holds, as text. (A record's own repr cuts long values.)"""
    engine, tables = create_engine(url), MetaData()
    tables.reflect(engine)
    with engine.connect() as connection:
        records = [tuple(record) for table in tables.sorted_tables for record in connection.execute(select(table))]
    engine.dispose()
    return repr(records)


def test_a_run_on_postgresql_survives_sigkill_and_its_password_is_nowhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need_postgres()
    with postgres_server(password=PASSWORD) as server:
        url = server.url().replace("agentrl@", f"agentrl:{PASSWORD}@")
        overrides = small_overrides(tmp_path / "runs", tmp_path / "cache", f"store.url='{url}'", "log.level=debug")
        command = ["train", "--env", "calculator", *overrides]
        victim = [sys.executable, "-m", "benchmarks.victim", "update", "2", "--", *command]
        killed = subprocess.run(victim, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert killed.returncode == -9, killed.stderr
        with Store.open(url) as store:
            run = next(record for record in store.runs() if record.config["command"] == "train")
            assert run.status is RunStatus.RUNNING
        assert main(["train", "--resume", run.id, "--db", url]) == 0
        shown = killed.stdout + killed.stderr + "".join(capsys.readouterr())
        check(url, run.id)
        assert main(["runs", run.id, "--db", url]) == 0 == main(["db", "verify", "--db", url])
        with Store.open(url) as store:
            rollout = store.find_trajectories(run=run.id)[0]
        assert main(["replay", rollout.id, "--fork", "0", "--db", url]) == 0, "it opens the database again"
        assert main(["runs", "--db", url.replace(PASSWORD, "wrong")]) == 1
        shown += "".join(capsys.readouterr()) + everything(url)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert PASSWORD not in shown and not [path for path in files if PASSWORD.encode() in path.read_bytes()]
    assert "agentrl:***@" in shown


def check(url: str, run: str) -> None:
    """The run reached its end, and nothing was lost or trained on twice."""
    with Store.open(url) as store:
        assert store.find_run(run).status is RunStatus.COMPLETED
        steps = store.steps(run)
        assert [step.ordinal for step in steps if not step.abandoned] == [0, 1]
        assert any(step.abandoned for step in steps)
        assert list(store.verify()) == []
    assert audit(url) == []
