"""run.log and the errors of the command line: where it happened, what to do, no secrets, no forged lines."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.config import LogConfig
from agentrl.environment import EnvironmentContext
from agentrl.errors import ConfigError, EngineError
from agentrl.place import at, here, locate, place_of, place_text
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.run_log import RunLog
from agentrl.types import Artifacts, Grade, Task, Trajectory
from tests.small import EvenIds, small_config, small_overrides

LOGGER = logging.getLogger("agentrl.test")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def open_log(folder: Path, *secrets: str, **config: Any) -> RunLog:
    return RunLog(folder, "run1", LogConfig(**config), secrets)


# ------------------------------------------------------------------------------------------------------ places


async def test_each_rollout_has_a_place_of_its_own() -> None:
    async def play(task: str) -> str:
        locate(task=task)
        await asyncio.sleep(0)
        locate(turn=1)
        await asyncio.sleep(0)
        return place_text(await asyncio.to_thread(here))

    with at(run="r", step=2):
        places = await asyncio.gather(play("a"), play("b"))
        assert places == ["run r step 2 task a turn 1", "run r step 2 task b turn 1"]
        assert place_text(here()) == "run r step 2"
    assert place_text(here()) == ""


async def test_an_error_out_of_a_task_group_knows_its_place() -> None:
    async def fail() -> None:
        with at(task="a"):
            locate(turn=7)
            raise EngineError("gone")

    async def work() -> None:
        with at(run="r", step=0):
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(fail())

    from agentrl.cli.common import run_async

    with pytest.raises(EngineError) as caught:
        await asyncio.to_thread(run_async, work())
    assert place_text(place_of(caught.value)) == "run r step 0 task a turn 7"


# --------------------------------------------------------------------------------------------------- the file


def test_a_line_says_where_and_other_runs_are_left_out(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        with at(run="run1", step=3, task="t"):
            LOGGER.info("hello")
        with at(run="run2"):
            LOGGER.info("not mine")
        logging.getLogger("somebody.else").warning("a library warns")
        logging.getLogger("somebody.else").info("a library chats")
    LOGGER.warning("after the end")
    text = log.path.read_text()
    assert re.search(r"^\d{4}-.* INFO agentrl\.test \[step 3 task t\] hello$", text, re.M)
    assert "a library warns" in text
    assert not any(word in text for word in ("not mine", "chats", "after the end"))


def test_the_level_is_kept_and_given_back(tmp_path: Path) -> None:
    before = logging.getLogger("agentrl").level
    with open_log(tmp_path, level="warning") as log:
        LOGGER.info("chat")
        LOGGER.warning("watch out")
    assert "chat" not in log.path.read_text() and "watch out" in log.path.read_text()
    assert logging.getLogger("agentrl").level == before


def test_secrets_never_get_in(tmp_path: Path) -> None:
    with open_log(tmp_path, "hush-hush") as log:
        log.hide("engine-key-1")
        LOGGER.info("key is %s", "hush-hush")
        LOGGER.info("postgresql://me:p@ss/w0rd@db.example/x")
        LOGGER.info("{'Authorization': 'Bearer abcdef'}")
        try:
            raise ValueError("in a traceback: engine-key-1")
        except ValueError:
            LOGGER.exception("oops")
    text = log.path.read_text()
    assert not any(secret in text for secret in ("hush-hush", "engine-key-1", "w0rd", "p@ss", "abcdef"))
    assert "postgresql://me:***@db.example/x" in text and "ValueError: in a traceback: ***" in text


def test_no_line_can_be_forged(tmp_path: Path) -> None:
    forged = "x\n2026-01-01 00:00:00,000 INFO agentrl [step 1] all is well\x1b[2J\u202e\ud800"
    with open_log(tmp_path) as log:
        LOGGER.warning("the model said %s", forged)
    first, second = log.path.read_text().splitlines()
    assert first.endswith("the model said x") and second.startswith("    2026-01-01")
    assert second.endswith("all is well\\x1b[2J\\u202e\\ud800")


def test_the_file_is_bounded(tmp_path: Path) -> None:
    with open_log(tmp_path, max_file_bytes=10_000):
        for number in range(500):
            LOGGER.info("line %d %s", number, "x" * 100)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert set(sizes) == {"run.log", "run.log.1"} and max(sizes.values()) <= 10_000
    assert "line 499 " in (tmp_path / "run.log").read_text()


# ----------------------------------------------------------------------------------------------------- whole runs


async def test_a_fault_in_a_rollout_is_logged_with_its_place(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Faulty(EvenIds):
        @classmethod
        async def grade(
            cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext
        ) -> Grade:
            if trajectory.sample == 1:
                raise KeyError("no such answer")
            return await super().grade(task, trajectory, artifacts, ctx)

    monkeypatch.setattr(plugins, "environment", lambda name: Faulty)
    summary = await train(small_config(tmp_path, cache, "train.steps=1", "eval.sampled=false"), Silent())
    text = (Path(summary.paths["folder"]) / "run.log").read_text()
    line = (
        r"WARNING agentrl\.rollout\.pool \[step 0 task train-\d+ sample 1 attempt 0 trajectory [0-9a-f]{16} turn \d\]"
    )
    assert len(re.findall(line + " no reward could be measured: grade raised KeyError: 'no such answer'", text)) == 2
    assert "the run is completed" in text


def fail_in_a_step(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def build_rows(sample: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    monkeypatch.setattr("agentrl.run.build_rows", build_rows)


ERRORS = [(KeyError("boom\x1b[2J"), 1, "unexpected KeyError: "), (ConfigError("nope; do this"), 2, "nope; do this")]


@pytest.mark.parametrize(("error", "code", "says"), ERRORS, ids=["unexpected", "known"])
def test_an_error_is_one_line_with_its_place_and_the_log_that_has_the_traceback(
    error: Exception,
    code: int,
    says: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    small_cache_is_made = small_overrides(tmp_path, cache, "train.steps=0", "eval.sampled=false")
    assert main(["train", "--env", "calculator", *small_cache_is_made]) == 0
    fail_in_a_step(monkeypatch, error)
    capsys.readouterr()
    command = ["train", "--env", "calculator", *small_overrides(tmp_path, cache, "eval.sampled=false", "name=it")]
    assert main(command) == code
    err = capsys.readouterr().err
    log = tmp_path / "it" / "run.log"
    assert len(err.strip().splitlines()) == 1 and "\x1b" not in err
    assert re.search(re.escape(says) + r".* \[run [0-9a-f]+ step 0\]; traceback in " + re.escape(str(log)), err)
    text = log.read_text()
    assert "Traceback (most recent call last):" in text and "in build_rows" in text and "[run " in text
    assert "the run is failed" in text
    assert main([*command[:-1], "name=again", "--debug"]) == code
    err = capsys.readouterr().err
    assert "Traceback (most recent call last):" in err and says in err


@pytest.mark.parametrize("place", [["show", "--debug", "x"], ["show", "x", "--debug"]])
def test_debug_works_on_any_command_in_any_place(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*place, "--db", "/nowhere/x.db"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["show", "x", "--db", "/nowhere/x.db"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_an_unexpected_error_without_a_run_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    import agentrl.cli.show

    def broken(target: str) -> str:
        raise ZeroDivisionError("postgresql://me:secret@host/db")

    monkeypatch.setattr(agentrl.cli.show, "existing_database", broken)
    assert main(["show", "x"]) == 1
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError" in err and "--debug" in err and "secret" not in err


async def test_no_secret_of_a_run_is_in_its_folder_or_database(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    hide = RunLog.hide

    def remember(log: RunLog, secret: str) -> None:
        keys.append(secret)
        hide(log, secret)

    monkeypatch.setattr(RunLog, "hide", remember)
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    config = small_config(tmp_path, cache, "train.steps=1", "eval.sampled=false", "log.level=debug")
    await train(config, Silent())
    assert keys and all(len(key) >= 16 for key in keys)
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.suffix in (".log", ".jsonl", ".json", ".db")
    )
    assert not any(key.encode() in written for key in keys)


def test_the_config_hides_passwords_of_urls_wherever_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush")
    config = small_config(
        tmp_path, tmp_path, "store.url='postgresql://me:s3cr@t@db/x'", "engine.urls='http://me:s3cr@t@host:1'",
        "chat.key_env=MY_KEY",
    )  # fmt: skip
    assert config.secrets() == ["s3cr@t", "s3cr@t", "hush-hush"]
    public = str(config.public())
    assert "s3cr" not in public and "@t@" not in public and "hush" not in public and "me:***@db/x" in public
