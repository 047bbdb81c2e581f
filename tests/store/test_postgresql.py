"""What only PostgreSQL can do to a store: passwords, encodings, locks on records, a server that goes away."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, insert, text
from sqlalchemy.engine import Connection as Held

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import Store
from agentrl.store.database import Database
from agentrl.store.tables import Runs, table
from agentrl.store.writer import Writer
from agentrl.testing.audit import audit
from agentrl.types import Purpose, StopReason
from tests.postgres import PostgresServer, need_postgres, postgres_server
from tests.store.builders import leased, planned, record, sql, start_run, task, trajectory, turn


@pytest.fixture
def url(postgres: PostgresServer, postgres_template: str) -> Iterator[str]:
    with postgres.database(postgres_template) as made:
        yield made


@pytest.fixture
def holder(url: str) -> Iterator[Held]:
    """Another client's connection, in a transaction."""
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_a_short_url_means_the_same_driver(url: str) -> None:
    for scheme in ("postgres", "postgresql"):
        with Store.open(url.replace("postgresql+psycopg", scheme)) as store:
            assert store.location == url
        assert audit(url.replace("postgresql+psycopg", scheme)) == []


def test_a_database_that_is_not_there_is_named(postgres: PostgresServer) -> None:
    with pytest.raises(StoreError, match=r'"nosuch" does not exist .*check host, user, password and database'):
        Store.open(postgres.url("nosuch"))


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"refused.*make sure that the server runs") as caught:
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert "postgresql+psycopg://me@127.0.0.1:1/db" in str(caught.value)


def test_a_database_that_can_not_hold_every_text_is_refused(postgres: PostgresServer) -> None:
    postgres.run("CREATE DATABASE latin TEMPLATE template0 ENCODING LATIN1 LOCALE 'C' LOCALE_PROVIDER libc")
    with pytest.raises(StoreError, match=r"'latin' has encoding LATIN1.*createdb --encoding UTF8"):
        Store.open(postgres.url("latin"))
    postgres.run("DROP DATABASE latin WITH (FORCE)")


async def test_a_refused_record_is_not_quoted(url: str) -> None:
    """The server's details hold the whole record, and so a conversation."""
    database = Database.open(url, 1.0)
    writer = Writer(database)
    values = {"id": "x", "name": None, "status": "secret text", "config": {}, "packages": {}, "seed": 0, "folder": ""}

    def work(connection: Connection) -> None:
        connection.execute(insert(table(Runs)).values(**values, started_at=0.0))

    with pytest.raises(StoreError, match=r"null value in column") as caught:
        await writer.write(work)
    assert "secret text" not in str(caught.value)
    writer.close()
    database.close()


async def test_a_record_that_stays_locked_is_waited_for_only_so_long(url: str, holder: Held) -> None:
    with Store.open(url, busy_timeout_s=0.3) as store:
        run = await start_run(store)
        group = await planned(store, run)
        holder.execute(text("select * from groups for update"))
        with pytest.raises(StoreError, match=r"lock timeout .*another process holds it"):
            await store.queue.lease("w", 60.0, groups=[group])
        assert await store.queue.lease("w", 60.0) == []  # what is locked is left to who locked it
        assert store.load_group(group).id == group
        holder.rollback()
        assert len(await store.queue.lease("w", 60.0)) == 1


def test_no_time_limit_is_so_short_that_it_is_none(url: str) -> None:
    database = Database.open(url, 0.0004)
    for patient in (True, False):
        with database.writing(patient=patient) as connection:
            assert connection.scalar(text("show lock_timeout")) == "1ms"
    database.close()


async def wait_for_locks(url: str, task: asyncio.Task[Any], num: int) -> None:
    """Until so many clients wait for a lock, or the task is done and never will."""
    while not task.done() and sql(url, "select count(*) from pg_locks where not granted") != [(num,)]:
        await asyncio.sleep(0.02)


async def test_a_turn_is_not_changed_while_another_client_ends_its_trajectory(url: str, holder: Held) -> None:
    with Store.open(url) as store:
        rollout = trajectory(await start_run(store))
        await store.recorder.begin(rollout, 0)
        rollout.turns.append(turn())
        await store.recorder.add_turn(rollout, rollout.turns[0])
        holder.execute(text("update trajectories set stop_reason = 'lost', finished_at = 1"))
        rollout.turns[0].reward = 5.0
        late = asyncio.create_task(store.recorder.update_turn(rollout, rollout.turns[0]))
        await wait_for_locks(url, late, 1)
        holder.commit()
        with pytest.raises(StoreError, match=r"is finished \(lost\)"):
            await late
        assert store.load_trajectory(rollout.id).turns[0].reward == 0.0


