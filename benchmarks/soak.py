"""Kills a real `agentrl train` again and again, resumes it, and looks at what is left.

    python -m benchmarks.soak [--kills 100] [--seed 0] [--folder DIR]

Half of the kills come from outside at a random time, half from inside at a named point (benchmarks/victim.py). After
each one `agentrl.testing.audit` reads the database and the folders, what was finished earlier must be there unchanged,
and no process of the victim may be left. A run that reaches its end must have the weights of one that was never
stopped; then the next run begins, with another seed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agentrl.testing.audit import audit
from benchmarks import report
from benchmarks.victim import POINTS

SMALL = [
    "engine=scripted", "engine.threads=1", "train.threads=1", "env.train_tasks=64", "env.held_out_tasks=16",
    "sft.demonstrations=24", "sft.steps=2", "sft.batch_size=8", "sft.optimizer=adamw", "eval.tasks=4", "eval.every=3",
    "algorithm.group_size=4", "algorithm.groups_per_step=3", "train.steps=12", "train.checkpoint_every=2",
    "train.learning_rate=1e-3", "limits.max_turn_tokens=12", "limits.max_turns=2",
]  # fmt: skip
MAX_SECONDS = 120.0
"""A victim that neither dies nor ends by then hangs."""
FINISHED = """
    SELECT t.id, t.stop_reason, t.num_turns, group_concat(hex(u.sampled_ids)) FROM trajectories t
    LEFT JOIN turns u ON u.trajectory_id = t.id
    WHERE t.stop_reason IS NOT NULL GROUP BY t.id ORDER BY t.id
"""


@dataclass
class Soak:
    """The folder under test, and what was seen so far."""

    folder: Path
    random: random.Random
    num_kills: int = 0
    num_runs: int = 0
    finished: dict[str, str] = field(default_factory=dict)
    """Trajectory → what was stored of it when it was finished."""
    problems: list[str] = field(default_factory=list)

    @property
    def database(self) -> Path:
        return self.folder / "agentrl.db"

    def run_once(self, kills: int) -> None:
        """One run from its start to its end, through as many kills as come."""
        seed = self.num_runs
        run: str | None = None
        while True:
            point, call = self._choose() if self.num_kills < kills else ("none", 0)
            code = self._victim(point, call, self._command(run, seed))
            if code == 0:
                break
            if code != -signal.SIGKILL:
                self.problems.append(f"seed {seed}: exit code {code}, killed at {point}")
                return
            self.num_kills += 1
            self.check(f"kill {self.num_kills} at {point} {call}")
            run = self._started(seed)
        self.num_runs += 1
        self.check(f"end of run {seed}")
        self._compare(seed)

    def check(self, when: str) -> None:
        """Audit the database, and compare what was finished with what is there now."""
        if not self.database.exists():
            return
        self.problems += [f"{when}: {violation}" for violation in audit(self.database)]
        with closing(sqlite3.connect(self.database)) as connection:
            now = {row[0]: _digest(row) for row in connection.execute(FINISHED)}
        for id, digest in self.finished.items():
            if now.get(id) != digest:
                self.problems.append(
                    f"{when}: trajectory {id} was finished and is {'changed' if id in now else 'lost'}"
                )
        self.finished |= now

    def _choose(self) -> tuple[str, int]:
        """A named point and which of its calls, or "time" and after how many milliseconds."""
        if self.random.random() < 0.5:
            return "time", self.random.randrange(3000, 12000)
        point = self.random.choice(sorted(POINTS))
        often = {"begin": 60, "insert": 90, "finish": 60, "grade": 60, "commit": 300, "checkpoint": 12}
        return point, self.random.randint(1, often.get(point, 3))

    def _command(self, run: str | None, seed: int) -> list[str]:
        if run is not None:
            return ["train", "--resume", run, "--db", str(self.database)]
        place = [f"runs_dir={self.folder}", f"model.cache_dir={self.folder}/cache", f"seed={seed}"]
        return ["train", "--env", "calculator", *SMALL, *place]

    def _victim(self, point: str, call: int, command: list[str]) -> int:
        """Run it; its exit code, -9 where it was killed. Whatever it leaves running is a problem."""
        named = [point, str(call)] if point in POINTS else ["none", "0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.victim", *named, "--", *command],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _, errors = process.communicate(timeout=call / 1000 if point == "time" else MAX_SECONDS)
        except subprocess.TimeoutExpired:
            if point != "time":
                self.problems.append(f"it hangs: point {point} {call}, {' '.join(command)}")
            process.kill()
            _, errors = process.communicate()
        left = _session(process.pid)
        if left:
            self.problems.append(f"processes {left} outlive the victim")
        if process.returncode not in (0, -signal.SIGKILL):
            self.problems.append(errors.strip()[-2000:])
        return process.returncode

    def _started(self, seed: int) -> str | None:
        """The id of the training run with this seed, if it has a version to go on from by now."""
        if not self.database.exists():
            return None
        query = """SELECT r.id FROM runs r JOIN versions v ON v.run_id = r.id AND v.id = 0
                   WHERE r.seed = ? AND json_extract(r.config, '$.command') = 'train' ORDER BY r.started_at DESC"""
        with closing(sqlite3.connect(self.database)) as connection:
            row = connection.execute(query, [seed]).fetchone()
        return row[0] if row else None

    def _compare(self, seed: int) -> None:
        """The run's weights with those of a run that nobody kills."""
        place = [f"runs_dir={self.folder}/whole-{seed}", f"model.cache_dir={self.folder}/cache", f"seed={seed}"]
        code = self._victim("none", 0, ["train", "--env", "calculator", *SMALL, *place])
        whole = _last_weights(self.folder / f"whole-{seed}" / "agentrl.db", seed)
        mine = _last_weights(self.database, seed)
        if code != 0 or whole != mine:
            self.problems.append(f"seed {seed}: the weights differ from those of a run that was not stopped")


def _last_weights(database: Path, seed: int) -> str:
    query = """SELECT v.weights_hash FROM versions v JOIN runs r ON r.id = v.run_id
               WHERE r.seed = ? AND json_extract(r.config, '$.command') = 'train' AND NOT v.abandoned
               ORDER BY r.started_at DESC, v.id DESC"""
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute(query, [seed]).fetchone()[0])


def _digest(row: tuple[object, ...]) -> str:
    return hashlib.sha256(json.dumps(row, default=str).encode()).hexdigest()


def _session(leader: int) -> list[int]:
    """Processes of the victim's session."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.Error, ProcessLookupError, PermissionError):
            continue
    return found


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="left in place; without it a temporary folder is used")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        soak = Soak(folder=options.folder or Path(temporary), random=random.Random(options.seed))
        soak.folder.mkdir(parents=True, exist_ok=True)
        while soak.num_kills < options.kills and not soak.problems:
            soak.run_once(options.kills)
            print(f"{soak.num_kills} kills, {soak.num_runs} runs, {len(soak.finished)} trajectories", flush=True)
    for problem in soak.problems:
        print(problem)
    value = {"kills": soak.num_kills, "runs": soak.num_runs, "trajectories": len(soak.finished)}
    value |= {"problems": len(soak.problems), "seconds": round(time.monotonic() - started)}
    return report("kill_soak", value, f"{options.kills} kills, 0 problems", not soak.problems)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
