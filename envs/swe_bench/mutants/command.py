"""`agentrl data swe-mutate --sdist toolz==1.2.0 --num 200 --seed 0 --out x.jsonl`: tasks from a package's own tests.

The order of the faults follows from the seed and the package alone, and each is kept or not by what its tests say,
so the same arguments give the same file. What was tried stands beside it in `x.jsonl.tried`: a run that was stopped
goes on from there, and a larger `--num` adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from agentrl.config_sandbox import SandboxConfig
from agentrl.envs.swe_bench import sources, unpacking
from agentrl.envs.swe_bench.mutants.faults import Fault, faults_of
from agentrl.envs.swe_bench.mutants.packages import archive_beside, code_files, python_path, test_files
from agentrl.envs.swe_bench.mutants.trial import TASK_TIMEOUT_S, Package, tested, tried
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.errors import ConfigError
from agentrl.testing.boxes import CheckBoxes

FORM = 1
"""Of faults, tasks and their order; another one is never mixed with this."""
MIN_TIMEOUT_S = 20.0
TIMES_AS_LONG = 5.0
"""As the tests take without a fault: after that they hang."""


def main(words: Sequence[str]) -> int:
    """Raises ConfigError and SandboxError."""
    parser = argparse.ArgumentParser(prog="agentrl data swe-mutate", description="tasks from a package's own tests")
    parser.add_argument("--sdist", required=True, help="a .tar.gz, or NAME==VERSION, which pip downloads")
    parser.add_argument("--num", type=int, default=200, help="how many tasks to make (200)")
    parser.add_argument("--seed", type=int, default=0, help="which faults, and in which order (0)")
    parser.add_argument("--out", type=Path, required=True, help="the JSONL to write; the archive is put beside it")
    parser.add_argument("--sandbox", default="auto", help="the backend of the boxes (auto)")
    options = parser.parse_args(words)
    if options.num < 1:
        raise ConfigError(f"--num {options.num}: at least one")
    out: Path = options.out.expanduser().absolute()
    if not out.parent.is_dir():
        raise ConfigError(f"--out {options.out}: no folder {out.parent}")
    package = _package(archive_beside(out, options.sdist))
    asyncio.run(_make(package, options, out))
    return 0


def _package(archive: Path) -> Package:
    """Raises ConfigError where there is nothing to test."""
    source = Source(kind="archive", path=str(archive), sha256=unpacking.file_hash(archive))
    folder = Path(sources.folder_of(source))
    tests = tuple(test_files(folder))
    if not tests:
        raise ConfigError(f"{archive.name}: it holds no test_*.py; choose a package that ships its tests")
    name = archive.name.removesuffix(".tar.gz")
    return Package(name=name, source=source, folder=folder, test_files=tests, python_path=python_path(folder))


async def _make(package: Package, options: argparse.Namespace, out: Path) -> None:
    faults = _shuffled(package, options.seed)
    known = _Tried(out.with_name(out.name + ".tried"), package, options.seed)
    boxes = CheckBoxes(SandboxConfig(backend=options.sandbox))
    counts, kept = Counter[str](), []
    try:
        async with aclosing(_outcomes(boxes, package, faults, known)) as outcomes:  # before the boxes are
            async for place, outcome in outcomes:
                if isinstance(outcome, SweTask):
                    kept.append(outcome)
                else:
                    counts[outcome if "tests fail" not in outcome else "too many tests fail, or too few pass"] += 1
                _show(f"{len(kept)} of {options.num} tasks from {place + 1} of {len(faults)} faults")
                if len(kept) == options.num:
                    break
    finally:
        await boxes.close()
        known.close()
    _write(out, kept)
    print(f"{len(kept)} tasks in {out}; left out: " + (", ".join(f"{n} {why}" for why, n in counts.items()) or "none"))
    if len(kept) < options.num:
        print(f"{package.name} has no more: all {len(faults)} faults were tried")


async def _outcomes(
    boxes: CheckBoxes, package: Package, faults: Sequence[Fault], known: _Tried
) -> AsyncGenerator[tuple[int, SweTask | str], None]:
    """(place, task or reason) in the order of the faults; as many at once as there are cores."""
    before: dict[str, str] = {}
    timeout_s = TASK_TIMEOUT_S
    running: dict[int, asyncio.Task[SweTask | str]] = {}
    try:
        for place in range(len(faults)):
            if place in known.outcomes:
                yield place, known.outcomes[place]
                continue
            if not before:
                before, timeout_s = await _before(boxes, package)
            ahead = [at for at in range(place, len(faults)) if at not in known.outcomes][: os.cpu_count() or 1]
            for at in ahead:
                if at not in running:
                    running[at] = asyncio.create_task(tried(boxes, package, faults[at], before, timeout_s))
            outcome = await running.pop(place)
            known.add(place, outcome)
            yield place, outcome
    finally:
        for task in running.values():
            task.cancel()
        await asyncio.gather(*running.values(), return_exceptions=True)


async def _before(boxes: CheckBoxes, package: Package) -> tuple[dict[str, str], float]:
    """The tests that pass twice without a fault, and how long a run with one may take.

    Raises ConfigError where none does.
    """
    started = time.monotonic()
    first = await tested(boxes, package.task(), TASK_TIMEOUT_S)
    seconds = time.monotonic() - started
    second = await tested(boxes, package.task(), TASK_TIMEOUT_S)
    before = {test: "passed" for test, status in first.statuses.items()
              if status == second.statuses.get(test) == "passed"}  # fmt: skip
    if first.problem or first.tampered or not before:
        why = first.problem or first.tampered or "no test passes"
        raise ConfigError(f"{package.name}: its tests can't be used: {why}\n{first.output[-1000:]}")
    return before, min(TASK_TIMEOUT_S, max(MIN_TIMEOUT_S, TIMES_AS_LONG * seconds))


def _shuffled(package: Package, seed: int) -> list[Fault]:
    faults: list[Fault] = []
    for path in code_files(package.folder):
        try:
            faults += faults_of(path, (package.folder / path).read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):  # of another Python, or no UTF-8
            continue
    random.Random(f"swe-mutate/{FORM}/{seed}").shuffle(faults)
    if not faults:
        raise ConfigError(f"{package.name}: no module to put a fault into")
    return faults


class _Tried:
    """What became of each fault, one line each, written as it is known. Belongs to one package and seed."""

    def __init__(self, path: Path, package: Package, seed: int) -> None:
        self.outcomes: dict[int, SweTask | str] = {}
        head = {"form": FORM, "sha256": package.source.sha256, "seed": seed}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) == head:
            for line in lines[1:]:
                self._read(line, package)
        self._file = path.open("w", encoding="utf-8")
        self._line(head)
        for place, outcome in sorted(self.outcomes.items()):
            self.add(place, outcome)

    def _read(self, line: str, package: Package) -> None:
        try:
            place, reason, task = json.loads(line)
            self.outcomes[place] = reason if task is None else SweTask.model_validate(task | {"source": package.source})
        except ValueError:  # the last line of a run that was killed
            return

    def add(self, place: int, outcome: SweTask | str) -> None:
        self.outcomes[place] = outcome
        is_task = isinstance(outcome, SweTask)
        self._line([place, None if is_task else outcome, _record(outcome) if isinstance(outcome, SweTask) else None])

    def _line(self, value: object) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _record(task: SweTask) -> dict[str, object]:
    """As it is written: the archive by its name, since it lies beside the file."""
    record = task.model_dump(mode="json", exclude_defaults=True)
    assert task.source is not None
    return record | {"source": task.source.model_dump() | {"path": Path(task.source.path).name}}


def _write(out: Path, tasks: Sequence[SweTask]) -> None:
    draft = out.with_name(out.name + ".draft")
    draft.write_text("".join(json.dumps(_record(task)) + "\n" for task in tasks), encoding="utf-8")
    os.replace(draft, out)


def _show(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end="", file=sys.stderr, flush=True)
