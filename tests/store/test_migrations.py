"""A database of every schema that has landed opens now, with what is in it.

`schemas/N.sql` was written by the store of the first commit that had schema N.
"""

from __future__ import annotations

import math
import sqlite3
import time
from pathlib import Path

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, insert, select, text

from agentrl.errors import StoreError
from agentrl.store import RunStatus, StepRow, Store
from agentrl.store.database import Database
from agentrl.store.schema import Migrated, _config, head
from agentrl.testing.audit import audit
from agentrl.types import CallStatus, Grade, GroupState, Message, Sampler, StopReason
from tests.store.builders import artifacts, record, sql, tool_call, trajectory, turn

SCHEMAS = sorted((Path(__file__).parent / "schemas").glob("*.sql"))


def load(dump: Path, target: str, tmp_path: Path) -> None:
    """Make a database as it was: a SQLite file, or its records in tables of that schema in PostgreSQL."""
    path = str(tmp_path / "copied.db") if "://" in target else target
    connection = sqlite3.connect(path)
    connection.executescript(dump.read_text())
    connection.close()
    if "://" in target:
        _upgrade(target, dump.stem)
        _copy(path, target)


def _upgrade(target: str, revision: str) -> None:
    database, config = Database.open(target, 1.0), _config()
    with database.writing() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    database.close()


def _copy(path: str, target: str) -> None:
    source, goal = create_engine(f"sqlite:///{path}"), create_engine(target)
    tables = MetaData()
    tables.reflect(goal)
    with source.connect() as reader, goal.begin() as writer:
        writer.execute(text("set session_replication_role = replica"))  # records may come before what they refer to
        for table in tables.sorted_tables:
            records = [dict(record) for record in reader.execute(select(table)).mappings()]
            if records and table.name != "alembic_version":
                writer.execute(insert(table), records)
        for name in ("grades", "claims"):
            writer.execute(text(f"select setval('{name}_id_seq', (select max(id) from {name}))"))
    source.dispose()
    goal.dispose()


def test_every_schema_but_the_newest_has_a_database_to_start_from() -> None:
    revisions = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    assert {path.stem for path in SCHEMAS} == revisions - {head()}


@pytest.mark.parametrize("dump", SCHEMAS, ids=lambda path: path.stem)
async def test_an_older_database_is_upgraded_with_everything_in_it(empty: str, dump: Path, tmp_path: Path) -> None:
    load(dump, empty, tmp_path)
    assert Store.migrate(empty) == Migrated(before=dump.stem, after=head())
    assert Store.migrate(empty) == Migrated(before=head(), after=head())
    with Store.open(empty) as store:
        [run] = store.runs()
        assert (run.name, run.status, run.seed) == ("toy run", RunStatus.COMPLETED, 3)
        check_trajectories(store, run.id)
        check_line(store, run.id)
        assert [damage for damage in store.verify()] == []
        await record(store, trajectory(run.id, id="new"))
        [(grade_id, _)] = store.grades_of("new").items()
        assert grade_id == 4
    assert [violation.name for violation in audit(empty)] == ["left_over"]  # its run ended with a planned group
    assert sql(empty, "select version_num from alembic_version") == [(head(),)]


@pytest.mark.parametrize("dump", SCHEMAS, ids=lambda path: path.stem)
def test_a_database_that_an_older_agentrl_is_writing_to_is_left_as_it_is(
    empty: str, dump: Path, tmp_path: Path
) -> None:
    load(dump, empty, tmp_path)
    [(run, state)] = sql(empty, "select run_id, state from groups where state = 'planned'")
    sql(empty, f"update groups set state = 'leased', lease_until = {time.time() + 60} where state = '{state}'")
    with pytest.raises(StoreError, match=rf"an older schema, and run {run} is writing to it.* again in (60|5\d) s"):
        Store.open(empty)
    assert sql(empty, "select version_num from alembic_version") == [(dump.stem,)]
    sql(empty, f"update groups set lease_until = {time.time() - 1} where state = 'leased'")
    Store.open(empty).close()


def check_trajectories(store: Store, run: str) -> None:
    """As the builders of that time made them."""
    done = {"status": CallStatus.OK, "error": None, "result": "before\x00after", "arguments": {"k\x00": [1.5, None]}}
    said = Message(role="assistant", content="grüße\x00 \udcff")
    turns = [turn(0, tool_calls=[tool_call(**done)]), turn(1, (9, 10, 11), parent=0, keep=5, reward=0.5, message=said)]
    [group] = store.queue.groups(run, states=[GroupState.COMPLETE])
    ends = {"stop_reason": StopReason.COMPLETED, "finished_at": 20.0, "artifacts": artifacts()}
    for sample in range(2):
        made = trajectory(run, group, id=f"old{sample}", sample=sample, env_seed=2**62, turns=turns, **ends)
        assert store.load_trajectory(made.id) == made
        assert store.load_sample(made.id).grade == Grade(reward=float(sample), grader="g", grader_version="1")
    fork = store.load_sample("fork")
    assert (fork.trajectory.forked_from, fork.trajectory.error) == (("old0", 1), "x\x00")
    assert fork.trajectory.turns == [turn(0, (5,), sampler=Sampler.HUMAN, calls=[], logprobs=[-1.0])]
    assert fork.grade is not None and fork.grade.unmeasured == "no box" and math.isnan(fork.grade.parts["a"])


def check_line(store: Store, run: str) -> None:
    [step] = store.steps(run)
    assert step.metrics is not None and math.isnan(step.metrics["loss"]) and step.version_after == 1
    assert [version.weights_hash for version in store.versions(run)] == ["w0", "w1"]
    [use] = store.steps_of("old1")
    assert use.row == StepRow(
        batch=0, position=1, trajectory="old1", end_turn=1, grade_id=2, advantage=0.5,
        weights=[(3, 5, 0.0, "stale")], ratio_mean=1.0, ratio_max=1.5, clip_share=0.25,
    )  # fmt: skip
    assert store.queue.claimable(run) == []
    [dropped] = store.queue.groups(run, states=[GroupState.DROPPED])
    assert store.load_group(dropped).dropped_reason == "why not"
