"""Runs whose environment needs boxes, from the command line's config to summary.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.compose import load_config
from agentrl.cli.display import closing_lines
from agentrl.errors import ConfigError, ReplayError
from agentrl.progress import Silent, Summary
from agentrl.replay.environment import check_environment
from agentrl.replay.grading import regrade
from agentrl.replay.recorded import load
from agentrl.rollout.unrendered import Unrendered
from agentrl.run import evaluate_model
from agentrl.sandbox import SandboxSpec
from agentrl.store import Store
from agentrl.testing.chat import ChatSays, Json, ScriptedChat, calling
from agentrl.types import Task
from tests.rollout.faulty_boxes import register
from tests.test_contract_boxes import Writes

ENTRY = """[agentrl.envs]
writes = tests.test_contract_boxes:Writes
half_missing = tests.test_run_boxes:HalfMissing
"""


class HalfMissing(Writes):
    """Every second task names an image."""

    def sandbox(self, task: Task) -> SandboxSpec | None:
        is_odd = int(task.id.rpartition("-")[2]) % 2
        return SandboxSpec(image="gone:1" if is_odd else None, files={"seen.txt": b""})


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(tmp_path, monkeypatch)
    info = tmp_path / "writing_envs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: writing-envs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY)


def say(messages: list[Json]) -> str | ChatSays:
    if messages[-1]["role"] == "tool":
        return "done"
    word = messages[-1]["content"].split()[1]
    return calling(("shell", json.dumps({"command": f"echo {word} >> seen.txt"})))


async def evaluate(folder: Path, env: str, *overrides: str) -> tuple[Summary, list[Json], int]:
    """(summary, metrics, requests) of a small evaluation."""
    async with ScriptedChat(say) as server:
        common = [f"runs_dir={folder / 'runs'}", "name=it", "engine.api=chat", f"engine.urls={server.url}"]
        common += ["engine.model=m", "eval.sampled=false", "eval.tasks=4", "sandbox.starts_per_second=100"]
        config = load_config(env, [*common, *overrides])
        summary = await evaluate_model(config, Silent())
        metrics = (folder / "runs" / "it" / "metrics.jsonl").read_text().splitlines()
        return summary, list(map(json.loads, metrics)), len(server.seen)


LOCAL = ("sandbox=local", "sandbox.options.unsafe=true")
FAULTY = "sandbox.backend=faulty"


async def test_an_evaluation_is_played_and_graded_in_boxes_and_can_be_replayed(tmp_path: Path) -> None:
    summary, metrics, _ = await evaluate(tmp_path, "writes", *LOCAL)
    assert summary.held_out_before == 1.0 and summary.missing_images == {}
    (told,) = [event for event in metrics if event["kind"] == "sandbox"]
    assert told["backend"] == "local" and "as this user" in told["not_enforced"][0]
    with Store.open(str(tmp_path / "runs" / "agentrl.db")) as store:
        (id, *_) = [found.id for found in store.find_trajectories(run=store.runs()[0].id, limit=4)]
        recorded = load(store, id)
        outcome = await check_environment(recorded, Unrendered())
        assert outcome.difference is None and outcome.num_turns == 2
        again = await regrade(store, recorded)
        assert again.changes == [] and again.now.reward == 1.0


async def test_a_run_stops_before_anything_is_asked_where_boxes_can_t_be_had(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the sandbox faulty can't start boxes on this machine: no kernel: get one"):
        await evaluate(tmp_path, "writes", FAULTY, "sandbox.options.missing=['no kernel: get one']")
    lines = (tmp_path / "runs" / "it" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line)["kind"] for line in lines]
    assert events == ["run", "end"]


async def test_g11_a_run_goes_on_without_the_tasks_whose_image_is_missing_and_says_so(tmp_path: Path) -> None:
    """G11."""
    missing = "sandbox.options.missing_images=['gone:1']"
    summary, metrics, _ = await evaluate(tmp_path, "half_missing", FAULTY, missing)
    held_out: dict[str, Any] = summary.evals["greedy_before"]
    assert held_out["success"] == 1.0 and held_out["success_of_all"] == 0.5
    assert held_out["failures"] == {"sandbox_error": {"num": 2, "share": 0.5}}
    assert [event["image"] for event in metrics if event["kind"] == "image_missing"] == ["gone:1"]
    assert "left out, not measured: the tasks in 1 images (gone:1)" in closing_lines(summary)
    assert "pull it" in summary.missing_images["gone:1"]


async def test_an_image_that_is_gone_is_named_with_what_made_the_run(tmp_path: Path) -> None:
    """A replay finds no difference then: it can't be had."""

    class Moved(Writes):
        def sandbox(self, task: Task) -> SandboxSpec | None:
            return SandboxSpec(image="gone:1")

    await evaluate(tmp_path, "writes", FAULTY)
    with Store.open(str(tmp_path / "runs" / "agentrl.db")) as store:
        recorded = load(store, store.find_trajectories(run=store.runs()[0].id)[0].id)
    sandbox = recorded.config.sandbox.model_copy(update={"options": {"missing_images": ["gone:1"]}})
    config = recorded.config.model_copy(update={"sandbox": sandbox})
    with pytest.raises(ReplayError, match=r"image gone:1 isn't there: pull it.* was made with .*writing-envs 1\.0"):
        await check_environment(replace(recorded, config=config, env_class=Moved), Unrendered())
