"""The sandbox suite: what every backend must do, and what must not work in its boxes, tried on anyone's.

`agentrl sandbox check NAME` runs it; from pytest::

    from agentrl.testing.sandbox import verify

    async def test_contract():
        verify(await check(MyBackend(MyBackend.Options(), run="test")))

A check that this machine can't show (no cgroups, no second CPU) says so; that is neither a pass nor a failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agentrl.errors import SandboxError
from agentrl.sandbox import ExecResult, Sandbox, SandboxBackend, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CHECK_S = 120.0
"""For one check; it stands in for a hang."""
LIMIT_S = 30.0
"""For a command that is expected to end by itself."""


class Verdict(StrEnum):
    """How a check went."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_SHOWN = "not shown here"


class NotShown(Exception):
    """This machine, or this backend, can't show it; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One thing to show."""

    name: str
    shows: str
    """In a sentence, for the table."""
    run: Callable[[Bench], Awaitable[None]]
    """Raises AssertionError, or NotShown."""
    is_escape: bool
    """An attack: only for backends that close their boxes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One line of the table."""

    check: Check
    verdict: Verdict
    note: str = ""
    seconds: float = 0.0


@dataclass(kw_only=True)
class Bench:
    """The backend under test, and a box that checks share as long as they leave it whole."""

    backend: SandboxBackend
    spec: SandboxSpec
    not_enforced: tuple[str, ...] = ()
    _shared: Sandbox | None = field(default=None, init=False)
    _sharing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def box(self) -> Sandbox:
        """The shared box; a new one where it has ended."""
        async with self._sharing:
            if self._shared is None or not await self._shared.is_alive():
                self._shared = await self.backend.start(self.spec)
            return self._shared

    @asynccontextmanager
    async def own_box(self, **changes: Any) -> AsyncIterator[Sandbox]:
        """A box for one check, with its own spec."""
        box = await self.backend.start(replace(self.spec, **changes))
        try:
            yield box
        finally:
            await box.stop()

    def needs(self, limit: str) -> None:
        """Raises NotShown where the backend says that it can't hold this limit here."""
        for line in self.not_enforced:
            if line.startswith(limit):
                raise NotShown(line)

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.stop()


CONTRACT: list[Check] = []
ESCAPES: list[Check] = []


def contract(shows: str) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
    """A check of the contract, by the function's name."""
    return lambda run: _register(CONTRACT, run, shows, is_escape=False)


def escape(shows: str) -> Callable[[Callable[[Bench], Awaitable[None]]], Callable[[Bench], Awaitable[None]]]:
    """An attack that must not work, by the function's name."""
    return lambda run: _register(ESCAPES, run, shows, is_escape=True)


async def check(
    backend: SandboxBackend,
    *,
    image: str | None = None,
    only: Iterable[str] = (),
    num_at_once: int = 1,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Run the suite. `image`: for backends that need one; `only`: names of checks; `num_at_once`: checks, side by side.

    `on_result` hears of each when it is done. On a backend that isn't closed no escape is tried: it would work, here.

    Raises SandboxError where the backend can't start boxes on this machine.
    """
    state = await backend.preflight()
    if state.missing:
        raise SandboxError("; ".join(state.missing))
    bench = Bench(backend=backend, spec=SandboxSpec(image=image), not_enforced=state.not_enforced)
    chosen = [c for c in all_checks() if (state.is_closed or not c.is_escape) and (not only or c.name in set(only))]
    places = asyncio.Semaphore(num_at_once)

    async def in_turn(one: Check) -> Result:
        async with places:
            result = await _run(one, bench)
        on_result(result)
        return result

    try:
        return await asyncio.gather(*map(in_turn, chosen))
    finally:
        await bench.close()
        await backend.close()


def all_checks() -> list[Check]:
    """The contract, then the attacks."""
    from agentrl.testing import sandbox_contract, sandbox_escapes, sandbox_limits  # noqa: F401 - they register

    return [*CONTRACT, *ESCAPES]


def verify(results: Sequence[Result]) -> None:
    """Raises AssertionError with the lines of those that failed."""
    failed = [f"{r.check.name}: {r.note}" for r in results if r.verdict is Verdict.FAILED]
    assert not failed, "the sandbox breaks its contract:\n" + "\n".join(failed)


# ------------------------------------------------------------------------------------------------- for the checks


async def run(box: Sandbox, command: str | Sequence[str], **options: Any) -> ExecResult:
    """A command that is expected to end by itself, in time."""
    result = await box.exec(command, **{"timeout_s": LIMIT_S, **options})
    assert not result.timed_out or "timeout_s" in options, f"{command!r} took more than {LIMIT_S} s"
    return result


async def python(box: Sandbox, code: str, **options: Any) -> ExecResult:
    """Code in the box's own Python."""
    return await run(box, ["python3", "-c", code], **options)


async def says(box: Sandbox, command: str | Sequence[str]) -> str:
    """What a command prints, which must succeed."""
    result = await run(box, command)
    assert result.exit_code == 0, f"{command!r} ended with {result.exit_code}: {result.text[-300:]}"
    return result.text.strip()


async def processes(box: Sandbox, word: str) -> list[str]:
    """The command lines in the box that hold a word (written here so that the search doesn't find itself)."""
    code = (
        "import os, sys\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try:\n"
        "        line = open('/proc/' + pid + '/cmdline', 'rb').read()\n"
        "        state = open('/proc/' + pid + '/stat').read().rpartition(')')[2].split()[0]\n"
        "    except OSError:\n"
        "        continue\n"
        f"    if {word[::-1]!r}[::-1].encode() in line and state not in 'ZX':\n"
        "        print(pid, line)\n"
    )
    return (await says(box, ["python3", "-c", code])).splitlines()


def _register(
    group: list[Check], run: Callable[[Bench], Awaitable[None]], shows: str, *, is_escape: bool
) -> Callable[[Bench], Awaitable[None]]:
    group.append(Check(name=run.__name__, shows=shows, run=run, is_escape=is_escape))
    return run


async def _run(one: Check, bench: Bench) -> Result:
    started, verdict, note = time.monotonic(), Verdict.PASSED, ""
    try:
        async with asyncio.timeout(CHECK_S):
            await one.run(bench)
    except NotShown as reason:
        verdict, note = Verdict.NOT_SHOWN, str(reason)
    except TimeoutError:
        verdict, note = Verdict.FAILED, f"no end after {CHECK_S:g} s"
    except Exception as error:  # a backend under test may raise anything
        verdict, note = Verdict.FAILED, str(error) if isinstance(error, AssertionError) else repr(error)
    return Result(check=one, verdict=verdict, note=note, seconds=time.monotonic() - started)
