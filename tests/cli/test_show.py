"""`agentrl show`: colours by mask, logprob and version where they can be seen; what a stranger wrote does nothing."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.cli.transcript import transcript
from agentrl.rollout.renderer import Renderer
from agentrl.store import Store
from agentrl.types import CallStatus, EngineCall, Message, Purpose, StopReason, Trajectory
from agentrl.visible import one_line, visible
from tests.store.builders import leased, record, start_run, task, tool_call, trajectory, turn

EVIL = "\x1b[2J\x1b]0;title\x07\r\b\u202eevil\u2066\u200f\x9b31m\x00\x7f"
"""Clears the screen, sets the title, rings, goes back, turns the line around, twice in C1."""
SGR = re.compile(r"\x1b\[[\d;]*m")


def calls(*ends_and_versions: tuple[int, int]) -> list[EngineCall]:
    starts = [0, *(end for end, _ in ends_and_versions)]
    return [
        EngineCall(start=start, end=end, version=version, request_id="r", engine="e", finish_reason="stop", sampling={})
        for start, (end, version) in zip(starts, ends_and_versions, strict=False)
    ]


@pytest.fixture
def model(tmp_path: Path, renderer: Renderer) -> Path:
    """A folder that holds a tokenizer and no weights."""
    tokenizer: Any = renderer.tokenizer
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def shown(tmp_path: Path, renderer: Renderer) -> tuple[str, Trajectory]:
    """(database, a stored trajectory in which everything is hostile)."""
    ids = renderer.encode_text(EVIL)
    half = len(ids) // 2
    made = turn(
        sampled_ids=ids,
        logprobs=[-0.05, -0.5, -2.0, -9.0, *([-0.05] * (len(ids) - 4))],
        calls=calls((half, 3), (len(ids), 4)),
        prompt_ids=renderer.encode_text("go" + EVIL),
        prompt_messages=[Message(role="user", content="go" + EVIL)],
        message=Message(role="assistant", content=EVIL),
        tool_calls=[tool_call(status=CallStatus.ERROR, result=EVIL, error=EVIL)],
    )
    made.tool_calls[0].call.name = made.tool_calls[0].call.arguments = EVIL
    database = str(tmp_path / "store.db")

    async def write() -> Trajectory:
        with Store.open(database) as store:
            run = await start_run(store)
            hostile = task("task" + EVIL)
            group = await store.queue.plan(run, hostile, purpose=Purpose.TRAIN, ordinal=0, size=1, version=0)
            rollout = trajectory(run, group, turns=[made], task=hostile, stop_reason=StopReason.COMPLETED, error=EVIL)
            await record(store, rollout, (await leased(store, group)).generation)
            return rollout

    return database, asyncio.run(write())


def show(capsys: pytest.CaptureFixture[str], shown: tuple[str, Trajectory], *more: str) -> str:
    capsys.readouterr()
    assert main(["show", shown[1].id, "--db", shown[0], *more]) == 0
    return capsys.readouterr().out


def no_control(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_without_a_terminal_there_is_no_colour_and_no_control_character(
    shown: tuple[str, Trajectory], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = show(capsys, shown, "--model", str(model))
    assert no_control(text)
    for escaped in ("\\x1b[2J", "\\u202e", "\\u2066", "\\u200f", "\\x9b31m", "\\x00", "\\x7f"):
        assert escaped in text
    assert "task\\x1b[2J" in text  # ids of tasks come from data sets
    assert no_control(show(capsys, shown))  # ids alone


@pytest.mark.parametrize("by", ["mask", "logprob", "version"])
def test_colour_adds_nothing_but_colour(
    by: str,
    shown: tuple[str, Trajectory],
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = show(capsys, shown, "--model", str(model), "--by", by)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = show(capsys, shown, "--model", str(model), "--by", by)
    assert "\x1b[" in coloured
    lines = SGR.sub("", coloured).splitlines()
    assert no_control("\n".join(lines))
    assert [line for line in lines if not line.startswith("colours: ")] == plain.splitlines()
    monkeypatch.setenv("NO_COLOR", "1")
    assert show(capsys, shown, "--model", str(model), "--by", by) == plain


def row_styles(text: str) -> list[str]:
    """The SGR codes of the rows of sampled ids."""
    return [found[1] for found in re.finditer(r"^\x1b\[([\d;]+)m +\d+  id ", text, re.M)]


def test_what_the_colours_say(
    shown: tuple[str, Trajectory], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    ids = shown[1].turns[0].sampled_ids
    by_mask = show(capsys, shown)
    assert len(row_styles(by_mask)) == len(ids) and len(set(row_styles(by_mask))) == 1
    dull = re.search(r"mask 0\): \x1b\[([\d;]+)m", by_mask)
    assert dull is not None and dull[1] not in row_styles(by_mask)
    first_four = row_styles(show(capsys, shown, "--by", "logprob"))[:4]
    assert len(set(first_four)) == 4  # -0.05, -0.5, -2 and -9 are four colours
    versions = row_styles(show(capsys, shown, "--by", "version"))
    half = len(ids) // 2
    assert len(set(versions[:half])) == len(set(versions[half:])) == 1 and versions[0] != versions[-1]


def test_a_transcript_shows_control_characters_too(shown: tuple[str, Trajectory]) -> None:
    with Store.open(shown[0]) as store:
        text = transcript(store.load_sample(shown[1].id))
    assert no_control(text) and "\\u202e" in text


def test_visible_is_for_people_who_write_other_scripts_too() -> None:
    assert visible("naïve 東京 😀\nזה") == "naïve 東京 😀\nזה"
    assert visible("\ud800\t") == "\\ud800\\t"
    assert one_line("a\n  b\r\nc\x1b") == "a b c\\x1b"
