"""The commands on a real, if untrained, model: what they print, and how they fail at start."""

from __future__ import annotations

import asyncio
import json
import math
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from agentrl.cli import main
from agentrl.store import Store
from agentrl.testing.audit import audit
from agentrl.testing.chat import ChatFault, ChatSays, ScriptedChat, calling
from agentrl.testing.endpoint import Fault, Reply, ScriptedEndpoint, SeenRequest
from agentrl.types import CallStatus, Sampler, Turn
from tests.small import small_overrides


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(runs folder, cache): the first command makes the tiny model, the others find it."""
    return tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("cache")


def overrides(place: tuple[Path, Path], *more: str) -> list[str]:
    return ["--env", "calculator", *small_overrides(*place, *more)]


def tiny_model(place: tuple[Path, Path]) -> Path:
    (folder,) = [path for path in place[1].iterdir() if path.name.startswith("tiny-calculator-")]
    return folder


@pytest.fixture(scope="module")
def model(place: tuple[Path, Path]) -> Path:
    assert main(["sft", *overrides(place)]) == 0
    return tiny_model(place)


@contextmanager
def endpoint(fault: Fault | None = None, **options: Any) -> Iterator[str]:
    """A scripted endpoint in a thread of its own; yields its URL."""

    def say(seen: SeenRequest) -> Reply:
        return Reply(ids=[seen.sampling["stop_token_ids"][0] if seen.sampling["stop_token_ids"] else 1])

    with in_thread(ScriptedEndpoint(say, fault=fault, **options)) as server:
        yield server.url


S = TypeVar("S", ScriptedEndpoint, ScriptedChat)


@contextmanager
def in_thread(server: S) -> Iterator[S]:
    """The server, open in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_rollout_prints_transcripts_and_show_the_tokens(
    model: Path, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["rollout", "-n", "2", *overrides(place)]) == 0
    out = capsys.readouterr().out
    ids = re.findall(r"trajectory ([0-9a-f]{16})", out)
    assert len(ids) == 2 and "  user " in out and "  assistant" in out and "reward 0.000" in out
    database = str(place[0] / "agentrl.db")
    assert main(["show", ids[0][:10], "--db", database]) == 0
    shown = capsys.readouterr().out
    assert f"trajectory {ids[0]}" in shown and "sampler engine" in shown and "versions [0]" in shown
    assert re.search(r"0  id +\d+  logprob +-\d+\.\d{4}  version 0  '", shown)
    assert "<|im_start|>|system|\\n" in shown  # token boundaries, by the run's own tokenizer


def test_eval_prints_and_stores_its_rollouts(
    model: Path, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["eval", *overrides(place, "name=an-eval")]) == 0
    out = capsys.readouterr().out
    assert "held-out success (greedy): 0.000" in out and "sampled: 0.000" in out
    summary = json.loads((place[0] / "an-eval" / "summary.json").read_text())
    assert summary["held_out_before"] == 0.0 and summary["num_held_out_tasks"] == 5


def test_train_prints_progress_and_what_to_type_next(
    model: Path, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *overrides(place, "train.steps=1", "name=a-run")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"step +1/1  reward 0\.000 .* tokens/s  left 0:00  \[rollout .* train .* sync .* s\]", out)
    assert re.search(r"held-out success \(greedy\): 0\.000 → 0\.000", out)
    for word in ("database", "checkpoint", "curve", "next: agentrl rollout --env calculator model.path="):
        assert word in out
    assert main(["train", *overrides(place, "name=a-run")]) == 2  # nothing is overwritten
    assert "name=a-run" in capsys.readouterr().err


