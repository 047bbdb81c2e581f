"""`agentrl sft sft.run=RUN`: what was imported is imitated, by the model whose tokenizer made the ids."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.imitated import stored_rows
from agentrl.rollout.renderer import Renderer
from agentrl.store import Store
from agentrl.testing.toy import Toy
from agentrl.train import tiny
from agentrl.types import Purpose, StopReason
from tests.exchange.helpers import demonstrated, imported, rows
from tests.excluding import excluding
from tests.store.builders import leased, record, start_run, task, trajectory, turn

WINDOW = 2048


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and a tokenizer."""
    return tiny.make(tmp_path_factory.mktemp("model") / "tiny", ["Say red for task 0."], 0)


@pytest.fixture
def messages(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four conversations of Toy's oracle."""
    monkeypatch.setattr(plugins, "environment", lambda name: Toy)
    database = demonstrated(tmp_path / "origin.db", Renderer.from_pretrained(str(model)), max_turn_tokens=200)
    assert main(["export", "messages", str(tmp_path / "talks.jsonl"), "--db", database]) == 0
    return tmp_path / "talks.jsonl"


def test_an_imported_run_is_imitated_and_its_steps_are_known(
    messages: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = str(tmp_path / "s.db")
    assert main(["import", str(messages), "--db", database, "--model", str(model)]) == 0
    assert "next: agentrl sft --env ENV sft.run=" in capsys.readouterr().out
    words = [
        f"store.url={database}",
        f"runs_dir={tmp_path}",
        f"model.path={model}",
        "sft.run=talks",
        "sft.batch_size=3",
    ]
    words += ["sft.steps=3", "train.device=cpu", "sft.warmup_steps=0"]
    assert main(["sft", "--env", "toy", *words]) == 0
    with Store.open(database) as store:
        run, source = store.runs()
        assert run.config["sft"]["run"] == "talks" and source.config["command"] == "import"
        steps = store.steps(run.id)
        losses = [step.metrics["loss"] for step in steps if step.metrics]
        assert len(losses) == 3 and losses[-1] < losses[0]
        learnt = {id for step in steps for id in store.trajectories_of(run.id, step.id)}
        assert learnt == {one.id for one in store.find_trajectories(run=source.id)}
        assert len({version.weights_hash for version in store.versions(run.id)}) == 4
        assert not store.find_trajectories(run=run.id), "nobody played"


def imitating(run: str, *overrides: str) -> RunConfig:
    return load_config("calculator", [f"sft.run={run}", *overrides])


def refused(store: Store, run: str, model: Path, **changes: Any) -> str:
    own = {"template_hash": Renderer.from_pretrained(str(model)).template_hash, "window": WINDOW} | changes
    with pytest.raises(ConfigError) as found:
        stored_rows(store, imitating(run), model=model, **own)
    return str(found.value)


def test_a_run_that_does_not_fit_the_model_is_refused_by_name(messages: Path, model: Path, tmp_path: Path) -> None:
    renderer = Renderer.from_pretrained(str(model))
    run = imported(tmp_path / "s.db", messages, renderer, model=model).run
    other = tiny.make(tmp_path / "other", ["another text"], 0)
    with Store.open(tmp_path / "s.db") as store:
        fitting = stored_rows(store, imitating(run), renderer.template_hash, model, WINDOW)
        assert len(fitting) == 4 and all(row.live for row in fitting)
        left_out = excluding(tmp_path, store.load_sample(fitting[0].trajectory).trajectory.task)
        kept = stored_rows(store, imitating(run, left_out), renderer.template_hash, model, WINDOW)
        assert [row.trajectory for row in kept] == [row.trajectory for row in fitting[1:]]
        assert f"its ids are of another tokenizer than that of {other}" in refused(store, run, other)
        assert "rendered by another chat template" in refused(store, run, model, template_hash="other")
        assert "ids, the model takes 20" in refused(store, run, model, window=20)


def test_an_import_that_was_killed_is_not_imitated(messages: Path, model: Path, tmp_path: Path) -> None:
    async def begin(store: Store) -> str:
        return await store.create_run("killed", {"command": "import", "file": "a.jsonl"})

    with Store.open(tmp_path / "s.db") as store:
        run = asyncio.run(begin(store))
        remedy = f"agentrl db gc --run {run} --yes"
        assert remedy in refused(store, run, model)
        assert main([*remedy.split()[1:], "--db", str(tmp_path / "s.db")]) == 0
        assert not store.runs()


def test_rollouts_of_evaluations_and_faults_are_not_imitated(model: Path, tmp_path: Path) -> None:
    """Held-out tasks measure; and nothing is left where they are all."""

    async def play(store: Store, purpose: Purpose, ending: StopReason) -> str:
        run = await start_run(store)
        group = await store.queue.plan(run, task(), purpose=purpose, ordinal=0, size=1, version=0)
        lease = await leased(store, group)
        await record(store, trajectory(run, group, turns=[turn()], stop_reason=ending), lease.generation)
        await store.queue.complete(lease)
        return run

    with Store.open(tmp_path / "s.db") as store:
        for purpose, ending in ((Purpose.EVAL, StopReason.COMPLETED), (Purpose.COLLECT, StopReason.ENV_ERROR)):
            run = asyncio.run(play(store, purpose, ending))
            assert "holds nothing to imitate" in refused(store, run, model, template_hash="")
        run = asyncio.run(play(store, Purpose.COLLECT, StopReason.COMPLETED))
        [row] = stored_rows(store, imitating(run), "", model, WINDOW)
        assert row.ids.tolist() == [1, 2, 3, 7, 8]
    assert len(rows(tmp_path / "s.db")) == 3


def test_demonstrations_and_a_run_are_two_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sft", "--env", "calculator", "sft.run=a", "sft.demonstrations=5", f"runs_dir={tmp_path}"]) == 2
    assert "leave one out" in capsys.readouterr().err
