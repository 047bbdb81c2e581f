"""The TrajectoryStore: everything that a run leaves behind, in one SQL database."""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, Unpack

from sqlalchemy import Connection, insert, select, update

from agentrl.errors import StoreError
from agentrl.store import facts, find, line, lineage, reading, upkeep, watching
from agentrl.store.damage import Damage
from agentrl.store.database import Database
from agentrl.store.queue import Queue
from agentrl.store.recorder import SqlRecorder
from agentrl.store.records import (
    CallFacts,
    Endings,
    GroupFacts,
    LastStep,
    Reply,
    RunRecord,
    RunStatus,
    StepFacts,
    StepRecord,
    StepRow,
    StepUse,
    ToolFacts,
    TrajectorySummary,
    VersionRecord,
)
from agentrl.store.schema import Migrated, check, migrate
from agentrl.store.sealing import seal, unseal
from agentrl.store.tables import Runs, table
from agentrl.store.verify import verify
from agentrl.store.writer import Writer
from agentrl.types import Grade, Group, Sample, Trajectory


class Store:
    """Writes are coroutines that return once durable (kill -9 can't undo them); reads are plain methods.

    Reads see the last commit and take no lock. One Store serves any number of event loops and threads of a process;
    several processes may open the same database. All methods raise StoreError, naming the database or the record.
    """

    def __init__(self, database: Database) -> None:
        """Use `Store.open`."""
        self._database = database
        self._writer = Writer(database)
        self.location = database.location
        """The path, or the URL without its password."""
        self.target = database.target
        """What opens it again: the path, or the URL with its password. Not to be shown or written down."""
        self.recorder = SqlRecorder(self._writer)
        self.queue = Queue(self._writer, database)

    @classmethod
    def open(cls, target: str | Path, *, busy_timeout_s: float = 30.0, read_only: bool = False) -> Self:
        """Open a SQLite path or a SQLAlchemy URL; make or upgrade its tables and a SQLite file's folder.

        `read_only`: nothing is made or upgraded, and writes fail; tables of another schema are refused.

        `busy_timeout_s`: how long to wait for another process's write. Raises StoreError for a file that is no
        store, is corrupt, read-only or locked, and for a schema that is newer than this code.
        """
        database = Database.open(target, busy_timeout_s, read_only=read_only)
        try:
            check(database) if read_only else migrate(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def check(self) -> None:
        """Raises StoreError unless the tables are those that this code reads: they may have been migrated since."""
        check(self._database)

    @classmethod
    def migrate(cls, target: str | Path) -> Migrated:
        """Bring a database to this code's schema; `open` does it too. Raises StoreError as `open` does."""
        database = Database.open(target, busy_timeout_s=30.0)
        try:
            return migrate(database)
        finally:
            database.close()

    def close(self) -> None:
        """Finish the writes that were asked for and close the database. Can be called again."""
        self._writer.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Runs, versions, steps

    async def create_run(
        self,
        name: str,
        config: dict[str, Any],
        *,
        seed: int = 0,
        folder: str = "",
        packages: dict[str, str] | None = None,
        git_commit: str | None = None,
    ) -> str:
        """Add a run that is running and return its id. `config` is the whole config, without secrets."""
        run = secrets.token_hex(6)
        record = {"id": run, "name": name, "config": config, "seed": seed, "folder": folder}
        record |= {"packages": packages or {}, "git_commit": git_commit}
        sealed = seal(record | {"status": RunStatus.RUNNING.value, "started_at": time.time()})

        def work(connection: Connection) -> str:
            connection.execute(insert(table(Runs)), sealed)
            return run

        return await self._writer.write(work)

    async def finish_run(self, run: str, status: RunStatus = RunStatus.COMPLETED) -> None:
        """Set how the run ended; a run that is resumed may end again."""
        changes = {"status": status.value, "finished_at": time.time()}

        def work(connection: Connection) -> None:
            if connection.execute(update(table(Runs)).where(Runs.id == run).values(changes)).rowcount == 0:
                raise StoreError(f"no run {run!r} in the store")

        await self._writer.write(work)

    async def describe_template(self, run: str, facts: dict[str, Any]) -> None:
        """Put what is known of the chat template of a run's model (JSON) beside its config, as `template`."""

        def work(connection: Connection) -> None:
            record = connection.execute(select(table(Runs)).where(Runs.id == run)).mappings().one_or_none()
            if record is None:
                raise StoreError(f"no run {run!r} in the store")
            values = unseal(record)
            sealed = seal(values | {"config": values["config"] | {"template": facts}})
            connection.execute(update(table(Runs)).where(Runs.id == run).values(sealed))

        await self._writer.write(work)

    async def add_version(
        self, run: str, *, parent: tuple[str, int] | None, step: int | None, weights_hash: str, ordinal: int
    ) -> int:
        """Add weights and return their id, which is never re-used: 0 for the run's first."""

        def work(connection: Connection) -> int:
            return line.add_version(
                connection, run, parent=parent, step=step, weights_hash=weights_hash, ordinal=ordinal
            )

        return await self._writer.write(work)

    async def begin_step(self, run: str, *, ordinal: int, version: int) -> int:
        """Begin a step from `version` and return its id, which is never re-used: 0 for the run's first."""
        return await self._writer.write(
            lambda connection: line.begin_step(connection, run, ordinal=ordinal, version=version)
        )

    async def record_step(
        self,
        run: str,
        step: int,
        *,
        rows: Sequence[StepRow],
        metrics: dict[str, Any],
        version_after: int | None,
    ) -> None:
        """Write what the step did and consume its claims, at once. `version_after` None: a step without signal."""

        def work(connection: Connection) -> None:
            line.record_step(connection, run, step, rows=rows, metrics=metrics, version_after=version_after)

        await self._writer.write(work)

    async def abandon(self, run: str, *, version: int, step: int | None) -> None:
        """Go back to the checkpoint that holds `version` and was taken after `step`: see `line.abandon`."""
        await self._writer.write(lambda connection: line.abandon(connection, run, version=version, step=step))

    def runs(self) -> list[RunRecord]:
        """All runs, the newest first."""
        with self._database.reading() as connection:
            return find.runs(connection)

    def find_run(self, name: str) -> RunRecord:
        """The newest run with this folder name, else the one whose id begins so. Raises NotStored."""
        runs = self.runs()
        named = next((record for record in runs if record.name == name), None)
        if named is not None:
            return named
        run = self.resolve("run", name)
        return next(record for record in runs if record.id == run)

    def versions(self, run: str) -> list[VersionRecord]:
        """All versions of a run by id, abandoned ones too."""
        with self._database.reading() as connection:
            return line.versions(connection, run)

    def steps(self, run: str) -> list[StepRecord]:
        """All steps of a run by id, abandoned ones too."""
        with self._database.reading() as connection:
            return line.steps(connection, run)

    # Trajectories

    def load_trajectory(self, id: str) -> Trajectory:
        """The trajectory, equal to what was recorded (NaN aside)."""
        with self._database.reading() as connection:
            return reading.load_trajectories(connection, [id])[0]

    def load_sample(self, id: str) -> Sample:
        """The trajectory with its latest grade and the grade's id."""
        with self._database.reading() as connection:
            return reading.load_sample(connection, id)

    def load_samples(self, ids: Sequence[str]) -> list[Sample]:
        """The trajectories with their latest grades, in the order of `ids`."""
        with self._database.reading() as connection:
            return reading.load_samples(connection, ids)

    def known(self, ids: Sequence[str]) -> set[str]:
        """Those of the ids that are a trajectory's."""
        with self._database.reading() as connection:
            return reading.known(connection, ids)

    def load_group(self, id: str, *, outline: bool = False) -> Group:
        """The group with each sample's final attempt, its latest grade and the grade's id.

        `outline`: the samples come without turns and artifacts.
        """
        with self._database.reading() as connection:
            return reading.load_group(connection, id, outline=outline)

    def group_facts(self, run: str) -> list[GroupFacts]:
        """The groups that a run planned or trained on, in the order of its steps and plan (see `facts`)."""
        with self._database.reading() as connection:
            return facts.group_facts(connection, run)

    def groups_of(self, run: str, step: int) -> list[str]:
        """The groups that a step claimed, in its order; those of an abandoned step too."""
        with self._database.reading() as connection:
            return facts.claimed(connection, run, step)

    def find_trajectories(
        self,
        *,
        limit: int | None = None,
        after: tuple[float, str] | None = None,
        oldest_first: bool = False,
        **which: Unpack[find.Selection],
    ) -> list[TrajectorySummary]:
        """Summaries of the trajectories that match all that is given, the newest first: at most `limit`.

        `after`: the (started_at, id) of the last one that was seen already, where the list goes on behind it.
        """
        with self._database.reading() as connection:
            return find.find_trajectories(connection, limit=limit, after=after, oldest_first=oldest_first, **which)

    def steps_of(self, trajectory: str) -> list[StepUse]:
        """Every step that trained on the trajectory, with advantage, ratio, clip share and staleness (S2)."""
        with self._database.reading() as connection:
            return lineage.steps_of(connection, trajectory)

    def grades_of(self, trajectory: str) -> dict[int, Grade]:
        """All grades of the trajectory by id; the last one is the latest."""
        with self._database.reading() as connection:
            return lineage.grades_of(connection, trajectory)

    def trajectories_of(self, run: str, step: int) -> list[str]:
        """The trajectories that a step trained on, in the order of its Rows (S2)."""
        return list(dict.fromkeys(row.trajectory for row in self.rows_of(run, step)))

    def rows_of(self, run: str, step: int) -> list[StepRow]:
        """The Rows of a step in the order (batch, position) (S3)."""
        with self._database.reading() as connection:
            return find.rows_of(connection, run, step)

    def resolve(self, kind: find.Kind, prefix: str) -> str:
        """The one id that starts with `prefix`. Raises NotStored listing candidates where none or several do."""
        with self._database.reading() as connection:
            return find.resolve(connection, kind, prefix)

    # Looking on

    def endings(self, run: str | None, num_spans: int = 1) -> list[Endings]:
        """How the trajectories of a run, or of all runs, ended, by equal spans of the time they began in."""
        with self._database.reading() as connection:
            return watching.endings(connection, run, num_spans)

    def slow_tools(self, run: str | None, num_recent: int, limit: int) -> list[ToolFacts]:
        """The tools whose calls took longest on average in the newest trajectories of a run, or of all runs."""
        with self._database.reading() as connection:
            return watching.slow_tools(connection, run, num_recent, limit)

    def slow_calls(self, run: str | None, num_recent: int, limit: int) -> list[CallFacts]:
        """The tool calls that took longest in them."""
        with self._database.reading() as connection:
            return watching.slow_calls(connection, run, num_recent, limit)

    def longest(self, run: str | None, num_recent: int, limit: int) -> list[TrajectorySummary]:
        """Those of them that took longest, the longest first."""
        with self._database.reading() as connection:
            return watching.longest(connection, run, num_recent, limit)

    def replies(self, trajectories: Sequence[str], start: int | None, num: int) -> dict[str, list[Reply]]:
        """By trajectory, `num` of its turns from `start` on as texts, without ids; None: the last ones."""
        with self._database.reading() as connection:
            return watching.replies(connection, trajectories, start, num)

    def group_states(self, run: str) -> dict[str, int]:
        """How many groups that a run planned are in each state."""
        with self._database.reading() as connection:
            return watching.group_states(connection, run)

    def last_steps(self) -> dict[str, LastStep]:
        """By run that has steps, how many, and what the last one measured."""
        with self._database.reading() as connection:
            return watching.last_steps(connection)

    def step_facts(self, run: str) -> dict[int, StepFacts]:
        """By step of a run, what the trajectories were like that it trained on."""
        with self._database.reading() as connection:
            return watching.step_facts(connection, run)

    def mark(self, kind: Literal["runs", "run", "trajectory"], id: str = "") -> str:
        """A text that is another one once something of it has changed. Raises NotStored."""
        with self._database.reading() as connection:
            if kind == "runs":
                return watching.runs_mark(connection)
            return {"run": watching.run_mark, "trajectory": watching.trajectory_mark}[kind](connection, id)

    # Upkeep

    def table_stats(self) -> list[upkeep.TableStats]:
        """How much each table holds, the largest first."""
        with self._database.reading() as connection:
            return upkeep.table_stats(connection)

    def run_stats(self) -> list[upkeep.RunStats]:
        """How much each run holds, the newest first."""
        with self._database.reading() as connection:
            return upkeep.run_stats(connection)

    def verify(self) -> Iterator[Damage]:
        """Every record that isn't as it was written: hashes and lengths are computed again."""
        with self._database.reading() as connection:
            yield from verify(connection)

    def garbage(
        self, *, runs: Sequence[str] = (), dead: Collection[str] = (), older_than_s: float = 0.0
    ) -> upkeep.Garbage:
        """What may be deleted: see `upkeep.garbage`. Nothing is."""
        with self._database.reading() as connection:
            return upkeep.garbage(connection, runs=runs, dead=dead, older_than_s=older_than_s)

    async def remove_garbage(
        self, *, runs: Sequence[str] = (), dead: Collection[str] = (), older_than_s: float = 0.0
    ) -> upkeep.Garbage:
        """Delete it, all or nothing; what went."""

        def work(connection: Connection) -> upkeep.Garbage:
            found = upkeep.garbage(connection, runs=runs, dead=dead, older_than_s=older_than_s)
            upkeep.remove(connection, found)
            return found

        return await self._writer.write(work)
