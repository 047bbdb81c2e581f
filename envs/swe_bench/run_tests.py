"""Has pytest run in a grader's box, and makes a report of what was told there, as data that nobody vouches for."""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from agentrl.envs.swe_bench.prepare import WITHOUT_SITE, words
from agentrl.envs.swe_bench.task import SweTask
from agentrl.envs.swe_bench.verdict import Report, Status
from agentrl.sandbox import Sandbox

INSIDE = Path(__file__).parent / "inside"
KEEPER = (INSIDE / "keeper.py").read_text(encoding="utf-8")
REPORTER = (INSIDE / "reporter.py").read_text(encoding="utf-8")
MAX_RESULTS_BYTES = 16 * 1024**2
"""Of what the tests tell: of 50,000 tests."""
MAX_OUTPUT_BYTES = 20_000
"""Of what they print: its end."""
GRACE_S = 3.0
"""For the keeper to tell what there is when the time is up."""
WORST: tuple[Status, ...] = ("passed", "xpassed", "xfailed", "skipped", "failed", "error")
"""Later ones outweigh earlier ones: a test has phases, and nothing that is told of it makes it better."""
NUM_PLANTED_NAMES = 500


class _Event(BaseModel):
    model_config = ConfigDict(extra="ignore")

    event: Literal["planted", "collected", "collect", "result", "tampered", "seal"]
    id: str = ""
    ids: list[str] = []
    status: Status = "error"
    through: list[str] = []
    text: str = ""
    what: str = ""
    exit_code: int = -1


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid")

    word: str
    exit_code: int
    timed_out: bool
    events: list[_Event]
    num_strange_lines: int
    changed_files: list[str]
    output: str


_TOLD = TypeAdapter(_Told)


@dataclass(frozen=True, kw_only=True, slots=True)
class Canaries:
    """Tests of which the end is known. Files with them run before and after all others."""

    files: Mapping[str, str]
    """Name → text."""
    must_fail: Collection[str]
    must_pass: Collection[str]

    @classmethod
    def drawn(cls) -> Canaries:
        """Nobody can know their names or values before they are written."""
        names = [f"test_{secrets.token_hex(6)}" for _ in range(6)]
        one, other = secrets.randbelow(10**6), secrets.token_hex(4)
        text = "\n".join([
            "import unittest",
            f"def {names[0]}():\n    values = [{one}]\n    assert values == [{one}] and values != [{one + 1}]",
            f"def {names[1]}():\n    value = {one}\n    assert value == {one + 1}",
            f"def {names[2]}():\n    value = ['{other}', {{}}]\n    assert value == ['{other}', {{'a': 1}}]",
            f"def {names[3]}():\n    import pytest\n    with pytest.raises(KeyError):\n        {{1: 2}}.get({one})",
            f"def {names[4]}():\n    raise ValueError('{other}')",
            f"class Test{other}(unittest.TestCase):\n    def {names[5]}(self):\n        self.assertIn(1, [{one}])",
        ])  # fmt: skip
        files = {f"test_{secrets.token_hex(6)}.py": text + "\n" for _ in range(2)}
        return cls(files=files, must_fail=names[1:], must_pass=names[:1])


async def run_tests(box: Sandbox, task: SweTask, bundle: str, changed: Collection[str], deadline: float) -> Report:
    """Run the task's tests. `bundle`: path of our pytest where the task's Python has none; `changed`: the files of
    the agent's patch.

    Raises SandboxError where the box is gone; whatever else goes wrong is the doing of the code that is tested.
    """
    word, canaries = secrets.token_hex(16), Canaries.drawn()
    tests = list(task.test_arguments or [path for path in task.test_files if path.endswith(".py")])
    folder = next((path.rpartition("/")[0] for path in task.test_files if path.endswith(".py")), "") or "."
    first, last = ((f"{folder}/{name}").removeprefix("./") for name in canaries.files)
    timeout_s = max(1.0, min(task.timeout_s, deadline - time.monotonic() - GRACE_S))
    request = {
        "word": word, "source": REPORTER, "python": task.python, "bundle": bundle,
        "python_path": task.python_path,
        "arguments": [first, *tests, last], "canary_folder": folder, "canaries": canaries.files,
        "must_fail": canaries.must_fail, "planted": _names_like(task), "timeout_s": timeout_s,
        "watched": [path for path in task.test_files if path.endswith(".py")],
        "max_results_bytes": MAX_RESULTS_BYTES, "max_output_bytes": MAX_OUTPUT_BYTES,
    }  # fmt: skip
    ran = await box.exec(
        ["python3", *WITHOUT_SITE, KEEPER],
        stdin=json.dumps(request).encode(),
        timeout_s=timeout_s + GRACE_S,
        max_output_bytes=2 * MAX_RESULTS_BYTES,
    )
    try:
        told = _TOLD.validate_json(ran.stdout)
    except ValidationError:
        return Report(statuses={}, problem=f"the tests' keeper was ended: {words(ran)}", output=ran.text[-2000:])
    if told.word != word:
        return Report(statuses={}, tampered="somebody else spoke for the tests' keeper")
    return read_report(told, canaries, changed, timeout_s)


