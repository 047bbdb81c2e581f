"""What is exported of which trajectories."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.batch.rows import build_rows
from agentrl.cli import main
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.types import Purpose, Sampler, StopReason, ToolCall, Trajectory, Turn
from tests.exchange.helpers import lines, said, samples, stored, user
from tests.store.builders import leased, record, start_run, task, trajectory, turn


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: Toy)


def export(database: str, form: str, *words: str) -> list[dict[str, Any]]:
    """The examples of `agentrl export`."""
    target = Path(database).with_name(f"{form}.jsonl")
    assert main(["export", form, str(target), "--db", database, "--overwrite", *words]) == 0
    return lines(target)


def talk(*turns: Turn, **changes: Any) -> Trajectory:
    return trajectory("", turns=list(turns), **changes)


def of_turn(index: int, before: list[Any], reply: Any, **changes: Any) -> Turn:
    """A turn that keeps all of the turn before it: 3 prompt ids and 2 sampled ones each."""
    parent = None if index == 0 else index - 1
    own = {"parent": parent, "keep": 5 * index, "prompt_messages": before, "message": reply}
    return turn(index, **own | changes)


TWO_TURNS = [
    of_turn(0, [user("a")], said("", tool_calls=[ToolCall(id="c", name="repeat", arguments='{"text":"b"}')])),
    of_turn(1, [user("c")], said("d", reasoning="hm")),
]


def test_messages_are_what_chat_templates_take(tmp_path: Path) -> None:
    [example] = export(stored(tmp_path / "s.db", talk(*TWO_TURNS)), "messages")
    call = {"id": "c", "type": "function", "function": {"name": "repeat", "arguments": {"text": "b"}}}
    assert example["messages"] == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "d", "reasoning_content": "hm"},
    ]
    assert example["tools"] == [tool.spec() for tool in Toy.tools]


def test_each_example_says_where_it_comes_from(tmp_path: Path) -> None:
    database = stored(tmp_path / "s.db", talk(*TWO_TURNS, id="t1"), reward=0.25)
    [example] = export(database, "messages")
    with Store.open(database) as store:
        run = store.runs()[0].id
    assert example["provenance"] == {
        "trajectory": "t1", "run": run, "group": None, "env": "toy", "task": "t0", "split": "train",
        "versions": [0, 0], "reward": 0.25, "stop_reason": "completed", "template_hash": "", "vocabulary": None,
        "agentrl": "0.1.0",
    }  # fmt: skip


def test_a_replaced_conversation_is_an_example_of_its_own_and_context_has_weight_0(tmp_path: Path) -> None:
    summary = [user("a"), said("so far: b"), user("go on")]
    database = stored(
        tmp_path / "s.db",
        talk(of_turn(0, [user("a")], said("b")), of_turn(1, summary, said("c"), keep=2)),
    )
    first, second = export(database, "messages")
    assert [one["content"] for one in first["messages"]] == ["a", "b"]
    assert [one["content"] for one in second["messages"]] == ["a", "so far: b", "go on", "c"]
    assert [one.get("weight") for one in second["messages"]] == [None, 0, None, None]


def test_what_a_fork_copied_is_shown_but_not_learnt(tmp_path: Path) -> None:
    copied = of_turn(
        0, [user("a")], said("b"), sampled_ids=[], logprobs=[], calls=[], sampler=Sampler.IMPORT, trained=False
    )
    database = stored(tmp_path / "s.db", talk(copied, of_turn(1, [user("c")], said("d"), keep=3)))
    [example] = export(database, "messages")
    assert [one.get("weight") for one in example["messages"]] == [None, 0, None, None]


def test_other_agents_are_not_in_the_conversation(tmp_path: Path) -> None:
    judge = turn(1, parent=None, agent="judge", trained=False, prompt_messages=[user("good?")], message=said("yes"))
    database = stored(tmp_path / "s.db", talk(of_turn(0, [user("a")], said("b")), judge))
    [example] = export(database, "messages")
    assert [one["content"] for one in example["messages"]] == ["a", "b"]


def test_a_reply_that_was_cut_is_no_message_to_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A template would end it as if it were whole. Its ids may be learnt: they hold no end."""
    cut = of_turn(1, [user("c")], said("half a"))
    cut.calls[0].finish_reason = "length"
    only = of_turn(0, [user("a")], said("half"), sampler=Sampler.SCRIPTED, calls=[])
    ending = {"stop_reason": StopReason.TURN_LENGTH}
    database = stored(tmp_path / "s.db", talk(TWO_TURNS[0], cut, **ending), talk(only, **ending))
    [example] = export(database, "messages")
    assert [one["role"] for one in example["messages"]] == ["user", "assistant"]
    assert "left out  1: no whole reply to a message" in capsys.readouterr().out
    assert len(export(database, "tokens")) == 2


def branched() -> Trajectory:
    """A prompt of 3 ids; turn 1 keeps only 4 of the 5 ids of turn 0."""
    return talk(of_turn(0, [user("a")], said("b")), of_turn(1, [user("c")], said("d"), keep=4), id="branched")


