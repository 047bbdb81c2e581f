"""Make what is derived in `mini`: `python -m agentrl.envs.swe_bench.data.build`, from a checkout with git and pytest.

Written by hand: libraries/, and of each task problem_statement.md, gold.patch and test.patch. Derived: the libraries'
histories (repositories/*.bundle: the library as it is, then for each task, by its number, a commit with both of its
patches), task.yaml, eval.sh, and tests.json, from running all tests before and after the gold patch. The commits are
the same at each build and on each machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml

from agentrl.envs.swe_bench.data import MINI
from agentrl.envs.swe_bench.records.paths import files_of, touched
from agentrl.envs.swe_bench.records.swe_bench import image
from agentrl.envs.swe_bench.records.swe_bench_5 import END, START

OWNER = "agentrl-mini"
FIRST_DAY = datetime(2024, 1, 1, 12, tzinfo=UTC)
TIMEOUT_S = 120.0
REPORTER = """
import json, os
results = {}
def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        results.setdefault(report.nodeid, report.outcome)
def pytest_sessionfinish(session):
    with open(os.environ["RESULTS"], "w") as file:
        json.dump(results, file)
"""


class History:
    """The repository of a library, one commit for each task."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.folder = folder
        self.days = 0
        shutil.copytree(library, folder, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        self.git("init", "--quiet", "--initial-branch=main", "--object-format=sha1", "--template=")
        self.commit("Initial import")

    def git(self, *words: str) -> str:
        """Nobody's configuration, and no clock: commits depend on their content alone. Raises CalledProcessError."""
        day = (FIRST_DAY + timedelta(days=self.days)).isoformat()
        environment = {"PATH": os.environ["PATH"], "HOME": os.devnull, "LC_ALL": "C"}
        environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        for role in ("AUTHOR", "COMMITTER"):
            environment |= {
                f"GIT_{role}_NAME": "Mini",
                f"GIT_{role}_EMAIL": "mini@example.com",
                f"GIT_{role}_DATE": day,
            }
        command = ["git", "-c", "core.autocrlf=false", *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> None:
        """All that there is."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        self.days += 1

    @property
    def head(self) -> str:
        """The last commit's name."""
        return self.git("rev-parse", "HEAD")


def tasks_of(library: Path, mini: Path) -> list[Path]:
    """The folders of a library's tasks, by their numbers."""
    found = mini.glob(f"tasks/{OWNER}__{library.name}-*")
    return sorted(found, key=lambda task: int(task.name.rsplit("-", 1)[1]))


def build(mini: Path, work: Path, outcomes: Callable[[Path], dict[str, str]] | None = None) -> None:
    """Write all that is derived; without `outcomes`, tests.json stays as it is. `work` is an empty folder."""
    for library in sorted((mini / "libraries").iterdir()):
        history = History(library, work / library.name)
        for task in tasks_of(library, mini):
            base = history.head
            _apply(history, task / "test.patch")
            before = outcomes(history.folder) if outcomes else {}
            _apply(history, task / "gold.patch")
            if outcomes:
                _write(task / "tests.json", _json(_tests(before, outcomes(history.folder))))
            _describe(task, library, base, history.days)
            history.commit(_title(task))
        _bundle(history, mini / "repositories" / f"{library.name}.bundle")


def outcomes(folder: Path) -> dict[str, str]:
    """Test → outcome, of all tests of a library, by this interpreter's pytest."""
    with tempfile.TemporaryDirectory() as name:
        plugin = Path(name)
        (plugin / "reporter.py").write_text(REPORTER)
        results = plugin / "results.json"
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": name, "RESULTS": str(results)}
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "reporter", "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
        if not results.is_file():
            raise RuntimeError(f"{folder.name}: no results: {done.stdout}{done.stderr}")
        found: dict[str, str] = json.loads(results.read_text())
        return found


def _apply(history: History, patch: Path) -> None:
    history.git("apply", "--whitespace=nowarn", str(patch.resolve()))


def _tests(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    passing = sorted(name for name, outcome in after.items() if outcome == "passed")
    return {
        "FAIL_TO_PASS": [name for name in passing if before.get(name) != "passed"],
        "PASS_TO_PASS": [name for name in passing if before.get(name) == "passed"],
    }


def _describe(task: Path, library: Path, base: str, days: int) -> None:
    version = tomllib.loads((library / "pyproject.toml").read_text())["project"]["version"]
    values = {
        "instance_id": task.name,
        "repo": f"{OWNER}/{library.name}",
        "version": version,
        "base_commit": base,
        "created_at": (FIRST_DAY + timedelta(days=days)).isoformat(),
        "split": "test",
        "datasets": ["agentrl/mini"],
        "image": image(task.name),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "source": {"kind": "bundle", "path": f"repositories/{library.name}.bundle"},
        "timeout_s": TIMEOUT_S,
    }
    _write(task / "task.yaml", yaml.safe_dump(values, sort_keys=False))
    _write(task / "eval.sh", _eval_script(task, base))


def _eval_script(task: Path, base: str) -> str:
    """Resets the test files, brings in the hidden tests, and runs what tests.json names."""
    patch = (task / "test.patch").read_text()
    tests = json.loads((task / "tests.json").read_text())
    reset = f"git checkout {base} {' '.join(touched(patch))}"
    files = sorted(files_of([*tests["FAIL_TO_PASS"], *tests["PASS_TO_PASS"]]))
    return "\n".join(
        [
            *("#!/bin/bash", "set -uxo pipefail", "cd /testbed", reset),
            *("git apply -v - <<'EOF_OF_TEST_PATCH'", patch.rstrip("\n"), "EOF_OF_TEST_PATCH"),
            *(f": '{START}'", f"python3 -m pytest -rA -p no:cacheprovider {' '.join(files)}", f": '{END}'", reset, ""),
        ]
    )


def _bundle(history: History, path: Path) -> None:
    """Left as it is where it has the commits: how git packs them differs from version to version."""
    if path.is_file() and history.head in history.git("bundle", "list-heads", str(path.resolve())):
        return
    path.parent.mkdir(exist_ok=True)
    history.git("bundle", "create", "--quiet", str(path.resolve()), "HEAD", "main")


def _title(task: Path) -> str:
    return (task / "problem_statement.md").read_text().splitlines()[0]


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        build(MINI, Path(folder), outcomes)