def _names_like(task: SweTask) -> list[str]:
    """Names for planted tests, of the words that the task's own have."""
    known = {name.partition("[")[0].rpartition("::")[2] for name in (*task.fail_to_pass, *task.pass_to_pass)}
    parts = sorted({part for name in known for part in name.split("_") if part.isidentifier() and part != "test"})
    draw = random.SystemRandom()
    names = {"_".join(["test", *draw.sample(parts, min(len(parts), draw.choice([2, 3, 4])))]) for _ in
             range(NUM_PLANTED_NAMES if len(parts) > 4 else 0)}  # fmt: skip
    return sorted(names - known, key=lambda name: draw.random())


@dataclass(kw_only=True, slots=True)
class _Reading:
    """What is known after the events so far."""

    statuses: dict[str, Status] = field(default_factory=dict)
    collected: set[str] = field(default_factory=set)
    planted: set[str] = field(default_factory=set)
    tampered: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    seal: int | None = None

    def take(self, event: _Event, changed: Collection[str]) -> None:
        if event.event == "planted":
            self.planted.add(event.id)
        elif event.event == "collected":
            self.collected.update(event.ids)
        elif event.event == "tampered":
            self.tampered.append(event.what)
        elif event.event == "seal":
            self.seal = event.exit_code
        elif event.event == "collect":
            self.statuses[event.id], self.texts[event.id] = "error", event.text
        elif event.id not in self.collected:
            self.tampered.append(f"a result of {event.id}, which was never collected")
        else:
            self._settle(event, changed)

    def _settle(self, event: _Event, changed: Collection[str]) -> None:
        status = event.status
        if status in ("skipped", "xfailed") and set(event.through) & set(changed):
            status = "failed"  # the code under test asked to be let off
        if event.text:
            self.texts[event.id] = event.text
        known = self.statuses.get(event.id, status)
        self.statuses[event.id] = max(known, status, key=WORST.index)


def read_report(told: _Told, canaries: Canaries, changed: Collection[str], timeout_s: float) -> Report:
    """Believes nothing that doesn't fit together."""
    reading = _Reading()
    for event in told.events:
        reading.take(event, changed)
    ends = {id: status for id, status in reading.statuses.items() if _file_name(id) in canaries.files}
    tampered = reading.tampered + _signs(told, reading) + _signs_of_canaries(ends, reading, canaries)
    kept = {id: status for id, status in reading.statuses.items() if id not in reading.planted and id not in ends}
    problem = None
    if told.timed_out:
        problem = f"the tests took longer than {timeout_s:.3g} s"
    elif reading.seal is None:
        problem = f"pytest ended before its tests did, with exit code {told.exit_code}"
    elif reading.seal != 1:
        problem = f"pytest stopped with exit code {reading.seal}"
    return Report(
        statuses=kept,
        tampered=tampered[0] if tampered else None,
        problem=problem,
        output=_words(kept, reading.texts, told.output if problem else ""),
        parts={"tests_timed_out": float(told.timed_out)},
    )


def _signs(told: _Told, reading: _Reading) -> list[str]:
    """That somebody had a hand in how the run went."""
    signs = []
    if told.num_strange_lines:
        signs.append(f"{told.num_strange_lines} lines among the results are not the plugin's")
    if told.changed_files:
        signs.append(f"the test file {told.changed_files[0]} changed while the tests ran")
    if told.exit_code == 0:
        signs.append("pytest ended with success, though some tests must fail")
    if reading.seal is not None and not told.timed_out and reading.seal != told.exit_code:
        signs.append(f"pytest ended with exit code {told.exit_code}, not {reading.seal}")
    return signs


def _signs_of_canaries(ends: Mapping[str, Status], reading: _Reading, canaries: Canaries) -> list[str]:
    signs = [f"{id}, planted to fail, passed" for id in reading.planted
             if reading.statuses.get(id) in ("passed", "xpassed")]  # fmt: skip
    for id, status in ends.items():
        expected = "failed" if id.rpartition("::")[2] in canaries.must_fail else "passed"
        if status != expected:
            signs.append(f"a canary that must have {expected} {status}")
    num_expected = len(canaries.files) * (len(canaries.must_fail) + len(canaries.must_pass))
    if reading.seal == 1 and len(ends) != num_expected:
        signs.append(f"{len(ends)} of {num_expected} canaries were run")
    return signs


def _words(kept: Mapping[str, Status], texts: Mapping[str, str], printed: str) -> str:
    """Why tests failed, without the canaries; what pytest printed where it didn't come to its end."""
    parts = [f"{id}\n{texts[id]}" for id in kept if id in texts]
    return "\n\n".join([*parts, *([printed] if printed else [])])[-MAX_OUTPUT_BYTES:]


def _file_name(id: str) -> str:
    return id.partition("::")[0].rpartition("/")[2]
