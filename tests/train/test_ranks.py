"""Several ranks on the CPU: the same gradient, step and checkpoint as one, and an end when one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentrl.batch.packing import Aggregation
from agentrl.batch.rows import Row
from agentrl.errors import ModelError, TrainingError
from agentrl.train import checkpoint
from agentrl.train.policy import Policy
from agentrl.train.report import StepReport
from agentrl.train.trainer import Trainer

from .builders import make_groups, make_policy, make_rows, make_trainer, qwen2_config, relative_distance, weights

TWO = ["cpu", "cpu"]
CASES: list[tuple[Aggregation, str]] = [("token", "adamw"), ("trajectory", "muon")]
IDS = [3, 1, 4, 1, 5, 9, 2, 6]
END_WAIT_S = 60.0


@dataclass
class Played:
    """What one step did."""

    rows: list[Row]
    mismatch: dict[str, float]
    report: StepReport
    state: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    weights_hash: str

    @property
    def moments(self) -> dict[str, torch.Tensor]:
        """After one step, the gradient times a constant."""
        return {name: value for name, value in self.state.items() if name.endswith(("exp_avg", "momentum_buffer"))}


def play(trainer: Trainer, rows: list[Row]) -> Played:
    mismatch = trainer.score(rows)
    report = trainer.step(rows, 0)
    state = {name: value.clone() for name, value in trainer.optimizer_tensors()}
    return Played(rows, mismatch, report, state, weights(trainer.policy), trainer.policy.weights_hash())


def same_step(ours: Played, theirs: Played, tolerance: float) -> None:
    assert relative_distance(ours.moments, theirs.moments) <= tolerance
    assert relative_distance(ours.state, theirs.state) <= tolerance
    assert relative_distance(ours.weights, theirs.weights) <= tolerance
    assert ours.report.metrics == pytest.approx(theirs.report.metrics, rel=tolerance, abs=tolerance)
    assert ours.mismatch == pytest.approx(theirs.mismatch, rel=tolerance, abs=tolerance)
    for left, right in zip(ours.report.rows, theirs.report.rows, strict=True):
        assert (left.trajectory, left.batch, left.position) == (right.trajectory, right.batch, right.position)
        assert left.ratio_mean == pytest.approx(right.ratio_mean, rel=tolerance, nan_ok=True)
    for row, other in zip(ours.rows, theirs.rows, strict=True):
        np.testing.assert_allclose(row.proximal, other.proximal, rtol=tolerance, atol=tolerance)


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        output: torch.Tensor = model(input_ids=torch.tensor([IDS]), use_cache=False).logits[0]
        return output


@dataclass
class Exported:
    """A Hugging Face folder that a policy wrote, and the logprobs that it gave then."""

    folder: Path
    logprobs: list[float]


@dataclass
class History:
    """The same things done, in the same order, on some number of ranks."""

    first_hash: str
    played: list[Played]
    exported: list[Exported]
    saved: Path
    pids: list[int]
    """Of the other ranks."""
    meeting_file: Path | None


def do_everything(device: Any, folder: Path) -> History:
    """Export, one step by each of CASES with an optimizer of its own, export, checkpoint. Tied, in float64."""
    with make_policy(qwen2_config(), device=device, dtype=torch.float64, logprob_chunk_tokens=16) as policy:
        first_hash, exported, played = policy.weights_hash(), [export(policy, folder / "before")], []
        for number, (aggregation, optimizer) in enumerate(CASES):
            rows = make_rows(make_groups(number, branching=True))
            trainer = make_trainer(policy, aggregation, micro_batch_tokens=40, optimizer=optimizer, weight_decay=0.1)
            played.append(play(trainer, rows))
        exported.append(export(policy, folder / "after"))
        saved = checkpoint.save(folder / "saved", policy, trainer, {"step": 1})
        pids, meeting_file = policy.ranks.pids, policy.ranks.meeting_file
        if meeting_file is not None:
            assert meeting_file.parent.stat().st_mode & 0o077 == 0, "nobody else may meet the ranks"
        policy.close()
    return History(first_hash, played, exported, saved, pids, meeting_file)


def export(policy: Policy, folder: Path) -> Exported:
    policy.save(folder)
    return Exported(folder, policy.logprobs(IDS, range(1, len(IDS))))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> History:
    return do_everything("cpu", tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> History:
    return do_everything(TWO, tmp_path_factory.mktemp("two"))


def test_g1_ranks_start_with_the_same_weights(one: History, two: History) -> None:
    assert one.first_hash == two.first_hash


def test_some_rounds_are_full_and_some_are_padded(one: History) -> None:
    assert {played.report.metrics["num_micro_batches"] % 2 for played in one.played} == {0, 1}


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{a}-{o}" for a, o in CASES])
def test_g1_two_ranks_make_the_step_of_one(one: History, two: History, number: int) -> None:
    same_step(two.played[number], one.played[number], 1e-10)
    assert two.played[number].report.metrics["first_update_ratio_error"] == 0.0  # C07


def test_closing_leaves_no_process_and_no_file(two: History) -> None:
    assert len(two.pids) == 1 and not is_alive(two.pids[0])
    assert two.meeting_file is not None and not two.meeting_file.parent.exists()


def test_i04_the_head_stays_tied_through_export_and_import_on_two_ranks(two: History) -> None:
    before, after = two.exported
    assert relative_distance(dict(enumerate_values(before)), dict(enumerate_values(after))) > 1e-3
    for exported in two.exported:
        model = AutoModelForCausalLM.from_pretrained(exported.folder, dtype=torch.float64)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        table = torch.log_softmax(logits(model), dim=-1)
        expected = [table[place - 1, IDS[place]].item() for place in range(1, len(IDS))]
        assert exported.logprobs == pytest.approx(expected, abs=1e-6)


def enumerate_values(exported: Exported) -> list[tuple[Any, torch.Tensor]]:
    return [(place, torch.tensor(value)) for place, value in enumerate(exported.logprobs)]


def test_a_checkpoint_of_two_ranks_goes_on_on_one(two: History) -> None:
    with Policy.load(two.saved, device="cpu", threads=1, dtype=torch.float64) as policy:
        assert policy.weights_hash() == two.played[-1].weights_hash
        trainer = make_trainer(policy, optimizer="muon")
        assert checkpoint.load(two.saved, trainer) == {"step": 1}
        restored = dict(trainer.optimizer_tensors())
    saved = two.played[-1].state
    assert saved.keys() == restored.keys() and all(torch.equal(saved[name], restored[name]) for name in saved)


def test_a_checkpoint_of_one_rank_goes_on_on_two_one_of_them_without_rows(tmp_path: Path) -> None:
    """In float32 and untied, so that a head that nothing is computed of on rank 1 would hang the reduction.

    Rank 1's forward passes are padding, and recompute their activations, which rank 0 alone did not.
    """
    rows = make_rows(make_groups(5))
    options: dict[str, Any] = {"micro_batch_tokens": 10_000, "max_grad_norm": 1e9}
    with make_policy(qwen2_config(tie_word_embeddings=False), logprob_chunk_tokens=16) as policy:
        trainer = make_trainer(policy, **options)
        trainer.step(make_rows(make_groups(4)), 0)
        saved = checkpoint.save(tmp_path / "saved", policy, trainer, {})
        expected = play(trainer, rows)
    with Policy.load(saved, device=TWO, threads=1, logprob_chunk_tokens=16, activation_checkpointing=True) as policy:
        trainer = make_trainer(policy, **options)
        checkpoint.load(saved, trainer)
        got = play(trainer, rows)
        with pytest.raises(ModelError, match="close the other policy first"):
            make_policy()
    assert got.report.metrics["num_micro_batches"] == 1
    assert relative_distance(got.moments, expected.moments) <= 1e-5
    assert relative_distance(got.weights, expected.weights) <= 1e-5
    assert got.report.metrics == pytest.approx(expected.report.metrics, rel=1e-5, abs=1e-5)


def gone(pids: list[int]) -> bool:
    """Within a minute."""
    deadline = time.monotonic() + END_WAIT_S
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def pair() -> Iterator[Policy]:
    with make_policy(device=TWO) as policy:
        yield policy


def test_a_rank_that_raises_ends_the_step_with_its_traceback(pair: Policy) -> None:
    pids = pair.ranks.pids
    trainer = make_trainer(pair, micro_batch_tokens=1)
    rows = make_rows(make_groups(1))
    second = sorted(rows, key=len, reverse=True)[1]  # longest first, one Row each: the second is rank 1's
    second.ids[0] = 10_000  # no such id in the vocabulary
    with pytest.raises(TrainingError) as caught:
        trainer.step(rows, 0)
    message = str(caught.value)
    assert "rank 1 of 2 failed" in message and "--resume" in message
    assert "IndexError" in message and "packed.py" in message
    assert gone(pids)
    with pytest.raises(TrainingError, match="ranks have ended"):
        trainer.score(rows)


def test_a_rank_that_is_killed_in_a_step_ends_it(pair: Policy) -> None:
    (pid,) = pair.ranks.pids
    trainer = make_trainer(pair)
    os.kill(pid, signal.SIGSTOP)  # rank 0 gets into a collective, and waits there
    killer = threading.Timer(1.0, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(TrainingError, match=r"rank 1 of 2 was killed by SIGKILL during backward_share"):
        trainer.step(make_rows(make_groups(1)), 0)
    killer.join()
    assert gone([pid])


def test_a_rank_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise RuntimeError('broken installation')")
    monkeypatch.syspath_prepend(tmp_path)  # this process has imported the real one already
    with pytest.raises(TrainingError, match=r"(?s)rank 1 of 2 ended with exit code 1 during its start.*broken inst"):
        make_policy(device=TWO)


PARENT = """
from tests.train.builders import make_policy, make_rows, make_groups, make_trainer
policy = make_policy(device=["cpu", "cpu"])
print(*policy.ranks.pids, policy.ranks.meeting_file.parent, flush=True)
trainer, rows = make_trainer(policy), make_rows(make_groups(1))
while True:
    trainer.score(rows)
"""


def test_no_rank_outlives_a_run_that_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, folder = parent.stdout.readline().split()
        assert is_alive(int(pid)) and Path(folder).exists()
        parent.kill()
    assert gone([int(pid)]) and not Path(folder).exists()