async def test_a_task_that_is_about_to_be_played_is_no_garbage(url: str, holder: Held) -> None:
    """The plan has found its task, which nothing refers to, and isn't through yet."""
    with Store.open(url) as store, Store.open(url) as cleaner:
        run = await start_run(store)
        await planned(store, run)
        sql(url, "delete from groups")
        holder.execute(text("select * from runs for update"))
        plan = asyncio.create_task(planned(store, run))
        await wait_for_locks(url, plan, 1)
        removed = asyncio.create_task(cleaner.remove_garbage())
        await wait_for_locks(url, removed, 2)
        holder.rollback()
        group = await plan
        await removed
        assert store.load_group(group).task.id == "t0"


async def test_nothing_is_begun_in_a_group_while_it_is_abandoned(url: str, holder: Held) -> None:
    """Else it would have no ending (R1)."""
    with Store.open(url) as store, Store.open(url) as worker:
        run = await start_run(store)
        await store.add_version(run, parent=(run, 0), step=None, weights_hash="w1", ordinal=1)
        group = await store.queue.plan(run, task(), purpose=Purpose.TRAIN, ordinal=0, size=2, version=1)
        lease = await leased(worker, group)
        await worker.recorder.begin(trajectory(run, group, sample=0), lease.generation)
        holder.execute(text("select * from trajectories for update"))
        abandoned = asyncio.create_task(store.abandon(run, version=0, step=None))
        await wait_for_locks(url, abandoned, 1)
        late = asyncio.create_task(worker.recorder.begin(trajectory(run, group, sample=1), lease.generation))
        await wait_for_locks(url, late, 2)
        holder.rollback()
        await abandoned
        with pytest.raises(LeaseLost):
            await late
        assert [one.stop_reason for one in store.find_trajectories(run=run)] == [StopReason.INTERRUPTED]


async def test_transactions_that_collide_are_tried_again(url: str) -> None:
    """Two writers that change two records in opposite order: PostgreSQL ends one of them."""
    with Store.open(url) as store:
        runs = [await start_run(store) for _ in range(2)]
    databases = [Database.open(url, 10.0) for _ in range(2)]
    writers = [Writer(database) for database in databases]
    meeting, tries = threading.Barrier(2), [0, 0]

    def change(me: int) -> None:
        def work(connection: Connection) -> None:
            tries[me] += 1
            order = runs if me == 0 else runs[::-1]
            for place, run in enumerate(order):
                connection.execute(text("update runs set seed = seed + 1 where id = :run"), {"run": run})
                if place == 0 and tries[me] == 1:
                    meeting.wait(10)

        return work  # type: ignore[return-value]

    await asyncio.gather(*(writer.write(change(me)) for me, writer in enumerate(writers)))  # type: ignore[func-returns-value]
    for writer, database in zip(writers, databases, strict=True):
        writer.close()
        database.close()
    assert sum(tries) > 2  # the one that goes on may meet the other, which tries again, a second time
    assert sql(url, "select seed from runs") == [(5,), (5,)]


async def test_a_server_that_goes_away_is_named_and_what_was_finished_is_there_when_it_comes_back(
    postgres: PostgresServer,
) -> None:
    with postgres_server() as server, Store.open(server.url()) as store:
        run = await start_run(store)
        rollout = trajectory(run)
        await record(store, rollout)
        server.stop()
        for _ in range(2):
            with pytest.raises(StoreError, match=r"make sure that the server runs"):
                await record(store, trajectory(run))
        with pytest.raises(StoreError, match=r"make sure that the server runs"):
            store.runs()
        server.start()
        assert store.load_trajectory(rollout.id) == rollout
        await record(store, trajectory(run))
        assert len(store.find_trajectories()) == 2


async def test_a_password_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    need_postgres()
    with postgres_server(password="s3cret/word") as server:
        right, wrong = server.url().replace("agentrl@", "agentrl:s3cret%2Fword@"), server.url()
        with Store.open(right) as store:
            await start_run(store)
            assert store.location == wrong
            Store.open(store.target).close()
        with pytest.raises(StoreError, match=r"no password supplied.*PGPASSWORD|password.*check host, user, password"):
            Store.open(wrong)
        bad = server.url().replace("agentrl@", "agentrl:n0tright@")
        with pytest.raises(StoreError, match=r"password authentication failed") as caught:
            Store.open(bad)
        assert "n0tright" not in str(caught.value)
        monkeypatch.setenv("PGPASSWORD", "s3cret/word")
        Store.open(wrong).close()
