"""Plays episodes in boxes and kills the process that plays them again and again; then looks at what is left.

    python -m benchmarks.sandbox_soak [--backend bubblewrap] [--image I] [--episodes 200] [--kills 25] [--seed 0]

After each kill (SIGKILL, at a random time) and after the orderly end there must be nothing: no process of the victim or
its boxes, no mount, no cgroup, no file in its temporary folder, no container, no network of one. Orphans are counted by
being their subreaper: whoever loses its parent becomes a child of this process.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks import report

GONE_S = 30.0
"""How long the watchman may take."""
PR_SET_CHILD_SUBREAPER = 36


class Soak:
    """The victims, and what this machine was like before the first."""

    def __init__(self, backend: str, image: str | None, folder: Path, seed: int) -> None:
        options = {"unsafe": True} if backend == "local" else {}
        config = {"backend": backend, "options": options, "max_boxes": 4, "warm": 1, "starts_per_second": 20}
        self.config, self.image, self.folder = json.dumps(config), image, folder
        self.random = random.Random(seed)
        self.num_episodes = self.num_kills = 0
        self.pids: list[int] = []
        self.problems: list[str] = []

    def run(self, num_episodes: int, num_kills: int) -> None:
        """Kill until so many kills and episodes are done, then let the last victim end in order."""
        mean = max(1, num_episodes // (num_kills + 1))
        for number in range(num_kills + 1):
            left = num_episodes - self.num_episodes
            self._victim(None if number == num_kills else self.random.randint(0, 2 * mean), max(1, left))
            self._look(f"kill {number + 1}" if number < num_kills else "the orderly end")
            print(f"{self.num_episodes} episodes, {self.num_kills} kills", flush=True)

    def _victim(self, kill_after: int | None, num_episodes: int) -> None:
        """Let it play; killed a moment after so many episodes, if at all."""
        variables = {**os.environ, "TMPDIR": str(self.folder)} | ({"SOAK_IMAGE": self.image} if self.image else {})
        command = [sys.executable, "-m", "benchmarks.sandbox_victim", self.config, str(num_episodes)]
        with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as victim:
            assert victim.stdout is not None
            self.pids.append(victim.pid)
            for number, line in enumerate(victim.stdout, start=1):
                self.num_episodes += 1
                if not line.endswith(" 1.0\n"):
                    self.problems.append(line.strip())
                if kill_after is not None and number >= kill_after:
                    break
            if kill_after is not None:
                time.sleep(self.random.uniform(0, 0.3))
                self.num_kills += 1
                victim.kill()
            victim.stdout.read()
        if kill_after is None and victim.returncode != 0:
            self.problems.append(f"the orderly end had exit code {victim.returncode}")

    def _look(self, when: str) -> None:
        end = time.monotonic() + GONE_S
        while (left := list(self.left())) and time.monotonic() < end:
            time.sleep(0.05)
        self.problems += [f"{when}: {what} is left" for what in left]

    def left(self) -> Iterator[str]:
        """What of the victims is still there."""
        _reap()
        for process in psutil.Process().children(recursive=True):
            yield f"process {process.pid}"
        yield from (f"file {path.name}" for path in self.folder.iterdir())
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if self._is_ours(line):
                yield f"mount {line.split()[4]}"
        for place, names, _ in os.walk("/sys/fs/cgroup"):  # others come and go meanwhile
            yield from (f"cgroup {place}/{name}" for name in names if self._is_ours(name))
        yield from (f"container {id}" for id in _docker("ps", "--all"))
        yield from (f"network {id}" for id in _docker("network", "ls"))

    def _is_ours(self, name: str) -> bool:
        return str(self.folder) in name or any(f"-{pid}-" in name for pid in self.pids)


def _docker(*words: str) -> list[str]:
    """Ids of what the victims have there; none where there is no Docker."""
    listed = ["docker", *words, "--quiet", "--filter", f"label=agentrl.run=soak-{os.getpid()}"]
    try:
        return subprocess.run(listed, capture_output=True, text=True, timeout=30, check=False).stdout.split()
    except FileNotFoundError:
        return []


def _reap() -> None:
    """The orphans that ended."""
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                return
        except ChildProcessError:
            return


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="bubblewrap")
    parser.add_argument("--image")
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(options.backend, options.image, Path(folder), options.seed)
        soak.run(options.episodes, options.kills)
    for problem in soak.problems:
        print(problem)
    value: dict[str, float] = {"episodes": soak.num_episodes, "kills": soak.num_kills, "left": len(soak.problems)}
    value |= {"seconds": round(time.monotonic() - started)}
    target = f"{options.episodes} episodes, {options.kills} kills, nothing left"
    ok = not soak.problems and soak.num_episodes >= options.episodes and soak.num_kills == options.kills
    return report(f"sandbox_soak_{options.backend}", value, target, ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
