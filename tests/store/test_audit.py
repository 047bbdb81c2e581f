"""The auditor finds nothing in a good database, and each violation that is seeded into a copy of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.errors import StoreError
from agentrl.store import RunStatus, StepRow, Store
from agentrl.testing.audit import LINES, audit, main
from agentrl.testing.audit_queries import OF_COMPLETED, QUERIES
from agentrl.types import Purpose, StopReason
from tests.store.builders import leased, planned, record, sql, start_run, trajectory, turn


@dataclass
class Good:
    """A run that was resumed once and reached its end."""

    target: str
    run: str
    folder: Path


@pytest.fixture
async def good(target: str, tmp_path: Path) -> Good:
    folder = tmp_path / "run"
    with Store.open(target) as store:
        run = await start_run(store)
        first, second, lost = [await played(store, run, ordinal) for ordinal in range(3)]
        await played(store, run, 3, purpose=Purpose.EVAL)
        step0, version1 = await step(store, run, 0, 0, first)
        await step(store, run, 1, version1, lost)  # past the checkpoint
        await store.begin_step(run, ordinal=2, version=2)
        await store.abandon(run, version=version1, step=step0)
        _, version3 = await step(store, run, 1, version1, second)
        await step(store, run, 2, version3, lost, makes_version=False)
        await store.finish_run(run, RunStatus.COMPLETED)
    checkpoint = folder / "checkpoints" / "step-2"
    checkpoint.mkdir(parents=True)
    state = {"version": 3, "last_step": 4, "steps_done": 3}
    (checkpoint / "state.json").write_text(json.dumps({"saved_at_ns": 5, "state": state}))
    lines = [json.dumps({"kind": "step", "ordinal": ordinal}) for ordinal in (0, 1, 1, 2)]
    (folder / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "st']) + "\n")
    change(target, f"update runs set folder = '{folder}'")
    return Good(target=target, run=run, folder=folder)


async def played(store: Store, run: str, ordinal: int, *, purpose: Purpose = Purpose.TRAIN) -> str:
    """A complete group of two samples, the first of which needed two attempts."""
    group = await planned(store, run, ordinal, purpose=purpose)
    lease = await leased(store, group)
    broken = trajectory(run, group, stop_reason=StopReason.ENV_ERROR)
    await record(store, broken, lease.generation, reward=None)
    for sample in range(2):
        rollout = trajectory(run, group, sample=sample, attempt=int(sample == 0))
        rollout.turns = [turn(0), turn(1, parent=0, keep=5)]
        await record(store, rollout, lease.generation, reward=float(sample))
    await store.queue.complete(lease)
    return group


async def step(
    store: Store, run: str, ordinal: int, before: int, group: str, *, makes_version: bool = True
) -> tuple[int, int]:
    """A recorded step on one group; its id and the version that is in force after it."""
    id = await store.begin_step(run, ordinal=ordinal, version=before)
    await store.queue.claim(run, id, [group])
    after = None
    if makes_version:
        after = await store.add_version(run, parent=(run, before), step=id, weights_hash=f"w{id}", ordinal=ordinal + 1)
    rows = [
        StepRow(
            batch=0,
            position=place,
            trajectory=sample.trajectory.id,
            end_turn=1,
            grade_id=sample.grade_id,
            advantage=1.0,
            weights=[(3, 5, 0.0, "stale")],
        )
        for place, sample in enumerate(store.load_group(group).samples)
    ]
    await store.record_step(run, id, rows=rows, metrics={}, version_after=after)
    return id, before if after is None else after


def change(target: str, statements: str) -> None:
    """Run statements without the checks that would refuse them."""
    unchecked = "set session_replication_role = replica" if "://" in target else "pragma foreign_keys = off"
    sql(target, unchecked, *filter(str.strip, statements.split(";")))


def change_folder(folder: Path, **state: object) -> None:
    file = folder / "checkpoints" / "step-2" / "state.json"
    content = json.loads(file.read_text())
    content["state"] |= state
    file.write_text(json.dumps(content))


FINAL = "(select id from trajectories where group_id = (select id from groups where ordinal = 0) and sample = 1)"
"""A trajectory that surviving step 0 trained on."""
GROUP = "(select id from groups where ordinal = 0)"

SEEDS: dict[str, str] = {
    "group_size": f"delete from trajectories where id = {FINAL}",
    "sample_unfinished": f"update trajectories set stop_reason = null where id = {FINAL}",
    "sample_ungraded": f"delete from grades where trajectory_id = {FINAL}",
    "left_running": f"update groups set state = 'dropped' where ordinal = 0; "
    f"update trajectories set stop_reason = null where id = {FINAL}",
    "unknown_ending": f"update trajectories set stop_reason = 'shrug' where id = {FINAL}",
    "trained_twice": "update step_rows set trajectory_id = (select trajectory_id from step_rows where step_id = 0 "
    "and position = 0) where step_id = 0 and position = 1",
    "group_in_two_steps": f"update trajectories set group_id = {GROUP}, sample = 7 where id = "
    "(select trajectory_id from step_rows where step_id = 3 and position = 0)",
    "torn_group": "delete from step_rows where step_id = 0 and position = 1",
    "row_without_claim": "delete from claims where step_id = 0",
    "claim_and_step_differ": "update claims set state = 'claimed' where step_id = 0",
    "sampled_by_no_surviving_version": f"update engine_calls set version = 2 where trajectory_id = {FINAL}",
    "turns_missing": f"delete from turns where turn = 0 and trajectory_id = {FINAL}",
    "lengths_differ": f"update turns set logprobs = substr(logprobs, 1, 4) where turn = 1 and trajectory_id = {FINAL}",
    "calls_do_not_cover": f"update engine_calls set span_end = 1 where turn = 1 and trajectory_id = {FINAL}",
    "row_without_turn": "update step_rows set end_turn = 9 where step_id = 0 and position = 1",
    "row_of_another_grade": "update step_rows set grade_id = 1 where step_id = 3 and position = 1",
    "row_of_an_earlier_attempt": "update step_rows set trajectory_id = (select id from trajectories where group_id = "
    f"{GROUP} and attempt = 0 and sample = 0), end_turn = 0 where step_id = 0 and position = 0",
    "left_over": "update groups set state = 'leased' where id = (select id from groups where ordinal = 3)",
    "version_line": "update versions set parent_version = 2 where id = 3",
    "step_line": "update steps set ordinal = 5 where id = 3",
    "version_of_no_step": "update steps set version_after = null where id = 3",
    "weight_without_reason": "update step_rows set weights = '[[3, 5, 0.0, null]]' where step_id = 0 and position = 0",
    "step_lost": "delete from steps where id = 4",
    "checkpoint_off_line": "",
}  # fmt: skip


async def test_a_good_database_has_no_violations(good: Good) -> None:
    assert audit(good.target) == []
    assert audit(good.target, "toy run") == audit(good.target, good.run) == []


@pytest.mark.parametrize("name", SEEDS)
async def test_each_violation_is_found(good: Good, name: str) -> None:
    if name == "checkpoint_off_line":
        change_folder(good.folder, version=2)
    else:
        change(good.target, SEEDS[name])
    found = audit(good.target)
    assert name in {violation.name for violation in found}
    assert {violation.run for violation in found} == {good.run}


def test_no_check_is_without_a_seed() -> None:
    assert set(SEEDS) == {*QUERIES, *OF_COMPLETED, *LINES}


@pytest.mark.parametrize("step_state", ["recorded", "begun"])
async def test_a_run_that_was_killed_is_no_violation(good: Good, step_state: str) -> None:
    """Between the version and the record of its step, or in the middle of a group: a resume will see to it."""
    with Store.open(good.target) as store:
        if step_state == "begun":
            id = await store.begin_step(good.run, ordinal=3, version=3)
            await store.add_version(good.run, parent=(good.run, 3), step=id, weights_hash="w", ordinal=4)
        group = await planned(store, good.run, 4)
        lease = await leased(store, group)
        await store.recorder.begin(trajectory(good.run, group), lease.generation)
        await store.finish_run(good.run, RunStatus.RUNNING)
        assert audit(good.target) == []
        await store.finish_run(good.run, RunStatus.COMPLETED)
        assert {"left_over"} <= {violation.name for violation in audit(good.target)}


async def test_the_command_prints_violations_and_fails(good: Good) -> None:
    command = [sys.executable, "-m", "agentrl.testing.audit", good.target]
    fine = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (fine.returncode, fine.stdout, fine.stderr) == (0, "no violations\n", "")
    change(good.target, SEEDS["torn_group"])
    bad = subprocess.run([*command, good.run], capture_output=True, text=True, timeout=60)
    assert bad.returncode == 1
    assert bad.stdout.startswith(f"torn_group: run {good.run}: step 0 left trajectory traj")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "no database there"),
        (lambda path: path.write_text("notes" * 1000), "file is not a database"),
        (lambda path: change(str(path), "create table notes (text)"), "no such table: runs"),
    ],
)
def test_what_is_no_database_is_named(
    make: Callable[[Path], object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.db"
    make(path)
    with pytest.raises(StoreError, match=says):
        audit(path)
    assert main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not (says.startswith("no database") and path.exists())


async def test_an_unknown_run_is_named(good: Good) -> None:
    with pytest.raises(StoreError, match=f"no run 'gone'.*{good.run}"):
        audit(good.target, "gone")