def test_each_row_is_an_example_with_the_mask_of_the_row(tmp_path: Path) -> None:
    database = stored(tmp_path / "s.db", branched())
    examples = export(database, "tokens", "--with", "logprobs", "versions", "weights")
    [sample] = samples(database)
    found = build_rows(sample, for_sft=True)
    assert [one["provenance"]["end_turn"] for one in examples] == [0, 1] == [row.end_turn for row in found]
    for example, row in zip(examples, found, strict=True):
        assert example["input_ids"] == row.ids.tolist()
        assert example["assistant_masks"] == row.mask.tolist()
        assert example["versions"] == row.versions.tolist() and example["weights"] == row.weights.tolist()
        logprobs = [None if value != value else value for value in row.logprobs.tolist()]
        assert example["logprobs"] == logprobs and None in logprobs and -0.5 in logprobs
    assert [one["assistant_masks"] for one in examples] == [[0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1, 1]]


def test_columns_of_ids_come_only_where_they_are_asked_for(tmp_path: Path) -> None:
    [example] = export(stored(tmp_path / "s.db", talk(TWO_TURNS[0])), "tokens")
    assert example.keys() == {"input_ids", "assistant_masks", "provenance"}


def test_what_teaches_nothing_is_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = turn(0, sampler=Sampler.TEXT)
    database = stored(
        tmp_path / "s.db", talk(TWO_TURNS[0]), talk(turn(0), stop_reason=StopReason.ENV_ERROR), talk(text)
    )
    assert len(export(database, "tokens")) == 1
    out = capsys.readouterr().out
    assert "1 examples from 3 trajectories" in out and "left out  1: ended in env_error" in out
    assert "left out  1: no ids to learn" in out
    assert len(export(database, "messages")) == 2  # a server's text is text


async def group_of(store: Store, run: str, *rewards: float | None, id: str) -> None:
    """A complete group whose samples say their place."""
    group = await store.queue.plan(run, task(id), purpose=Purpose.TRAIN, ordinal=0, size=len(rewards), version=0)
    lease = await leased(store, group)
    for place, reward in enumerate(rewards):
        says = of_turn(0, [user("a")], said(f"{id} {place}"))
        one = trajectory(run, group, sample=place, task=task(id), turns=[says], started_at=float(place))
        await record(store, one, lease.generation, reward=float("nan") if reward is None else reward)
    await store.queue.complete(lease)


@pytest.fixture
def groups(tmp_path: Path) -> str:
    async def write() -> None:
        with Store.open(tmp_path / "s.db") as store:
            run = await start_run(store)
            await group_of(store, run, 0.5, 1.0, None, 0.0, 1.0, id="mixed")
            await group_of(store, run, 1.0, 1.0, id="tied")
            await group_of(store, run, 1.0, None, id="half")

    asyncio.run(write())
    return str(tmp_path / "s.db")


def test_a_preference_is_the_best_against_the_worst_of_a_group(groups: str, capsys: pytest.CaptureFixture[str]) -> None:
    [pair] = export(groups, "preferences")
    assert pair["prompt"] == [{"role": "user", "content": "a"}] and len(pair["tools"]) == len(Toy.tools)
    assert pair["chosen"] == [{"role": "assistant", "content": "mixed 1"}]
    assert pair["rejected"] == [{"role": "assistant", "content": "mixed 3"}]
    assert [pair["provenance"][one]["reward"] for one in ("chosen", "rejected")] == [1.0, 0.0]
    out = capsys.readouterr().out
    assert "left out  1: all rewards of the group are equal" in out
    assert "left out  1: fewer than two measured samples in the group" in out


def test_the_best_of_a_group(groups: str) -> None:
    found = export(groups, "messages", "--best-of-group")
    assert sorted(one["messages"][-1]["content"] for one in found) == ["half 0", "mixed 1", "tied 0"]
    [found] = export(groups, "messages", "--best-of-group", "--max-reward", "0.5")
    assert found["messages"][-1]["content"] == "mixed 0"


