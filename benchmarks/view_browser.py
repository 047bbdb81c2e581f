"""How a trajectory of 200 turns and 100,000 ids opens and scrolls in a real browser, with all its tokens shown.

The page is opened, "Show the tokens of all turns" is pressed, and the wheel is turned until the end has been reached
and every id is there. Tokens are loaded where they come into sight, so this is what a reader waits for. A frame is the
time between two pictures: 17 ms where nothing holds the browser up.

    python -m benchmarks.view_browser

Needs Debian's Chromium (`make system-deps`). Ends with one JSON line.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from agentrl.store import Store
from benchmarks import report
from benchmarks.view import LONG_PROMPT_IDS, LONG_SAMPLED_IDS, LONG_TURNS, add_long
from tests.view.browser import Tab, browser, served, tab

NUM_IDS = LONG_TURNS * (LONG_PROMPT_IDS + LONG_SAMPLED_IDS)
OPENED = 5
WHEEL_PX, PAUSE_MS, LIMIT_S = 800, 50, 300.0
WATCH = """
window.frames_ms = [];
let last = performance.now();
function seen(now) { window.frames_ms.push(now - last); last = now; requestAnimationFrame(seen); }
requestAnimationFrame(seen);
"""
IS_AT_END = "window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2"


def open_s(reader: Tab, path: str) -> float:
    """From the address to the load event."""
    started = time.perf_counter()
    reader.open(path)
    return time.perf_counter() - started


def scroll(page: Any) -> tuple[float, list[float], int]:
    """(seconds to the end, frames in ms, ids that are there then)."""
    page.locator("#all-tokens").click()
    page.evaluate(WATCH)
    page.mouse.move(700, 500)
    started = time.perf_counter()
    num_ids = 0
    while num_ids < NUM_IDS and time.perf_counter() - started < LIMIT_S:
        page.mouse.wheel(0, WHEEL_PX)
        page.wait_for_timeout(PAUSE_MS)
        if page.evaluate(IS_AT_END):
            num_ids = page.locator(".turns .token").count()
    return time.perf_counter() - started, page.evaluate("window.frames_ms"), num_ids


def main() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        database = str(Path(folder) / "store.db")
        with Store.open(database) as store:
            path = f"/trajectory/{asyncio.run(add_long(store))}"
        with browser() as started, served(database) as base, tab(started, base) as reader:
            opened = statistics.median(open_s(reader, path) for _ in range(OPENED))
            spent, frames, num_ids = scroll(reader.page)
            complaints = reader.complaints
    quantiles = statistics.quantiles(frames, n=100)
    value = {"open_s": round(opened, 2), "scroll_s": round(spent, 1), "ids": num_ids, "complaints": len(complaints)}
    value |= {"frame_ms": round(statistics.median(frames)), "frame_p99_ms": round(quantiles[98])}
    value |= {"frame_max_ms": round(max(frames))}
    is_ok = opened <= 1 and num_ids == NUM_IDS and not complaints
    return report("view_long_trajectory_browser", value, f"open_s <= 1, all {NUM_IDS:,} ids", is_ok)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
