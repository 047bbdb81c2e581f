"""A real `agentrl train` process that is stopped, or killed, from outside."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.store import RunStatus, Store
from agentrl.testing.audit import audit
from tests.small import small_overrides

AGENTRL = [sys.executable, "-c", "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    """With SIGINT as at a terminal: a shell's background jobs, of which the tests may be one, ignore it."""
    return subprocess.Popen(
        [*AGENTRL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("signal_", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.long)]
)
def test_a_stop_signal_leaves_a_run_that_can_be_resumed(tmp_path: Path, signal_: signal.Signals, code: int) -> None:
    options = small_overrides(tmp_path, tmp_path / "cache", "engine=scripted", "train.steps=300", "eval.tasks=2")
    process = start(["train", "--env", "calculator", *options])
    assert process.stdout is not None
    while "step   2/300" not in (line := process.stdout.readline()):
        assert line, process.communicate()[1]
    process.send_signal(signal_)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert errors.splitlines()[-1] == "agentrl train: stopped" and "Traceback" not in errors
    (hint,) = [line for line in output.splitlines() if "--resume" in line]
    database = tmp_path / "agentrl.db"
    assert audit(database) == []
    with Store.open(database) as store:
        record = store.runs()[0]
        assert record.status is RunStatus.INTERRUPTED
        num_steps = len(store.steps(record.id))
    # What the hint says to type goes on from the step that it was stopped at.
    process = start(hint.partition("agentrl ")[2].split())
    assert process.stdout is not None
    steps = (line for line in process.stdout if line.startswith("  step"))
    first = next(steps)
    assert int(first.split()[1].split("/")[0]) in (num_steps, num_steps + 1)
    process.kill()
    process.communicate()
    assert audit(database) == []