def test_an_attempt_that_was_made_again_is_in_no_pair(tmp_path: Path) -> None:
    """The group was issued again after a crash: what was played before is stored, but isn't its sample any more."""
    database = tmp_path / "s.db"

    async def write() -> None:
        with Store.open(database) as store:
            run = await start_run(store)
            group = await store.queue.plan(run, task(), purpose=Purpose.TRAIN, ordinal=0, size=2, version=0)
            lease = await leased(store, group)
            for sample, reissue, reward in ((0, 0, 9.0), (0, 1, 0.5), (1, 1, 0.0)):
                says = of_turn(0, [user("a")], said(f"{sample} {reissue}"))
                one = trajectory(run, group, sample=sample, reissue=reissue, turns=[says])
                await record(store, one, lease.generation, reward=reward)
            await store.queue.complete(lease)

    asyncio.run(write())
    [pair] = export(str(database), "preferences")
    assert pair["chosen"][0]["content"] == "0 1" and pair["rejected"][0]["content"] == "1 1"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--min-reward", "1"], {"mixed 1", "mixed 4", "tied 0", "tied 1", "half 0"}),
        (["--max-reward", "0"], {"mixed 3"}),
        (["--min-reward", "0.1", "--max-reward", "0.9"], {"mixed 0"}),
        (["--purpose", "train", "--env", "toy", "--split", "train", "--stop-reason", "completed"], None),
        (["--run", "toy run", "--max-reward", "0"], {"mixed 3"}),
    ],
)
def test_which_are_exported(words: list[str], found: set[str] | None, groups: str) -> None:
    said = {one["messages"][-1]["content"] for one in export(groups, "messages", *words)}
    assert said == found if found is not None else len(said) == 9


def test_by_id_by_group_and_by_step(groups: str) -> None:
    [one] = [one for one in samples(groups) if one.grade and one.grade.reward == 0]
    id, group = one.trajectory.id, one.trajectory.group
    assert [e["provenance"]["trajectory"] for e in export(groups, "trajectories", "--id", id)] == [id]
    assert len(export(groups, "messages", "--group", str(group)[:8])) == 5

    async def train() -> str:
        from agentrl.store import StepRow

        with Store.open(groups) as store:
            run = store.runs()[0].id
            step = await store.begin_step(run, ordinal=0, version=0)
            used = StepRow(batch=0, position=0, trajectory=id, end_turn=0, grade_id=one.grade_id, advantage=1.0)
            await store.record_step(run, step, rows=[used], metrics={}, version_after=None)
            return run

    run = asyncio.run(train())
    found = export(groups, "tokens", "--run", run, "--step", "0")
    assert [example["provenance"]["trajectory"] for example in found] == [id]


def test_the_latest_grade_counts(tmp_path: Path) -> None:
    from agentrl.types import Grade

    database = stored(tmp_path / "s.db", talk(TWO_TURNS[0], id="t"))

    async def regrade() -> None:
        with Store.open(database) as store:
            await store.recorder.add_grade(store.load_trajectory("t"), Grade(reward=0.0, grader="second"))

    asyncio.run(regrade())
    [example] = export(database, "trajectories", "--max-reward", "0")
    assert [grade["reward"] for grade in example["grades"]] == [1.0, 0.0]
    assert example["provenance"]["reward"] == 0.0


def test_a_running_trajectory_is_not_exported(tmp_path: Path) -> None:
    database = stored(tmp_path / "s.db", talk(TWO_TURNS[0], id="done"))

    async def begin() -> None:
        with Store.open(database) as store:
            await store.recorder.begin(trajectory(store.runs()[0].id, id="going"), 0)

    asyncio.run(begin())
    assert [one["provenance"]["trajectory"] for one in export(database, "trajectories")] == ["done"]


def failing(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the one line of an error."""
    code = main(["export", *words])
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1, captured.err
    return code, captured.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["messages", "--env", "maze"], 1, "has no finished trajectory with env=maze"),
        (["messages", "--min-reward", "2"], 1, "has no finished trajectory with min_reward=2"),
        (["preferences"], 1, "of 1 trajectories with anything all were left out (1: in no group)"),
        (["messages", "--id", "tx"], 1, "no trajectory id starts with 'tx'; near: t1"),
        (["messages", "--run", "other"], 1, "no run id starts with 'other'"),
        (["messages", "--group", "g"], 1, "no group id starts with 'g'"),
        (["messages", "--step", "3"], 2, "a step needs the run that trained"),
        (["messages", "--step", "3", "--run", "toy run"], 2, "has no step 3"),
        (["messages", "--with", "logprobs"], 2, "--with belongs to tokens"),
        (["preferences", "--best-of-group"], 2, "leave it out"),
        (["messages", "--tools", "no.json"], 2, "--tools no.json"),
    ],
)
def test_what_cannot_be_exported_is_named(
    words: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = stored(tmp_path / "s.db", talk(TWO_TURNS[0], id="t1"))
    form, *rest = words
    found = failing(capsys, form, str(tmp_path / "out.jsonl"), "--db", database, *rest)
    assert found[0] == code and says in found[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.db"]


def test_an_environment_that_is_gone_is_named_and_its_tools_can_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    database, target = stored(tmp_path / "s.db", talk(TWO_TURNS[0])), tmp_path / "out.jsonl"
    code, line = failing(capsys, "messages", str(target), "--db", database)
    assert code == 1 and "'toy'" in line and "--tools FILE" in line and not target.exists()
    (tmp_path / "tools.json").write_text(json.dumps([{"type": "function"}]))
    assert export(database, "messages", "--tools", str(tmp_path / "tools.json"))[0]["tools"] == [{"type": "function"}]
    assert export(database, "messages", "--tools", "none")[0]["tools"] == []
    assert export(database, "tokens")  # ids need no tools
