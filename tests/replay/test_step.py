"""`agentrl replay RUN --step N` (S3) and `--rescore`: a real run's steps and logprobs, computed again."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sqlite3
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl import plugins
from agentrl.cli import main
from agentrl.progress import Silent
from agentrl.run import sft
from agentrl.store import Store
from agentrl.train.policy import Policy
from agentrl.train.tiny import build_config, build_tokenizer
from agentrl.types import Purpose, Sampler
from tests.replay.trained import Trained
from tests.small import small_config

STEPS = 4


def replay(trained: Trained, *words: str) -> int:
    return main(["replay", *words, "--db", trained.database])


def plain_of(text: str) -> list[str]:
    """The lines with runs of blanks as one."""
    return [" ".join(line.split()) for line in text.splitlines()]


# ---------------------------------------------------------------------------------------------------------- --step


@pytest.mark.parametrize("step", range(STEPS))
def test_a_step_is_recomputed_bit_for_bit(trained: Trained, step: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Also an abandoned one; several updates, each of several micro-batches."""
    assert replay(trained, "demo", "--step", str(step)) == 0
    lines = plain_of(capsys.readouterr().out)
    with Store.open(trained.database) as store:
        stored = store.steps(trained.run.id)[step]
        num_rows = len(store.rows_of(trained.run.id, step))
    assert stored.metrics is not None and stored.metrics["num_updates"] == 2
    assert stored.metrics["num_micro_batches"] > 2
    assert f"Rows equal {num_rows} equal" in lines
    assert f"loss {str(stored.metrics['loss'])[:20]} equal" in lines
    assert f"grad_norm {str(stored.metrics['grad_norm'])[:20]} equal" in lines
    assert any(
        line.startswith(f"weights of version {stored.version_after} ") and line.endswith("equal") for line in lines
    )


def test_a_warm_start_step_that_holds_a_row_twice_is_recomputed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["sft.demonstrations=3", "sft.batch_size=4", "sft.steps=1", "name=warm", "train.threads=1"]
    asyncio.run(sft(small_config(tmp_path, tmp_path / "cache", *sizes), Silent()))
    assert main(["replay", "warm", "--step", "0", "--db", str(tmp_path / "agentrl.db")]) == 0
    assert "Rows equal 4 equal" in plain_of(capsys.readouterr().out)