def test_eval_of_a_running_server(
    place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hush")
    with endpoint(key="hush") as url:
        assert main(["eval", *overrides(place, f"engine.urls='{url}'", "engine.key_env=MY_KEY")]) == 0
    assert "held-out success (greedy): 0.000" in capsys.readouterr().out
    assert b"hush" not in (place[0] / "agentrl.db").read_bytes()


def test_a13_an_evaluation_goes_on_where_a_server_gives_text_alone(
    place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What was sampled is not known then, so its turns say that their ids were made from text, and have no logprobs."""
    with endpoint(only_text=lambda ids: "Answer: 5") as url:
        assert main(["eval", *overrides(place, f"engine.urls='{url}'")]) == 0
    # It is the right answer to one of the five tasks.
    assert "held-out success (greedy): 0.200" in capsys.readouterr().out
    assert "text and no ids" in caplog.text
    turns = played(place)
    assert {turn.message.content for turn in turns} == {"Answer: 5"}
    assert all(turn.sampler is Sampler.TEXT and turn.sampled_ids for turn in turns)
    assert {call.version for turn in turns for call in turn.calls} == {-1}
    assert all(math.isnan(logprob) for turn in turns for logprob in turn.logprobs)


def test_a_server_that_doesnt_know_its_window_can_be_told_it(
    place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with endpoint(max_model_len=0) as url:
        told = overrides(place, f"engine.urls='{url}'", "eval.sampled=false")
        assert main(["eval", *told]) == 1
        assert "set limits.max_context_tokens" in capsys.readouterr().err
        assert main(["eval", *told, "limits.max_context_tokens=500"]) == 0


ANSWER = calling(("calculator", '{"expression": "2 + 3"}'))


def say(messages: list[dict[str, Any]]) -> str | ChatSays:
    return "Answer: 5" if messages[-1]["role"] == "tool" else ANSWER


def chat_overrides(place: tuple[Path, Path], url: str, *more: str) -> list[str]:
    return overrides(place, f"engine.urls='{url}'", "engine.api=chat", "engine.model=big-one", *more)


def played(place: tuple[Path, Path]) -> list[Turn]:
    """The turns of the last run."""
    with Store.open(place[0] / "agentrl.db") as store:
        run = store.runs()[0].id
        return [turn for found in store.find_trajectories(run=run) for turn in store.load_trajectory(found.id).turns]


def test_a_hosted_model_is_evaluated_without_a_tokenizer_and_resumed_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hush-hush")
    place = (tmp_path, tmp_path / "cache")
    with in_thread(ScriptedChat(say, key="hush-hush")) as server:
        asked = chat_overrides(place, server.url, "engine.key_env=MY_KEY", "limits.max_turn_tokens=50")
        assert main(["eval", *asked, "name=hosted"]) == 0
        out = capsys.readouterr().out
        assert "held-out success (greedy): 0.200" in out and not place[1].exists()  # nothing was made or downloaded
        database = str(tmp_path / "agentrl.db")
        num_asked = len(server.seen)
        assert main(["eval", "--resume", "hosted", "--db", database]) == 0
        assert len(server.seen) == num_asked + 1  # the start check
        assert main(["runs", "--db", database]) == 0 and "big-one" in capsys.readouterr().out
    turns = played(place)
    assert len(turns) == 20 and all(turn.sampler is Sampler.TEXT and not turn.sampled_ids for turn in turns)
    assert {parsed.status for turn in turns for parsed in turn.tool_calls} == {CallStatus.OK}
    assert b"hush-hush" not in (tmp_path / "agentrl.db").read_bytes() and audit(database) == []
    with Store.open(database) as store:
        id = store.find_trajectories(run=store.runs()[0].id)[0].id
    assert main(["show", id, "--db", database]) == 0
    shown = capsys.readouterr().out
    assert f"turn 0  agent main  not trained  by big-one at {server.url}" in shown
    assert 'call calculator({"expression": "2 + 3"}) ok → 5' in shown and "  → Answer: 5" in shown


def test_a_tokenizer_counts_a_hosted_models_tokens(place: tuple[Path, Path], model: Path) -> None:
    with in_thread(ScriptedChat(say)) as server:
        assert main(["eval", *chat_overrides(place, server.url, f"model.path={model}", "eval.sampled=false")]) == 0
        turns = played(place)
        assert all(turn.sampler is Sampler.TEXT and turn.sampled_ids and turn.prompt_ids for turn in turns)
        # A window that is known by its tokens bounds what is asked for.
        longest = max(len(turn.prompt_ids) for turn in turns if turn.parent is None)
        more = (f"model.path={model}", "eval.sampled=false", f"limits.max_context_tokens={longest + 9}")
        assert main(["eval", *chat_overrides(place, server.url, *more)]) == 0
    assert any(body["max_tokens"] <= 9 for body in server.seen)


def test_nothing_is_trained_on_a_chat_endpoint(
    place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with in_thread(ScriptedChat(say)) as server:
        assert main(["train", *chat_overrides(place, server.url)]) == 2
    assert "engine.api=chat" in capsys.readouterr().err and server.seen == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["engine.model=null"], "set engine.urls=…/v1 and engine.model=…"),
        (["engine.urls=[]"], "set engine.urls=…/v1 and engine.model=…"),
        (["limits.max_context_tokens=100"], "name the model's by model.path=…"),
        (["engine.key_env=NO_SUCH_KEY"], "engine.key_env=NO_SUCH_KEY"),
    ],
)
def test_a_hosted_evaluation_that_cant_be_is_refused_at_start(
    more: list[str], says: str, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *chat_overrides(place, "http://127.0.0.1:9/v1", *more)]) == 2
    err = capsys.readouterr().err
    assert says in err and "error: :" not in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("faults", "says"), [([401], "engine.key_env"), ([404], "engine.urls ends before"), ([400], "broken on purpose")]
)
def test_a_chat_endpoint_that_refuses_stops_the_run_at_start(
    faults: list[int | ChatFault], says: str, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with in_thread(ScriptedChat(say, faults=faults)) as server:
        assert main(["eval", *chat_overrides(place, server.url)]) == 1
    assert says in capsys.readouterr().err and len(server.seen) == 1


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("500", "HTTP 500: broken on purpose"),
        ("no_ids", "return_token_ids"),
        ("no_logprobs", "0 logprobs came for 1 ids"),
        ("nan", "not a finite number"),
        ("garbage", "no JSON object"),
    ],
)
def test_A02_an_endpoint_that_cant_be_recorded_stops_the_run_at_start(
    fault: Fault, says: str, place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with endpoint(fault) as url:
        assert main(["eval", *overrides(place, f"engine.urls='{url}'")]) == 1
    err = capsys.readouterr().err
    assert says in err and url in err and len(err.strip().splitlines()) == 1


def test_a_dead_endpoint_is_named(place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *overrides(place, "engine.urls='http://127.0.0.1:9'")]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["./nowhere", "/no/such/model", "a/b/c"])
def test_an_unknown_model_path_is_named(
    path: str, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *overrides(place, f"model.path={path}")]) == 1
    assert f"model.path={path}" in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_refused(
    model: Path, place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "chat_template.jinja").unlink()
    assert main(["train", *overrides(place, f"model.path={bare}")]) == 1
    assert "chat template" in capsys.readouterr().err


def test_a_template_that_drops_tool_results_is_refused(
    model: Path, place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = tmp_path / "deaf"
    shutil.copytree(model, deaf)
    template = (deaf / "chat_template.jinja").read_text()
    (deaf / "chat_template.jinja").write_text(
        template.replace("{%- for message in messages %}", "{%- for message in messages if message.role != 'tool' %}")
    )
    assert main(["train", *overrides(place, f"model.path={deaf}")]) == 1
    err = capsys.readouterr().err
    assert "tool" in err and "template" in err


def test_show_of_an_unknown_trajectory_or_database(
    model: Path, place: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "zzz", "--db", str(place[0] / "agentrl.db")]) == 1
    assert "'zzz'" in capsys.readouterr().err
    missing = tmp_path / "none.db"
    assert main(["show", "zzz", "--db", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().err and not missing.exists()


def test_resume_names_what_is_wrong(model: Path, place: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    database = str(place[0] / "agentrl.db")
    assert main(["train", "--resume", "nope", "--db", database]) == 1
    assert "'nope'" in capsys.readouterr().err
    assert main(["train", "--resume", "an-eval", "--db", database]) == 2
    assert "no training run" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["append", "rerender"])
def test_a07_a_template_that_drops_results_is_refused_before_the_first_rollout(
    mode: str, place: tuple[Path, Path], tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(model, tmp_path / "deaf")
    template = (folder / "chat_template.jinja").read_text()
    for_all = "{%- for message in messages %}"
    assert for_all in template
    deaf = template.replace(for_all, "{%- for message in messages if message.role != 'tool' %}")
    (folder / "chat_template.jinja").write_text(deaf)
    mine = [f"model.path={folder}", f"rollout.renderer_mode={mode}", f"name=deaf-{mode}"]
    assert main(["rollout", *overrides(place, *mine)]) == 1
    err = capsys.readouterr().err
    assert "drops tool messages" in err and f"agentrl doctor --model {folder} --env calculator" in err
    with Store.open(place[0] / "agentrl.db") as store:
        run = store.find_run(f"deaf-{mode}")
        assert run.status == "failed" and not store.find_trajectories(run=run.id)


def test_a_database_that_is_none_is_named(place: tuple[Path, Path], tmp_path: Path, model: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    wrong = tmp_path / "wrong.db"
    wrong.write_text("this is no database" * 100)
    assert main(["train", *overrides(place, f"store.url={wrong}")]) == 1
    assert str(wrong) in capsys.readouterr().err
