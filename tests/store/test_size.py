"""The database stays small, and what is looked for is found by indexes: the short form of `benchmarks.store`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from agentrl.store import Store
from benchmarks import store as benchmark

NUM_TURNS = 8192


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("size") / "store.db"
    with Store.open(path) as store:
        asyncio.run(benchmark.fill(store, NUM_TURNS))
    return path


@pytest.fixture
def filled(path: Path) -> Iterator[Store]:
    with Store.open(path) as store:
        yield store


def test_an_id_takes_at_most_six_bytes_with_all_that_belongs_to_it(path: Path) -> None:
    assert benchmark.size(path)["bytes_per_id"] <= 6


def test_what_was_made_is_there_once(filled: Store) -> None:
    tables = {one.table: one.num_records for one in filled.table_stats()}
    assert tables["turns"] == NUM_TURNS and tables["step_rows"] == NUM_TURNS // benchmark.TURNS // 2
    # Two shared prompts a group (ids and messages) and the files, of which there are fifty.
    assert 2 * tables["groups"] <= tables["blobs"] <= 2 * tables["groups"] + 50
    [one] = filled.find_trajectories(limit=1)
    sample = filled.load_sample(one.id)
    assert [len(turn.prompt_ids) + len(turn.sampled_ids) for turn in sample.trajectory.turns] == [300] * benchmark.TURNS


def plans(store: Store, **which: Any) -> list[str]:
    """How SQLite goes about a find."""
    engine, made = store._database.engine, []

    @event.listens_for(engine, "after_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            made.extend(cursor.connection.execute(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall())

    store.find_trajectories(**which)
    event.remove(engine, "after_cursor_execute", explain)
    return [str(line[3]) for line in made]


def test_finds_neither_sort_nor_read_records_that_do_not_match(filled: Store) -> None:
    for name, which in benchmark.finds(filled).items():
        for after in (None, (1.8e9 + 100, "x")):
            plan = plans(filled, limit=20, after=after, **which)
            first, is_of_step = plan[0], "step" in which
            index = "sqlite_autoindex_trajectories_1" if is_of_step else "COVERING INDEX|INDEX ix_trajectories_"
            assert any(part in first for part in index.split("|")), (name, plan)
            # The Rows of a step are a few hundred: those are sorted.
            assert is_of_step or not any("TEMP B-TREE" in line for line in plan), (name, plan)
            assert not any(line.startswith("SCAN") and "INDEX" not in line for line in plan), (name, plan)
