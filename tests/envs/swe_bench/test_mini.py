"""`mini`: what is derived is what the script makes, and its tests fail and pass as it says."""

from __future__ import annotations

import ast
import shutil
import subprocess
from pathlib import Path

import pytest

from agentrl.envs.swe_bench import log_parsers, records, sources
from agentrl.envs.swe_bench.bundle import pytest_bundle
from agentrl.envs.swe_bench.data import MINI
from agentrl.envs.swe_bench.data.build import build
from agentrl.envs.swe_bench.task import SweTask
from agentrl.sandbox import Sandbox, SandboxSpec
from tests.boxes import best_box

TASKS = {task.id: task for task in records.load(MINI)}
MAX_BYTES = 200_000
LIMIT_S = 300.0


def derived(mini: Path) -> dict[str, bytes]:
    files = {path for name in ("task.yaml", "eval.sh", "tests.json") for path in mini.glob(f"tasks/*/{name}")}
    return {str(path.relative_to(mini)): path.read_bytes() for path in files}


def heads(mini: Path) -> dict[str, str]:
    found = {}
    for path in mini.glob("repositories/*.bundle"):
        listed = subprocess.run(["git", "bundle", "list-heads", path], capture_output=True, text=True, check=True)
        found[path.name] = listed.stdout
    return found


def test_what_is_derived_is_up_to_date_wherever_it_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").write_text("[core]\n\tautocrlf = true\n[user]\n\tname = Somebody\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Kathmandu")
    mini = tmp_path / "mini"
    shutil.copytree(MINI, mini)
    shutil.rmtree(mini / "repositories")
    (tmp_path / "work").mkdir()
    build(mini, tmp_path / "work")
    told = "run: python -m agentrl.envs.swe_bench.data.build"
    assert derived(mini) == derived(MINI), told
    assert heads(mini) == heads(MINI), told


def test_it_is_small_and_each_task_has_tests_that_decide() -> None:
    assert len(TASKS) == 12
    for task in TASKS.values():
        assert 1 <= len(task.fail_to_pass) <= 6 and len(task.pass_to_pass) >= 5
        assert not any(" " in name for name in (*task.fail_to_pass, *task.pass_to_pass)), "a log cuts them off"
        assert task.reports_by == "pytest" and task.image is None and task.python == "python3"
    files = [path for path in MINI.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


def test_its_tests_have_no_docstrings() -> None:
    """unittest would print them in place of the names."""
    for path in MINI.glob("libraries/*/tests/*.py"):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        assert functions and not any(ast.get_docstring(function) for function in functions)


@pytest.mark.parametrize("name", ["daybook-14", "gridtext-17", "sumtree-20"])
async def test_its_tests_fail_before_and_pass_after(name: str) -> None:
    """By the script in the record alone, as another harness would."""
    task = TASKS[f"agentrl-mini__{name}"]
    assert task.source is not None
    files = {"/tmp/pytest.zip": pytest_bundle(), "/tmp/gold.patch": task.gold_patch.encode()}
    spec = SandboxSpec(
        base=sources.folder_of(task.source),
        workdir=task.workdir,
        files=files,
        environment={"PYTHONPATH": "/tmp/pytest.zip", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    async with best_box(spec) as box:
        await done(box, f"git checkout --quiet {task.base_commit}")
        before = await statuses(box, task)
        await done(box, "git apply /tmp/gold.patch")
        after = await statuses(box, task)
    assert {name for name in after if after[name] != "passed"} == set()
    assert set(after) == {*task.fail_to_pass, *task.pass_to_pass}
    assert {name for name in after if before.get(name) != "passed"} == set(task.fail_to_pass)


async def statuses(box: Sandbox, task: SweTask) -> dict[str, str]:
    assert task.eval_script is not None and task.log_parser is not None
    ran = await box.exec(["bash", "-c", task.eval_script], timeout_s=LIMIT_S)
    return dict(log_parsers.parse(task.log_parser, ran.stdout.decode()).statuses)


async def done(box: Sandbox, command: str) -> None:
    ran = await box.exec(command, timeout_s=LIMIT_S)
    assert ran.exit_code == 0, ran.text
