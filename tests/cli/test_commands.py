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
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.store import Store
from agentrl.testing.endpoint import Fault, Reply, ScriptedEndpoint, SeenRequest
from agentrl.types import Sampler
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

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ScriptedEndpoint(say, fault=fault, **options)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield server.url
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
    ids = re.findall(r"trajectory ([0-9a-f]{32})", out)
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


def test_eval_of_a_running_server(place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with endpoint() as url:
        assert main(["eval", *overrides(place, f"engine.url='{url}'", "engine.key=hush")]) == 0
    assert "held-out success (greedy): 0.000" in capsys.readouterr().out
    assert b"hush" not in (place[0] / "agentrl.db").read_bytes()


def test_a13_an_evaluation_goes_on_where_a_server_gives_text_alone(
    place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """What was sampled is not known then, so its turns say that their ids were made from text, and have no logprobs."""
    with endpoint(only_text=lambda ids: "Answer: 5") as url:
        assert main(["eval", *overrides(place, f"engine.url='{url}'")]) == 0
    # It is the right answer to one of the five tasks.
    assert "held-out success (greedy): 0.200" in capsys.readouterr().out
    assert "text and no ids" in caplog.text
    with Store.open(place[0] / "agentrl.db") as store:
        run = store.runs()[0].id
        turns = [turn for found in store.find_trajectories(run=run) for turn in store.load_trajectory(found.id).turns]
    assert {turn.message.content for turn in turns} == {"Answer: 5"}
    assert all(turn.sampler is Sampler.IMPORT and turn.sampled_ids and not turn.calls for turn in turns)
    assert all(math.isnan(logprob) for turn in turns for logprob in turn.logprobs)


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
        assert main(["eval", *overrides(place, f"engine.url='{url}'")]) == 1
    err = capsys.readouterr().err
    assert says in err and url in err and len(err.strip().splitlines()) == 1


def test_a_dead_endpoint_is_named(place: tuple[Path, Path], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *overrides(place, "engine.url='http://127.0.0.1:9'")]) == 1
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
