"""What share of the processor time of SmolLM2-135M's steps is the store's: its writer's thread, and its calls.

The embedded engine samples in the same process, so that all that a step costs is counted.

    python -m benchmarks.store_share [key=value ...]
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Generator
from typing import Any

from agentrl import run
from agentrl.cli.compose import load_config
from agentrl.progress import Silent
from agentrl.store import Queue, SqlRecorder, Store
from agentrl.store.writer import Writer
from benchmarks import report
from benchmarks.smollm2 import SMALL

TARGET_PERCENT = 2.0
STEPS = ["train.steps=2", "eval.tasks=1"]


class Meter:
    """Sums what the threads spend in functions, each block once, whatever is called within it."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._lock = threading.Lock()
        self._inside = threading.local()

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if getattr(self._inside, "it_is", False):
            return function(*arguments, **named)
        self._inside.it_is, began = True, time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            self._inside.it_is = False
            with self._lock:
                self.cpu_s += time.thread_time() - began

    def metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):
            return lambda *arguments, **named: self.call(function, *arguments, **named)

        @types.coroutine
        def steps(*arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
            coroutine = function(*arguments, **named)
            value = None
            while True:
                try:
                    waits_for = self.call(coroutine.send, value)
                except StopIteration as stop:
                    return stop.value
                value = yield waits_for

        return steps


def meter_store() -> Meter:
    """Count all public calls of the store, and what its writer does in its thread."""
    meter = Meter()
    for owner in (Store, SqlRecorder, Queue):
        for name, function in list(vars(owner).items()):
            if inspect.isfunction(function) and not name.startswith("_"):
                setattr(owner, name, meter.metered(function))
    for name in ("_commit", "_next_group"):
        setattr(Writer, name, meter.metered(getattr(Writer, name)))
    return meter


async def measure(overrides: list[str]) -> dict[str, float]:
    """Seconds of CPU of the steps: the whole process's, and the store's."""
    meter, seen = meter_store(), {}
    take_steps = run.take_steps

    async def measured(*arguments: Any) -> None:
        cpu_s, store_s = time.process_time(), meter.cpu_s
        await take_steps(*arguments)
        seen.update(all_s=time.process_time() - cpu_s, store_s=meter.cpu_s - store_s)

    run.take_steps = measured
    await run.train(load_config("calculator", overrides), Silent())
    return seen


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(measure([*SMALL, *STEPS, f"runs_dir={folder}", *options.overrides]))
    percent = 100 * seen["store_s"] / seen["all_s"]
    value = {"percent": round(percent, 3), **{name: round(seconds, 3) for name, seconds in seen.items()}}
    return report("store_share", value, f"percent <= {TARGET_PERCENT}", percent <= TARGET_PERCENT)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
