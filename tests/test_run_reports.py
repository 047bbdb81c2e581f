"""What a run writes about itself: evaluations with several samples, the model's scaffold, TensorBoard, L02 and L03."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.environment import EnvironmentContext
from agentrl.progress import Silent
from agentrl.run import train
from agentrl.store import Store
from agentrl.types import Artifacts, Grade, Task, Trajectory
from tests.small import EvenIds, small_config, small_overrides
from tests.train.test_tensorboard import read


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


class HalfMeasured(EvenIds):
    """The second of a group's samples is never measured; the third is solved."""

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        if trajectory.sample == 1:
            raise RuntimeError("the judge is down")
        return Grade(reward=float(trajectory.sample == 2), parts={"judged": 1.0})


@pytest.fixture
def half_measured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "environment", lambda name: HalfMeasured)
    yield


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


async def test_a_run_reports_samples_intervals_and_failures_everywhere(
    half_measured: None, tmp_path: Path, cache: Path
) -> None:
    overrides = ["train.steps=2", "eval.samples=4", "eval.k=2", "log.tensorboard=true"]
    summary = await train(small_config(tmp_path, cache, *overrides), Silent())
    folder = Path(summary.paths["folder"])

    sampled = summary.evals["sampled_after"]
    assert (sampled["num_tasks"], sampled["num_samples"], sampled["num_unmeasured"]) == (5, 20, 5)
    assert sampled["success"] == pytest.approx(1 / 3) and sampled["success_of_all"] == pytest.approx(1 / 4)
    assert sampled["pass_at_k"] == pytest.approx(2 / 3)  # of the pairs of (0, 1, 0) two hold the solved one
    assert sampled["failures"] == {"grading": {"num": 5, "share": 0.25}}
    assert summary.evals["greedy_before"]["samples_per_task"] == 1
    written = json.loads((folder / "summary.json").read_text())
    assert written["evals"]["sampled_after"]["success_interval"] == list(sampled["success_interval"])
    (event,) = [e for e in records(folder, "eval") if e["sampling"] == "sampled" and e["ordinal"] == 2]
    assert {name: event[name] for name in written["evals"]["sampled_after"]} == written["evals"]["sampled_after"]

    step = records(folder, "step")[0]
    assert step["num_scored"] == 6 and step["reward_of_scored"] == pytest.approx(1 / 3)
    assert step["reward_of_all"] == pytest.approx(1 / 4) and step["parts"]["judged"] == {"mean": 1.0, "num": 6}
    with Store.open(tmp_path / "agentrl.db") as store:
        groups = [store.load_group(id) for id in store.queue.groups(summary.run)]
    assert sum(len(group.samples) for group in groups if group.purpose == "eval") == 2 * (5 + 5 * 4)

    shown = read(folder)
    for record in records(folder, "step"):
        assert shown["step/reward_mean"][record["ordinal"] + 1] == pytest.approx(record["reward_mean"])
        assert shown["step/failures/grading/share"][record["ordinal"] + 1] == pytest.approx(0.25)
    assert set(shown["eval/sampled/pass_at_k"]) == {0, 2}

    (model,) = records(folder, "model")
    assert model["tools_in_system"] is False and model["path"] == "tiny" and model["tool_parser"] == "hermes"
    assert (model["template"]["stop"], model["template"]["append_refused"]) == ("<|im_end|>", None)
    with Store.open(tmp_path / "agentrl.db") as store:
        assert store.find_run(summary.run).config["template"] == model["template"]
    assert {group.samples[0].trajectory.template_hash for group in groups} == {model["template_hash"]}


def test_what_sft_says_to_type_next_can_be_typed(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sft", "--env", "calculator", *small_overrides(tmp_path, cache, "name=start")]) == 0
    (model,) = re.findall(r"^next: agentrl train --env calculator (model\.path=\S+)$", capsys.readouterr().out, re.M)
    overrides = small_overrides(tmp_path, cache, model, "eval.tasks=1", "eval.sampled=false", "name=it")
    assert main(["eval", "--env", "calculator", *overrides]) == 0
    summary = json.loads((tmp_path / "start" / "summary.json").read_text())
    assert all(Path(path).exists() for path in summary["paths"].values())


def test_agentrl_eval_prints_them(
    half_measured: None, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = small_overrides(tmp_path, cache, "eval.samples=3", "eval.k=2", "name=it")
    assert main(["eval", "--env", "calculator", *overrides]) == 0
    out = capsys.readouterr().out
    assert "sampled, avg@3: 0.500 [" in out and "5 tasks × 3 samples" in out and "pass@2 1.000 [" in out
    assert "over the 10 scored samples, of all 15 it is 0.333: 5 unmeasured (grading 5)" in out


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["eval.k=2"], "eval: k=2 needs at least as many samples per task"),
        (["eval.samples=2", "eval.sampled=false"], "samples=2 needs eval.sampled=true"),
    ],
)
def test_keys_that_could_have_no_effect_are_refused(
    overrides: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--env", "calculator", f"runs_dir={tmp_path}", *overrides]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1
