"""Export → import → export gives the same; import → Rows gives the ids that were exported."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl import plugins
from agentrl.environment import Oracle, StepResult
from agentrl.exchange.examples import Column, Form
from agentrl.exchange.exporting import Order, export
from agentrl.exchange.files import reading, writing
from agentrl.rollout.renderer import Renderer
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.tool import ToolResult
from agentrl.types import Grade, Message, Sampler, StopReason, Task, Trajectory
from tests.exchange.helpers import demonstrated, imported, lines, rows, samples, stored
from tests.rollout.templates import renderer as family
from tests.store.builders import record, same, start_run, trajectory, turn
from tests.store.test_round_trip import grades, whole_trajectories

KINDS = (".jsonl", ".parquet", "")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: Toy)


def exported(database: str | Path, form: Form, target: Path, **order: Any) -> list[dict[str, Any]]:
    """The examples without their provenance, which differs: it says which trajectory they are of."""
    with Store.open(database) as store:
        export(store, Order(form=form, **order), target, overwrite=True)
    if target.suffix != ".jsonl":
        return []
    return [{name: value for name, value in one.items() if name != "provenance"} for one in lines(target)]


def of_import(example: dict[str, Any]) -> dict[str, Any]:
    """Run and group are the import's own; `raw` holds the run again."""
    own = {name: value for name, value in example["trajectory"].items() if name not in ("run", "group")}
    return {"trajectory": own, "grades": example["grades"], "has_raw": "raw" in example}


numbers = itertools.count()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("two")
    with Store.open(folder / "one.db") as one, Store.open(folder / "two.db") as two:
        yield folder, one, two


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(wholes=st.lists(st.tuples(whole_trajectories(), st.lists(grades(), max_size=2)), min_size=1, max_size=6))
def test_j03_whole_trajectories_come_back_whatever_they_hold(
    kind: str, stores: Any, wholes: list[tuple[Trajectory, list[Grade]]]
) -> None:
    folder, one, two = stores
    source = folder / f"out{kind}"

    async def write() -> None:
        run = await start_run(one)
        for rollout, its_grades in wholes:
            rollout.id, rollout.run = f"whole{next(numbers)}", run
            await record(one, rollout, reward=None)
            for grade in its_grades:
                await one.recorder.add_grade(rollout, grade)

    asyncio.run(write())
    ids = tuple(rollout.id for rollout, _ in wholes)
    order = Order(form=Form.TRAJECTORIES, which={"ids": ids})
    export(one, order, source, overwrite=True)
    run = imported(two.location, source).run
    for rollout, _ in wholes:
        found = two.load_trajectory(rollout.id)
        assert found.run == run and found.group is None
        rollout.run = run
        assert same(found, rollout)
        assert all_grades(two, rollout.id) == all_grades(one, rollout.id)
    again = folder / f"again{kind}"
    export(two, order, again, overwrite=True)
    contents = [[of_import(example) for _, example in reading(path)] for path in (source, again)]
    assert contents[0] == contents[1] and len(contents[0]) == len(wholes)


def all_grades(store: Store, id: str) -> list[str]:
    """NaN included."""
    return [repr(grade) for grade in store.grades_of(id).values()]


def test_a_fork_comes_back_with_its_origin(tmp_path: Path) -> None:
    fork = trajectory("", id="fork", forked_from=("origin", 0), started_at=20.0)
    database = stored(tmp_path / "s.db", trajectory("", id="origin"), fork)
    exported(database, Form.TRAJECTORIES, tmp_path / "out.jsonl")
    imported(tmp_path / "two.db", tmp_path / "out.jsonl")
    assert [one.trajectory.forked_from for one in samples(tmp_path / "two.db")] == [None, ("origin", 0)]


@pytest.mark.parametrize("model", ["smollm2", "llama3_2"])
def test_messages_become_the_ids_that_were_played(model: str, tmp_path: Path) -> None:
    """The oracle's replies are what the template writes, so that its ids follow from the messages."""
    renderer = family(model)
    database = demonstrated(tmp_path / "s.db", renderer, max_turn_tokens=200)
    before = exported(database, Form.MESSAGES, tmp_path / "out.jsonl")
    assert len(before) == 4 and [one["role"] for one in before[0]["messages"]][-3:] == [
        "assistant",
        "tool",
        "assistant",
    ]
    done = imported(tmp_path / "two.db", tmp_path / "out.jsonl", renderer)
    assert done.forms == {"messages": 4} and done.num_rewards == 4
    was, now = rows(database), rows(tmp_path / "two.db")
    assert [(row.ids.tolist(), row.mask.tolist()) for row in now] == [(r.ids.tolist(), r.mask.tolist()) for r in was]
    assert exported(tmp_path / "two.db", Form.MESSAGES, tmp_path / "again.jsonl") == before


