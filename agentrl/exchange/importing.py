"""A file of examples → trajectories of one new run, all of them or none.

    messages    rendered by a model's template; sampler import, no logprobs, no versions
    tokens      ids as they are; the same
    whole       as they were recorded: ids, logprobs and versions are facts of where they were sampled

None of them belongs to a group, so no policy-gradient step learns from them; `agentrl sft sft.run=RUN` does.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.batch.rows import build_rows
from agentrl.errors import ExchangeError, RowError, StoreError
from agentrl.exchange.examples import Form
from agentrl.exchange.files import reading
from agentrl.exchange.lines import Conversation, Ids, Origin, named, parse, refuse
from agentrl.exchange.turns import turns_of_ids, turns_of_messages
from agentrl.exchange.whole import read_whole
from agentrl.interrupts import uninterrupted
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.tokenizer import vocabulary_hash
from agentrl.store.parts import check_lengths, check_parent
from agentrl.store.records import RunStatus
from agentrl.store.store import Store
from agentrl.types import Artifacts, Grade, Message, Sample, StopReason, Task, Trajectory, Turn

Json = dict[str, Any]
BATCH = 64
"""Trajectories that are written at once."""


@dataclass(kw_only=True, slots=True)
class Imported:
    """What became of a file."""

    run: str
    forms: Counter[str] = field(default_factory=Counter)
    """Trajectories by the form of their examples."""
    num_rewards: int = 0
    """Trajectories that came with a measured reward."""


async def bring_in(
    store: Store, source: Path, *, model: Path | None = None, renderer: Renderer | None = None, name: str | None = None
) -> Imported:
    """Import a file as a run called `name` (None: as the file). `renderer`: of the folder `model`; whole trajectories
    need none.

    Raises ConfigError for a file that isn't there, ExchangeError where an example doesn't fit or can't be written.
    Then, and where it is stopped, nothing of it stays.
    """
    lines = reading(source)
    first = next(lines, None)
    if first is None:
        raise ExchangeError(f"{source}: there is no example in it; nothing was imported")
    vocabulary = vocabulary_hash(model) if model else _vocabulary_of(first[1])
    config = {"command": "import", "file": str(source), "model_folder": model and str(model), "vocabulary": vocabulary}
    run = await store.create_run(name or source.stem, config, packages={"agentrl": metadata.version("agentrl")})
    try:
        reader = _Reader(store, source, run, renderer, vocabulary)
        done = await _write(store, source, Imported(run=run), reader.all(chain([first], lines)))
        await store.finish_run(run, RunStatus.COMPLETED)
        return done
    except BaseException:
        await uninterrupted(_take_back(store, run))
        raise


async def _write(store: Store, source: Path, done: Imported, read: Iterator[Read]) -> Imported:
    while batch := list(islice(read, BATCH)):
        try:
            await store.recorder.add_finished([one.first for one in batch])
            for one in batch:
                for grade in one.grades[1:]:
                    await store.recorder.add_grade(one.trajectory, grade)
        except StoreError as error:
            raise ExchangeError(f"{source}: {error}; nothing was imported") from error
        done.forms.update(one.form for one in batch)
        done.num_rewards += sum(bool(one.grades) and one.grades[-1].reward is not None for one in batch)
    return done


async def _take_back(store: Store, run: str) -> None:
    with suppress(StoreError):  # the database itself may be at fault; the run then stays `running`, and isn't used
        await store.remove_garbage(runs=[run], dead=[run])


def _vocabulary_of(example: Json) -> str | None:
    origin = example.get("provenance")
    found = origin.get("vocabulary") if isinstance(origin, dict) else None
    return found if isinstance(found, str) else None


class Read(NamedTuple):
    """An example as a trajectory with its grades, the oldest first."""

    form: Form
    trajectory: Trajectory
    grades: list[Grade]

    @property
    def first(self) -> Sample:
        """With the grade that is appended first."""
        return Sample(trajectory=self.trajectory, grade=self.grades[0] if self.grades else None)


class _Reader:
    """Examples → trajectories of a run."""

    def __init__(self, store: Store, source: Path, run: str, renderer: Renderer | None, vocabulary: str | None) -> None:
        self.store = store
        self.source = source
        self.run = run
        self.renderer = renderer
        self.vocabulary = vocabulary
        self.started_at = time.time()
        self._ids: set[str] = set()
        """Of trajectories that come with an id of their own."""

    def all(self, lines: Iterable[tuple[int, Json]]) -> Iterator[Read]:
        """Raises ExchangeError for the first that doesn't fit."""
        for number, value in lines:
            where = f"{self.source}, {'line' if self.source.suffix == '.jsonl' else 'example'} {number}"
            yield self._read(where, number, value)

    def _read(self, where: str, number: int, value: Json) -> Read:
        if "trajectory" in value:
            return self._whole(where, value)
        if "messages" in value:
            return self._conversation(where, number, parse(Conversation, where, value))
        if "input_ids" in value or "ids" in value:
            return self._tokens(where, number, parse(Ids, where, value))
        keys = ", ".join(list(value)[:8]) or "none"
        refuse(where, f"it has neither messages nor input_ids nor a trajectory, but the keys {keys}: name one so")

    def _conversation(self, where: str, number: int, line: Conversation) -> Read:
        renderer, tools = self._renderer(where), line.tools or []
        turns = turns_of_messages(line.messages, tools, renderer, where)
        task = self._task(line.provenance, number, turns[0].prompt_messages, {"tools": tools})
        return self._new(Form.MESSAGES, where, number, task, turns, line.provenance)

    def _tokens(self, where: str, number: int, line: Ids) -> Read:
        renderer = self._renderer(where)
        self._check_tokenizer(where, line.provenance)
        turns = turns_of_ids(line, renderer, where)
        task = self._task(line.provenance, number, [], {})
        return self._new(Form.TOKENS, where, number, task, turns, line.provenance)

    def _renderer(self, where: str) -> Renderer:
        if self.renderer is None:
            refuse(where, "messages and ids need a tokenizer: add --model MODEL, the model that will learn them")
        return self.renderer

    def _check_tokenizer(self, where: str, origin: Origin) -> None:
        """Ids mean something to one tokenizer only."""
        if self.vocabulary and origin.vocabulary and origin.vocabulary != self.vocabulary:
            other = "the first example's" if self.renderer is None else "that of --model"
            refuse(where, f"provenance.vocabulary: its ids are of another tokenizer than {other}: import it apart")
        if self.renderer and origin.template_hash and origin.template_hash != self.renderer.template_hash:
            refuse(where, "provenance.template_hash: its ids are of another chat template than --model's: name theirs")

    def _task(self, origin: Origin, number: int, messages: list[Message], data: Json) -> Task:
        id = origin.task or f"{self.source.stem}-{number}"
        return Task(env=origin.env, id=id, split=origin.split, messages=messages, data=data)

    def _new(self, form: Form, where: str, number: int, task: Task, turns: list[Turn], origin: Origin) -> Read:
        renderer = self._renderer(where)
        started_at = self.started_at + number / 1e6  # exports go by the time, and so in the order of the file
        trajectory = Trajectory(
            id=uuid.uuid4().hex,
            run=self.run,
            task=task,
            group=None,
            renderer_mode=renderer.mode,
            template_hash=renderer.template_hash,
            turns=turns,
            stop_reason=StopReason.COMPLETED,
            artifacts=Artifacts(data={"imported": {"from": where, **origin.model_dump(exclude_none=True)}}),
            started_at=started_at,
            finished_at=started_at,
        )
        grades = [] if origin.reward is None else [Grade(reward=origin.reward, grader="import")]
        read = Read(form, trajectory, grades)
        try:
            build_rows(read.first, for_sft=True)
        except RowError as error:
            refuse(where, str(error))
        return read

    def _whole(self, where: str, value: Json) -> Read:
        with named(where, "trajectory", "grades"):
            trajectory, grades = read_whole(value)
            self._check_tokenizer(where, Origin.model_validate(value.get("provenance") or {}))
        if trajectory.stop_reason is None or trajectory.finished_at is None:
            refuse(where, "trajectory.stop_reason: it isn't finished: export it once it is")
        self._check_ids(where, trajectory)
        for place, turn in enumerate(trajectory.turns):
            try:
                check_lengths(trajectory.id, turn)
                check_parent(trajectory, place)
            except StoreError as error:
                refuse(where, str(error))
        return Read(Form.TRAJECTORIES, replace(trajectory, run=self.run, group=None), grades)

    def _check_ids(self, where: str, trajectory: Trajectory) -> None:
        """Ids are kept, so they must be free; what was forked needs what it was forked from."""
        if not trajectory.id.isprintable() or trajectory.id[:1] in ("", "-"):  # a dash begins an option
            refuse(where, f"trajectory.id: {trajectory.id!r} can't be typed: give it letters and digits")
        asked = [trajectory.id, *(trajectory.forked_from or ())[:1]]
        known = self.store.known(asked) | (self._ids & set(asked))
        if trajectory.id in known:
            refuse(where, f"trajectory.id: {trajectory.id} is in {self.store.location} already: leave it out")
        origin = trajectory.forked_from and trajectory.forked_from[0]
        if origin and origin not in known:
            refuse(where, f"trajectory.forked_from: {origin} isn't known: put its line before this one")
        self._ids.add(trajectory.id)
