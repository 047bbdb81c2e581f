"""Ranks: the processes that hold one model together. Rank 0 is the run; the others do what it does, when it does it.

    rank 0 (the run) ──object, method, arguments──▶ rank 1 … n-1     a socket pair each: nobody else can write to it
                     ◀──── result or traceback ────┘
                     ◀═══ weights, gradients ═════▶                  gloo or nccl on loopback, met in a private folder

`run` and `collect` call one method of a `Policy` or a `Trainer` on every rank at once, so that each takes part in the
same collectives. Alone, and in the other ranks, they are plain calls. A rank that fails or dies takes the run along,
with its traceback: the others can't go on without its share. Ranks end by themselves when rank 0 is gone.

Left out: several machines, and replacing a rank that died (the run is resumed from its last checkpoint instead).
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

from agentrl.errors import TrainingError
from agentrl.train import process_group
from agentrl.train.rank_process import Failure, RankProcess

P = ParamSpec("P")
T = TypeVar("T")

BLAME_WAIT_S = 5.0
"""How long rank 0, whose own collective broke, waits for another rank to say why or to be dead."""
IDLE_WAIT_S = 5.0
"""How long closing waits for a call that is still running in another thread, before the ranks are killed."""


class Call(NamedTuple):
    """What rank 0 tells the others to do."""

    name: str
    """Of the object, as in `name_on_ranks`."""
    method: str
    arguments: tuple[Any, ...]
    wanted: bool
    """Does rank 0 want the result?"""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a new rank is told first: its place, and how to make its policy (`Policy.<how>(*arguments, **options)`)."""

    rank: int
    size: int
    meeting_file: Path
    how: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Ranks:
    """This process's view of the ranks. Made by `alone`, `start` (rank 0) or, in another rank, from its seat."""

    def __init__(
        self, rank: int = 0, size: int = 1, meeting_file: Path | None = None, on_ready: Callable[[], None] | None = None
    ) -> None:
        self.rank = rank
        self.size = size
        self.meeting_file = meeting_file
        """Through which the process group finds its members."""
        self._on_ready = on_ready
        self._others: list[RankProcess] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        self._ended = False
        self._num_trainers = 0

    @classmethod
    def start(cls, how: str, arguments: tuple[Any, ...], options: dict[str, Any], devices: Sequence[str]) -> Ranks:
        """Rank 0 of as many ranks as there are `devices`; the others begin to make their policies."""
        if len(devices) == 1:
            return cls()
        folder = tempfile.TemporaryDirectory(prefix="agentrl-ranks-")  # readable by this user only
        ranks = cls(0, len(devices), Path(folder.name) / "meeting")
        ranks._folder = folder
        with ranks.closed_on_error():
            for rank in range(1, ranks.size):
                other = RankProcess(rank, Path(folder.name) / f"rank-{rank}.log")
                ranks._others.append(other)
                other.send(Seat(rank, ranks.size, Path(folder.name) / "meeting", how, arguments, options))
        return ranks

    @property
    def pids(self) -> list[int]:
        """Of the processes that rank 0 started."""
        return [other.pid for other in self._others]

    def meet(self, device_type: str) -> None:
        """Every rank has made its model and goes on to join the process group. Raises TrainingError if one failed."""
        if self._on_ready is not None:
            self._on_ready()
        with self._ending_on_error("its start"):
            for other in self._others:
                other.result()
        if device_type == "cuda":
            self._abort_when_one_dies()

    def add_trainer(self, *arguments: Any) -> str:
        """Make a `Trainer` of the policy on the other ranks; returns the name under which to call it."""
        self._num_trainers += 1
        name = f"trainer {self._num_trainers}"
        with self._lock:
            self._send(Call(name, "make", arguments, wanted=False))
        return name

    def run(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a method of a policy or trainer on every rank; returns this rank's result. No keyword arguments.

        Raises TrainingError, with the traceback, if another rank failed or died.
        """
        return self._together(method, args, wanted=False)[0]

    def collect(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """As `run`; returns the results of all, by rank."""
        return self._together(method, args, wanted=True)

    def failure(self) -> TrainingError | None:
        """Why the ranks can't go on, if one of them died while nothing was asked of it. Never waits."""
        if self._ended or not self._lock.acquire(blocking=False):
            return None  # a call that runs finds it out by itself
        try:
            failures = [failure for other in self._others if (failure := other.failure(0.0))]
            return self._error(failures, "waiting") if failures else None
        finally:
            self._lock.release()

    def dismiss(self) -> None:
        """Ask the other ranks to leave the process group and end; `close` waits for them."""
        idle = self._lock.acquire(timeout=IDLE_WAIT_S)
        try:
            if not self._ended and idle:
                for other in self._others:
                    other.dismiss()
            self._ended = True
            if not idle:
                self._kill()
        finally:
            if idle:
                self._lock.release()

    def close(self) -> None:
        """End the other ranks; those that don't end when asked are killed. Calling it again does nothing."""
        self._ended = True
        for other in self._others:
            other.close()
        self._others = []
        if self._folder is not None:
            self._folder.cleanup()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """The other ranks don't outlive a block that raises."""
        try:
            yield
        except BaseException:
            self._kill()
            self.close()
            raise

    def _together(self, method: Callable[..., T], args: tuple[Any, ...], *, wanted: bool) -> list[T]:
        if not self._others:
            return [method(*args)]
        bound = cast(MethodType, method)
        with self._lock:
            self._send(Call(cast(Any, bound.__self__).name_on_ranks, bound.__name__, args, wanted))
            with self._ending_on_error(bound.__name__):
                mine = method(*args)
                return [mine, *(other.result() for other in self._others)]

    def _send(self, call: Call) -> None:
        if self._others and self._ended:
            raise TrainingError("the policy's ranks have ended: nothing can be computed with it any more")
        with self._ending_on_error(call.method):
            for other in self._others:
                other.send(call)

    @contextmanager
    def _ending_on_error(self, what: str) -> Iterator[None]:
        """After an error the ranks are out of step: all end, and the one that failed first is to blame."""
        try:
            yield
        except BaseException as error:
            # A collective that broke is a RuntimeError here; anything else is rank 0's own fault, and known.
            wait_s = BLAME_WAIT_S if isinstance(error, (RuntimeError, OSError, EOFError)) else 0.0
            failures = self._failures(wait_s) if self._others and isinstance(error, Exception) else []
            self._kill()
            if failures:
                raise self._error(failures, what.strip("_")) from error
            raise

    def _failures(self, wait_s: float) -> list[Failure]:
        """What the other ranks died of, earliest first, once one of them has or `wait_s` has passed."""
        for _ in range(max(1, int(wait_s / 0.1))):
            if any(other.failure(0.1 / len(self._others)) for other in self._others):
                break
        failures = [failure for other in self._others if (failure := other.failure(0.1))]
        return sorted(failures, key=lambda failure: failure.at_s)

    def _error(self, failures: Sequence[Failure], what: str) -> TrainingError:
        first = failures[0]
        return TrainingError(
            f"rank {first.rank} of {self.size} {first.how} during {what}, so the run can't go on. Mend the cause and "
            f"go on from the last checkpoint with --resume; if memory ran out, lower train.micro_batch_tokens or "
            f"train.logprob_chunk_tokens first. What it left:\n{first.text}"
        )

    def _abort_when_one_dies(self) -> None:
        """NCCL waits for a dead rank for ever, where gloo notices: abort the group, so that rank 0's call ends."""

        def watch(other: RankProcess) -> None:
            other.wait()
            if not self._ended:
                process_group.abort()

        for other in self._others:
            threading.Thread(target=watch, args=(other,), name=f"rank-{other.rank}", daemon=True).start()

    def _kill(self) -> None:
        self._ended = True
        for other in self._others:
            other.kill()
