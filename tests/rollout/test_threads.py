"""Plain functions of plugins run in threads: they block nobody, and nothing that they raise ends the process."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agentrl.errors import ToolFault
from agentrl.rollout.threads import Threads


def threads(max_abandoned: int = 8) -> Threads:
    return Threads(max_abandoned)


async def test_plain_functions_run_elsewhere_and_coroutines_in_the_loop() -> None:
    async def here() -> threading.Thread:
        return threading.current_thread()

    assert await threads().call(threading.current_thread) is not threading.current_thread()
    assert await threads().call(here) is threading.current_thread()
    assert await threads().call(lambda: here()) is threading.current_thread()  # a function that makes a coroutine


async def test_blocking_calls_block_neither_one_another_nor_the_loop() -> None:
    everybody = threading.Barrier(40)
    pool = threads()
    # Each call waits until all 40 are inside, so they are there at once; meanwhile the loop goes round.
    blocked = asyncio.gather(*(pool.call(everybody.wait, 60) for _ in range(40)))
    assert await pool.call(lambda: "quick") == "quick"
    assert sorted(await blocked) == list(range(40))


async def test_quick_calls_share_workers() -> None:
    pool = threads()
    names = await asyncio.gather(*(pool.call(lambda: threading.current_thread().ident) for _ in range(500)))
    assert len(set(names)) < 250


async def test_f09_a_plain_function_may_run_an_event_loop_of_its_own() -> None:
    async def nested() -> str:
        await asyncio.sleep(0)
        return "inside"

    assert await threads().call(lambda: asyncio.run(nested())) == "inside"


class Odd(BaseException):
    """No Exception."""


@pytest.mark.parametrize(
    ("error", "raised", "says"),
    [
        (ValueError("no"), ValueError, "no"),
        (SystemExit(3), RuntimeError, "3"),
        (KeyboardInterrupt(), RuntimeError, "KeyboardInterrupt"),
        (asyncio.CancelledError(), RuntimeError, "CancelledError"),
        (StopIteration(5), RuntimeError, "StopIteration"),
        (Odd("odd"), RuntimeError, "Odd: odd"),
    ],
)
async def test_whatever_is_raised_is_a_plain_error(error: BaseException, raised: type[Exception], says: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(raised, match=says):
        await threads().call(fail)


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
async def test_a_coroutine_neither_ends_the_process_nor_cancels_by_itself(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    with pytest.raises(RuntimeError, match=r"exit|nobody cancelled it"):
        await threads().call(fail)


async def test_abandoned_calls_are_counted_while_they_run_and_bounded() -> None:
    release = threading.Event()
    pool = threads(max_abandoned=1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.call(release.wait, 60)

    await give_up()
    await give_up()
    assert pool.num_abandoned == 2
    with pytest.raises(ToolFault, match=r"2 calls .* limits\.max_abandoned_threads"):
        await pool.call(lambda: None)
    release.set()
    while pool.num_abandoned:
        await asyncio.sleep(0.001)
    assert await pool.call(lambda: "again") == "again"


async def test_a_call_that_is_given_up_before_it_began_never_runs() -> None:
    release, ran = threading.Event(), []
    pool = threads()
    first = asyncio.create_task(pool.call(release.wait, 60))
    second = asyncio.create_task(pool.call(ran.append, "second"))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    release.set()
    assert await first is True and pool.num_abandoned == 0
    assert await pool.call(lambda: "next") == "next" and ran == []


def test_a_result_after_the_loop_has_closed_is_dropped() -> None:
    release, done = threading.Event(), threading.Event()

    def late() -> None:
        release.wait(60)
        done.set()

    async def leave() -> Any:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await threads().call(late)

    asyncio.run(leave())
    release.set()
    assert done.wait(60)
    time.sleep(0.01)  # the thread's own error, if it has one, is a warning, which fails the test
