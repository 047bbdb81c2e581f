"""`agentrl find`: what it prints, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.store import Store
from agentrl.types import CallStatus, Message, StopReason
from tests.store.builders import record, start_run, tool_call, trajectory, turn


@pytest.fixture
def database(tmp_path: Path) -> str:
    async def fill(store: Store) -> None:
        run = await start_run(store)
        for number in range(3):
            said = Message(role="assistant", content=f"Answer: {number}")
            ending = StopReason.MAX_TURNS if number == 2 else StopReason.COMPLETED
            one = trajectory(run, id=f"t{number}", started_at=float(number), stop_reason=ending)
            calls = [tool_call(status=CallStatus.TIMEOUT)] if number == 1 else []
            one.turns = [turn(message=said, tool_calls=calls)]
            await record(store, one, reward=number / 2)

    with Store.open(tmp_path / "s.db") as store:
        asyncio.run(fill(store))
    return str(tmp_path / "s.db")


def found(database: str, capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["find", "--db", database, "--json", *words]) == 0
    return [one["id"] for one in json.loads(capsys.readouterr().out)]


def test_each_option_narrows(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert found(database, capsys) == ["t2", "t1", "t0"]
    assert found(database, capsys, "--run", "toy run", "--env", "toy") == ["t2", "t1", "t0"]
    assert found(database, capsys, "--min-reward", "0.5") == ["t2", "t1"]
    assert found(database, capsys, "--max-reward", "0.5", "--text", "answer: 1") == ["t1"]
    assert found(database, capsys, "--stop-reason", "max_turns") == ["t2"]
    assert found(database, capsys, "--stop-reason", "running") == []
    assert found(database, capsys, "--purpose", "train") == []
    assert found(database, capsys, "--call", "timeout") == found(database, capsys, "--call", "failed") == ["t1"]
    assert found(database, capsys, "--call", "ok") == []
    assert found(database, capsys, "--run", "toy run", "--version", "0") == ["t2", "t1", "t0"]
    assert found(database, capsys, "--run", "toy run", "--version", "1") == []
    assert found(database, capsys, "--limit", "1", "--after", "t1") == ["t0"]


def test_a_table_is_printed_and_the_next_page_is_told(database: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["find", "--db", database, "--limit", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["trajectory", "run", "env", "task", "ending", "turns", "reward", "started"]
    assert lines[1].split()[0] == "t2" and lines[1].split()[4:7] == ["max_turns", "1", "1.000"]
    assert lines[3] == "maybe more: add --after t1"
    assert main(["find", "--db", database, "--env", "none"]) == 0
    assert capsys.readouterr().out == "no trajectory matches\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--step", "0"], 2, "a step needs the run that trained"),
        (["--version", "0"], 2, "a version needs its run"),
        (["--step", "0", "--run", "toy run"], 2, "has no step 0"),
        (["--min-reward", "1", "--max-reward", "0"], 2, "no reward is at least 1"),
        (["--run", "nope"], 1, "no run id starts with 'nope'"),
        (["--after", "nope"], 1, "no trajectory id starts with 'nope'; near: t0, t1, t2"),
    ],
)
def test_what_can_not_be_is_refused(
    database: str, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    assert main(["find", "--db", database, *words]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--limit", "0"], ["--stop-reason", "shrug"]])
def test_a_wrong_word_is_refused_at_once(database: str, words: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(["find", "--db", database, *words])