def test_the_nearest_kept_weights_before_the_step_are_taken(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    starts = []
    for step in range(STEPS):
        assert replay(trained, "demo", "--step", str(step)) == 0
        starts.append(plain_of(capsys.readouterr().out)[1])
    checkpoint = Path(trained.run.folder) / "checkpoints" / "step-2"
    base = trained.run.config["model_folder"]
    assert starts == [
        f"from version 0 in {base}: step 0", f"from version 0 in {base}: step 0, step 1",
        f"from version 2 in {checkpoint}: step 2", f"from version 2 in {checkpoint}: step 3",
    ]  # fmt: skip


ONE_ROW = "where step_id = 3 and batch = 0 and position = 0"
CHANGES = {
    "an advantage": "update step_rows set advantage = advantage + 1e-9 where step_id = 3",
    "a weight": f"update step_rows set weights = '[[0, 500, 0.0, \"changed\"]]' {ONE_ROW}",
    "the loss": "update steps set metrics = json_set(metrics, '$.loss', 1.5) where id = 3",
    "a Row's ratio": f"update step_rows set ratio_max = 9.5 {ONE_ROW}",
    "a version's weights": "update versions set weights_hash = 'other' where step_id = 3",
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_does_not_come_out_again_is_named(
    trained: Trained, tmp_path: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = trained.copy(tmp_path)
    with sqlite3.connect(changed.database) as database:
        assert database.execute(CHANGES[what]).rowcount
    assert replay(changed, "demo", "--step", "3") == 1
    named = {"the loss": "loss", "a Row's ratio": "Rows equal"}.get(what, "weights of version 4")
    different = [line for line in plain_of(capsys.readouterr().out) if "DIFFERENT" in line]
    assert any(line.startswith(named) for line in different)


def test_without_kept_weights_it_says_which_steps_can_be_recomputed(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = trained.copy(tmp_path)
    with Store.open(changed.database) as store:
        config = dict(store.find_run("demo").config) | {"model_folder": str(tmp_path / "gone")}
    with sqlite3.connect(changed.database) as database:
        database.execute("update runs set config = ? where name = 'demo'", [json.dumps(config)])
    assert replay(changed, "demo", "--step", "1") == 2
    said = capsys.readouterr().err
    assert "step 1 of run" in said and "Steps that can be: 2, 3." in said and f"torch {torch.__version__}" in said
    assert replay(changed, "demo", "--step", "3") == 0


@pytest.mark.parametrize(
    ("run", "step", "said"), [("demo", "9", "no recorded step 9; there are 0, 1, 2, 3"), ("nobody", "0", "near: ")]
)
def test_a_step_or_run_that_is_not_there(
    trained: Trained, run: str, step: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(trained, run, "--step", step) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["--step", "--rescore"])
def test_a_config_of_another_version_is_named(
    trained: Trained, tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = trained.copy(tmp_path)
    with sqlite3.connect(changed.database) as database:
        database.execute("update runs set config = json_set(config, '$.train.muon_rate', 0.5) where name = 'demo'")
    words = ["demo", "--step", "3"] if mode == "--step" else [trained.trajectories(3)[0].id, "--rescore", "step-3"]
    assert replay(changed, *words) == 2
    said = capsys.readouterr().err
    assert "muon_rate=0.5: Extra inputs are not permitted. It was made with " in said and "torch" in said


def test_kept_weights_that_were_changed_are_refused(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = trained.copy(tmp_path)
    with sqlite3.connect(changed.database) as database:
        database.execute("update versions set weights_hash = 'other' where id = 2")
    assert replay(changed, "demo", "--step", "3") == 1
    assert "doesn't hold version 2" in capsys.readouterr().err


def test_a_warm_start_is_recomputed_too(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(trained.database) as store:
        (sft,) = [run for run in store.runs() if run.config["command"] == "sft"]
    assert replay(trained, sft.id, "--step", "1") == 0
    lines = plain_of(capsys.readouterr().out)
    assert "Rows equal 8 equal" in lines and sum(line.endswith(" equal") for line in lines) == 6


def test_J11_neither_environment_nor_tool_nor_engine_takes_part(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin may be gone; stored trajectories and Rows stay as they are."""
    monkeypatch.setattr(plugins, "load", lambda group, name: pytest.fail(f"{name} was asked for"))
    again = trained.copy(tmp_path)
    before = dump(again)
    assert replay(again, "demo", "--step", "3") == 0
    assert replay(again, again.trajectories(3)[0].id, "--rescore", "step-2") == 0
    assert dump(again) == before


def dump(trained: Trained) -> list[str]:
    with sqlite3.connect(trained.database) as database:
        return list(database.iterdump())


# ------------------------------------------------------------------------------------------------------- --rescore

LINE = re.compile(
    r"turn +(\d+) +(\d+)  id +(\d+)  recorded +(\S+)  now +(\S+)  difference (\S+)  ratio (\S+)  version (\d+)  '"
)


def scored(capsys: pytest.CaptureFixture[str]) -> list[tuple[str, ...]]:
    return LINE.findall(capsys.readouterr().out)


def test_the_weights_that_sampled_say_what_was_recorded(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = trained.trajectories(3)[0]
    assert replay(trained, trajectory.id, "--rescore", "step-2", "--top", "9999") == 0
    found = scored(capsys)
    assert len(found) == trajectory.num_sampled > 0 and {line[7] for line in found} == {"2"}
    assert max(abs(float(line[5])) for line in found) < 1e-4


def test_other_weights_say_something_else_sorted_by_how_much(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reference is the model's own forward pass over each turn's context, at the recorded temperature."""
    trajectory, base = trained.trajectories(3)[0], trained.run.config["model_folder"]
    expected = {}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
    for turn in trajectory.turns_of():
        full, start = trajectory.full(turn.index), len(trajectory.context(turn.index))
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([full])).logits[0] / 1.3, -1)
        for place, token in enumerate(turn.sampled_ids):
            expected[turn.index, place] = logprobs[start + place - 1, token].item() - turn.logprobs[place]
    assert replay(trained, trajectory.id, "--rescore", base, "--top", "9999") == 0
    found = scored(capsys)
    differences = [float(line[5]) for line in found]
    assert len(found) == len(expected) and max(map(abs, differences)) > 1e-3
    assert [abs(one) for one in differences] == sorted((abs(one) for one in differences), reverse=True)
    for line in found:
        assert math.isclose(float(line[5]), expected[int(line[0]), int(line[1])], abs_tol=2e-5)
        assert math.isclose(float(line[6]), math.exp(float(line[5])), abs_tol=2e-4)


def test_the_ratio_of_the_step_stands_beside_it(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = trained.trajectories(3)[0]
    with Store.open(trained.database) as store:
        (use,) = [use for use in store.steps_of(trajectory.id) if use.step == 3]
    replay(trained, trajectory.id, "--rescore", "step-3", "--top", "2")
    out = capsys.readouterr().out
    assert len(LINE.findall(out)) == 2
    assert f"trained on in step 3 of run {trained.run.id}" in out and f"ratio mean {use.row.ratio_mean:.4f}" in out


def test_weights_that_are_not_there_are_answered_with_those_that_are(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    assert replay(trained, trained.trajectories(3)[0].id, "--rescore", "step-7") == 2
    said = capsys.readouterr().err
    assert "step-7 is no model folder" in said and "step-2, step-3" in said and "transformers" in said


def test_a_model_with_other_ids_is_refused(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = build_config(build_tokenizer(["a"]))
    shape.vocab_size = 300
    with Policy.random(shape, 0) as policy:
        policy.save(tmp_path / "other")
    assert replay(trained, trained.trajectories(3)[0].id, "--rescore", str(tmp_path / "other")) == 2
    assert "knows 300 ids" in capsys.readouterr().err


def test_a_scripts_ids_have_no_logprobs_to_compare_with(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(trained.database) as store:
        scripted = store.find_trajectories(purpose=Purpose.COLLECT, limit=1)[0].id
        assert store.load_trajectory(scripted).turns[0].sampler is Sampler.SCRIPTED
    assert replay(trained, scripted, "--rescore", "step-2") == 2
    assert "no ids that an engine sampled" in capsys.readouterr().err