@pytest.mark.parametrize("kind", KINDS)
def test_messages_come_back_from_each_kind_of_file(kind: str, renderer: Renderer, tmp_path: Path) -> None:
    database = demonstrated(tmp_path / "s.db", renderer, max_turn_tokens=200)
    before = exported(database, Form.MESSAGES, tmp_path / "out.jsonl")
    exported(database, Form.MESSAGES, tmp_path / f"source{kind}")
    imported(tmp_path / "two.db", tmp_path / f"source{kind}", renderer)
    assert exported(tmp_path / "two.db", Form.MESSAGES, tmp_path / "again.jsonl") == before
    assert [one.grade and one.grade.reward for one in samples(tmp_path / "two.db")] == [1.0] * 4


class Thinker(Toy):
    """Asks twice: the template drops the thinking of the first reply once the second question is there."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        self.num_asked = getattr(self, "num_asked", 1) + 1
        return StepResult(messages=[Message(role="user", content="Again?")], terminated=self.num_asked > 2)

    def oracle(self, task: Task) -> Oracle:
        return lambda messages: Message(role="assistant", content=str(task.data["word"]), reasoning="hm")


def test_the_branches_of_a_template_that_rewrites_history_come_back_as_rows(tmp_path: Path) -> None:
    renderer = family("qwen3")
    branched = Renderer(renderer.tokenizer, mode="rerender")
    database = demonstrated(tmp_path / "s.db", branched, Thinker, max_turn_tokens=200)
    before = exported(database, Form.TOKENS, tmp_path / "out.jsonl")
    assert len(before) == 8, "two Rows a trajectory"
    imported(tmp_path / "two.db", tmp_path / "out.jsonl", branched)
    assert exported(tmp_path / "two.db", Form.TOKENS, tmp_path / "again.jsonl") == before
    messages = exported(database, Form.MESSAGES, tmp_path / "messages.jsonl")
    imported(tmp_path / "three.db", tmp_path / "messages.jsonl", branched)
    assert exported(tmp_path / "three.db", Form.MESSAGES, tmp_path / "again.jsonl") == messages
    assert exported(tmp_path / "three.db", Form.TOKENS, tmp_path / "again.jsonl") == before


ROWS = st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=1, max_size=12)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(ROWS, min_size=1, max_size=20))
def test_ids_and_masks_come_back(
    kind: str, drawn: list[list[tuple[int, bool]]], renderer: Renderer, tmp_path: Path
) -> None:
    """Begins with one id to condition on, and ends with one to learn: what stands behind that is left out."""
    columns = [zip(*[(1, False), *row, (2, True)], strict=True) for row in drawn]
    examples = [{"input_ids": list(ids), "assistant_masks": list(map(int, learnt))} for ids, learnt in columns]
    source = tmp_path / f"{next(numbers)}{kind}"
    with writing(source, Form.TOKENS) as sink:
        for one in examples:
            sink.write(one | {"provenance": {"env": "mine"}})
    database = source.with_name(f"{source.name}.db")
    imported(database, source, renderer)
    assert exported(database, Form.TOKENS, tmp_path / "again.jsonl") == examples


def test_what_is_imported_has_no_logprobs_and_no_versions_and_weight_0_but_in_imitation(
    renderer: Renderer, tmp_path: Path
) -> None:
    database = demonstrated(tmp_path / "s.db", renderer, max_turn_tokens=200)
    exported(database, Form.MESSAGES, tmp_path / "messages.jsonl")
    exported(database, Form.TOKENS, tmp_path / "tokens.jsonl")
    for form in ("messages", "tokens"):
        imported(tmp_path / f"{form}.db", tmp_path / f"{form}.jsonl", renderer)
        found = samples(tmp_path / f"{form}.db")
        turns = [turn for sample in found for turn in sample.trajectory.turns]
        assert {turn.sampler for turn in turns} == {Sampler.IMPORT}
        assert all(math.isnan(value) for turn in turns for value in turn.logprobs)
        assert {version for turn in turns for version in turn.versions} == {-1}
        assert {one.trajectory.stop_reason for one in found} == {StopReason.COMPLETED}
        for row in rows(tmp_path / f"{form}.db", for_sft=False):
            assert not row.live and {run.reason for run in row.runs} == {"sampler=import"}
        assert all(row.live for row in rows(tmp_path / f"{form}.db"))


def test_the_columns_of_an_engines_ids(tmp_path: Path) -> None:
    database = stored(tmp_path / "s.db", trajectory("", turns=[turn()]))
    columns = tuple(Column)
    [example] = exported(database, Form.TOKENS, tmp_path / "out.jsonl", columns=columns)
    assert example["logprobs"] == [None, None, None, -0.5, -0.5] and example["versions"] == [-1, -1, -1, 0, 0]
    assert example["weights"] == [0.0, 0.0, 0.0, 1.0, 1.0]
