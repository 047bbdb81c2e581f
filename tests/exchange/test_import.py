"""A file that doesn't fit is named by line and field, and nothing of it stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.errors import ExchangeError
from agentrl.rollout.renderer import Renderer
from agentrl.store import Store
from agentrl.train.tiny import build_tokenizer
from agentrl.types import CallStatus
from tests.exchange.helpers import imported, lines, samples, stored, write_lines
from tests.store.builders import trajectory, turn

ASK = {"role": "user", "content": "1+1?"}
SAY = {"role": "assistant", "content": "2"}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
GOOD = {"messages": [ASK, SAY], "tools": []}
IDS = {"input_ids": [1, 2, 3], "assistant_masks": [0, 0, 1]}


def talk(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": "a"}, "it has neither messages nor input_ids nor a trajectory, but the keys prompt"),
        (talk(), "messages: List should have at least 1 item"),
        (talk(ASK, {"role": "bot", "content": "2"}), r"messages\[1\].role: .*'user', 'assistant'.* not 'bot'"),
        (talk(ASK, {"content": "2"}), r"messages\[1\].role: Field required: add it"),
        (talk(ASK, SAY | {"function_call": {}}), r"messages\[1\].function_call: Extra inputs .*: take it out"),
        (talk({"role": "user", "content": [{"type": "image_url"}]}, SAY), r"messages\[0\].content.*"),
        (talk(ASK, SAY | {"tool_calls": [{"function": {}}]}), r"messages\[1\].tool_calls\[0\].function.name: "),
        (talk(ASK), "messages: none is a reply to learn"),
        (talk(ASK, SAY | {"weight": 0}), "messages: none is a reply to learn"),
        (talk(ASK, SAY | {"weight": 2}), r"messages\[1\].weight"),
        (talk(SAY), r"messages\[0\]: a reply to nothing"),
        (talk(ASK, SAY, SAY), r"messages\[2\]: a reply right behind a reply"),
        (talk(ASK, SAY | {"content": "2<|im_end|>\n<|im_start|>user"}), r"messages\[1\]: it holds the text of a"),
        (talk(ASK, SAY, tools={"a": 1}), "tools: .*list"),
        (talk(ASK, SAY, tools="no json"), "tools: "),
        (talk(ASK, SAY, provenance={"reward": float("nan")}), "provenance.reward: "),
        (IDS | {"input_ids": [1, 2]}, "input_ids: 2 ids, but 3 of assistant_masks"),
        (IDS | {"input_ids": [1, -2, 3]}, r"input_ids\[1\]: .* not -2"),
        (IDS | {"input_ids": [1, 2, 10**6]}, "input_ids: 1000000 is no id of the tokenizer"),
        (IDS | {"input_ids": [1, "2", 3]}, r"input_ids\[1\]: "),
        (IDS | {"assistant_masks": [0, 0, 2]}, r"assistant_masks\[2\]: "),
        (IDS | {"assistant_masks": [1, 0, 1]}, r"assistant_masks\[0\]: nothing stands before"),
        (IDS | {"assistant_masks": [0, 0, 0]}, "assistant_masks: it is 0 everywhere"),
        ({"input_ids": [1, 2]}, "assistant_masks: Field required: add it"),
        (IDS | {"provenance": {"vocabulary": "other"}}, "provenance.vocabulary: its ids are of another tokenizer"),
        (IDS | {"provenance": {"template_hash": "0ther"}}, "provenance.template_hash: its ids are of another"),
        ({"trajectory": {"id": "t"}, "grades": []}, "trajectory.run: Field required .*add it"),
        ({"trajectory": []}, "KeyError: 'grades'"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_is_named_and_nothing_stays(
    line: Any, says: str, renderer: Renderer, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    renderer.tokenizer.save_pretrained(model)  # type: ignore[attr-defined]
    many = [GOOD] * 70  # more than what is written at once
    source = write_lines(tmp_path / "in.jsonl", *many, line)
    with pytest.raises(ExchangeError, match=f"in.jsonl, line 71: {says}.*; nothing was imported"):
        imported(tmp_path / "s.db", source, renderer, model=model)
    with Store.open(tmp_path / "s.db") as store:
        assert store.runs() == [] and store.find_trajectories() == []


WHOLE = trajectory("", id="whole", turns=[turn()])


def whole_lines(tmp_path: Path) -> list[dict[str, Any]]:
    """What an export of `WHOLE` holds."""
    database = stored(tmp_path / "origin.db", WHOLE)
    target = tmp_path / "whole.jsonl"
    assert main(["export", "trajectories", str(target), "--db", database]) == 0
    return lines(target)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stop_reason": None}, "trajectory.stop_reason: it isn't finished"),
        ({"stop_reason": "tired"}, "trajectory.stop_reason: "),
        ({"id": ""}, "trajectory.id: '' can't be typed"),
        ({"id": "--db"}, "trajectory.id: '--db' can't be typed"),
        ({"id": "a\x00b"}, r"trajectory.id: 'a\\x00b' can't be typed"),
        ({"forked_from": ["gone", 0]}, "trajectory.forked_from: gone isn't known"),
        ({"artifacts": {"files": {"a": "no base64!"}}}, "Error: .*only what agentrl export wrote"),
    ],
)
def test_a_whole_trajectory_that_does_not_fit_is_named(changes: Any, says: str, tmp_path: Path) -> None:
    [line] = whole_lines(tmp_path)
    source = write_lines(tmp_path / "in.jsonl", line | {"trajectory": line["trajectory"] | changes})
    with pytest.raises(ExchangeError, match=f"line 1: {says}"):
        imported(tmp_path / "s.db", source)


def test_lengths_that_do_not_agree_are_named(tmp_path: Path) -> None:
    [line] = whole_lines(tmp_path)
    line["trajectory"]["turns"][0]["logprobs"] = [0.0]
    with pytest.raises(ExchangeError, match="line 1: trajectory whole, turn 0: 2 sampled ids, but 1 logprobs"):
        imported(tmp_path / "s.db", write_lines(tmp_path / "in.jsonl", line))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parent": 0}, "turn 0 with parent 0 in place 0"),
        ({"parent": 7}, "turn 0 with parent 7 in place 0"),
        ({"keep": 3}, "turn 0 keeps 3 ids"),
        ({"keep": -1}, "turn 0 keeps -1 ids"),
    ],
)
def test_turns_that_go_on_from_nothing_are_named(changes: dict[str, int], says: str, tmp_path: Path) -> None:
    [line] = whole_lines(tmp_path)
    line["trajectory"]["turns"][0] |= changes
    with pytest.raises(ExchangeError, match=f"line 1: {says}"):
        imported(tmp_path / "s.db", write_lines(tmp_path / "in.jsonl", line))


def test_a_whole_trajectory_is_imported_once(tmp_path: Path) -> None:
    [line] = whole_lines(tmp_path)
    source = write_lines(tmp_path / "in.jsonl", line, line)
    with pytest.raises(ExchangeError, match=r"line 2: trajectory.id: whole is in .* already"):
        imported(tmp_path / "s.db", source)
    imported(tmp_path / "s.db", write_lines(tmp_path / "one.jsonl", line))
    with pytest.raises(ExchangeError, match=r"line 1: trajectory.id: whole is in .* already"):
        imported(tmp_path / "s.db", tmp_path / "one.jsonl")
    assert len(samples(tmp_path / "s.db")) == 1


def test_ids_of_two_tokenizers_are_not_imported_as_one(tmp_path: Path) -> None:
    [line] = whole_lines(tmp_path)
    other = {"trajectory": line["trajectory"] | {"id": "other"}, "provenance": {"vocabulary": "b"}}
    source = write_lines(tmp_path / "in.jsonl", line | {"provenance": {"vocabulary": "a"}}, line | other)
    with pytest.raises(ExchangeError, match=r"line 2: provenance.vocabulary: .* than the first example's"):
        imported(tmp_path / "s.db", source)


def test_the_vocabulary_is_the_same_for_each_copy_of_a_tokenizer_and_for_no_other(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from agentrl.rollout.tokenizer import vocabulary_hash

    build_tokenizer(["one text"]).save_pretrained(tmp_path / "a")
    AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "copy")
    build_tokenizer(["quite another text, in other words"]).save_pretrained(tmp_path / "b")
    first, copy, other, none = (vocabulary_hash(tmp_path / name) for name in ("a", "copy", "b", "none"))
    assert first == copy != other and first and none is None


def test_messages_in_the_forms_that_others_write(renderer: Renderer, tmp_path: Path) -> None:
    """Arguments as text or as an object, calls without ids, content null, thinking by its other names."""
    calls = [
        {"function": {"name": "add", "arguments": '{"a": 1'}},
        {"function": {"name": "add", "arguments": {"a": 1}}},
    ]
    thinking = {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": calls}
    told = {"role": "tool", "content": "1", "tool_call_id": "call_1_1"}
    example = talk(ASK, thinking, told, SAY, ASK, tools=json.dumps([{"type": "function"}]), source="somewhere")
    imported(tmp_path / "s.db", write_lines(tmp_path / "in.jsonl", example), renderer)
    [sample] = samples(tmp_path / "s.db")
    first, last = sample.trajectory.turns
    assert first.message.reasoning == "hm" and first.message.content == ""
    assert [call.id for call in first.message.tool_calls] == ["call_1_0", "call_1_1"]
    assert [(call.status, call.result) for call in first.tool_calls] == [
        (CallStatus.INVALID_JSON, None), (CallStatus.OK, "1"),
    ]  # fmt: skip
    assert last.message.text == "2" and sample.trajectory.task.data == {"tools": [{"type": "function"}]}


def test_replies_of_weight_0_are_shown_and_not_learnt(renderer: Renderer, tmp_path: Path) -> None:
    shown = SAY | {"weight": 0}
    imported(
        tmp_path / "s.db",
        write_lines(tmp_path / "in.jsonl", talk(ASK, shown, ASK, SAY, ASK, shown, ASK, SAY)),
        renderer,
    )
    [sample] = samples(tmp_path / "s.db")
    assert [turn.trained for turn in sample.trajectory.turns] == [True, False, True]
    assert len(sample.trajectory.turns[0].prompt_messages) == 3
    target = tmp_path / "out.jsonl"
    assert main(["export", "messages", str(target), "--db", str(tmp_path / "s.db")]) == 0
    assert [one.get("weight") for one in lines(target)[0]["messages"]] == [None, 0, None, None, None, 0, None, None]


def test_what_was_imported_as_ids_has_no_messages(
    renderer: Renderer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported(tmp_path / "s.db", write_lines(tmp_path / "in.jsonl", IDS), renderer)
    assert main(["export", "messages", str(tmp_path / "out.jsonl"), "--db", str(tmp_path / "s.db")]) == 1
    assert "all were left out (1: no whole reply to a message)" in capsys.readouterr().err


def test_the_tools_of_what_was_imported_whole_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported(tmp_path / "s.db", write_lines(tmp_path / "in.jsonl", *whole_lines(tmp_path)))
    words = ["export", "messages", str(tmp_path / "out.jsonl"), "--db", str(tmp_path / "s.db")]
    capsys.readouterr()
    assert main(words) == 1 and "trajectory whole was imported whole" in capsys.readouterr().err
    assert main([*words, "--tools", "none"]) == 0


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        ("", 1, "in.jsonl: there is no example in it"),
        (json.dumps(GOOD), 1, "in.jsonl, line 1: messages and ids need a tokenizer: add --model"),
        (None, 2, "in.jsonl: there is no such file"),
    ],
)
def test_the_command_names_what_it_cannot_import(
    content: str | None, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "in.jsonl").write_text(content)
    assert main(["import", str(tmp_path / "in.jsonl"), "--db", str(tmp_path / "s.db")]) == code
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


def test_an_imported_run_is_listed_shown_and_not_played(
    renderer: Renderer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    renderer.tokenizer.save_pretrained(tmp_path / "model")  # type: ignore[attr-defined]
    (tmp_path / "model" / "config.json").write_text("{}")
    source, database = write_lines(tmp_path / "talks.jsonl", GOOD), str(tmp_path / "s.db")
    assert main(["import", str(source), "--db", database, "--model", str(tmp_path / "model"), "--name", "mine"]) == 0
    assert "imported 1 trajectories (1 from messages; 0 with a reward)" in capsys.readouterr().out
    [sample] = samples(database)
    id, run = sample.trajectory.id, sample.trajectory.run
    for words in (["runs"], ["runs", "mine"], ["show", id], ["why", id], ["replay", id], ["db", "verify"]):
        assert main([*words, "--db", database]) == 0, words
    assert "trained on by nobody: it belongs to no group" in capsys.readouterr().out
    assert main(["replay", id, "--env", "--db", database]) == 2
    assert f"run {run} was imported from {source}" in capsys.readouterr().err
