"""What every generation loop shares: the requests that are open, and whether anything is served."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

from transformers import PreTrainedModel

from agentrl.engine.reply import EngineFault, EngineUnavailable, Reply
from agentrl.engine.requests import GenerateRequest


class GenerationLoop(ABC):
    """Runs checked requests. All methods may be called from any thread.

    Invariants: a reply is in `_replies` exactly while its future is open; `version` changes only under `paused()`;
    whatever happens to the loop, every future is resolved.
    """

    def __init__(
        self, model: PreTrainedModel, *, max_batch_tokens: int, cache_tokens: int, threads: int | None, version: int
    ) -> None:
        self.version = version
        """The version of the weights in force: the stamp of the next sampled id."""
        self._threads = threads
        self._replies: dict[str, Reply] = {}
        self._num_submitted = 0
        self._refusal: str | None = None
        self._stopped = False
        self._is_dead = False
        """Nothing will be served any more; `_refusal` says why."""
        self._lock = threading.RLock()
        """Guards the fields above; never held while waiting for the loop."""

    @abstractmethod
    def start(self) -> None:
        """Start the thread. The global random state is the same afterwards."""

    @abstractmethod
    def stop(self) -> None:
        """End the loop; open requests end as "abort" with what they have. May be called more than once."""

    @abstractmethod
    def paused(self) -> AbstractContextManager[None]:
        """No step runs inside; requests go on afterwards. Blocks for about one step.

        Raises EngineUnavailable where the loop isn't running.
        """

    @abstractmethod
    def _enqueue(self, reply: Reply) -> bool:
        """Begin to work on it, at some time; False: it can't be taken. Called with the lock held."""

    def _drop(self, reply: Reply) -> None:  # noqa: B027 - optional hook, not forgotten
        """Free what the loop holds for a reply that nobody waits for any more. Called with the lock held."""

    def health(self) -> str | None:
        """None, or why nothing is served."""
        if self._stopped:
            return "the engine is stopped"
        return self._refusal

    @property
    def live_ids(self) -> set[str]:
        """Request ids that are running, as the caller named them."""
        with self._lock:
            return {reply.request.request_id for reply in self._replies.values()}

    def sampled_so_far(self, request_id: str) -> int:
        """Ids sampled by a running request; 0 where it isn't running."""
        with self._lock:
            return sum(len(r.ids) for r in self._replies.values() if r.request.request_id == request_id)

    def submit(self, request: GenerateRequest) -> Reply:
        """Queue a request; its reply's future resolves to the reply. Raises EngineUnavailable."""
        with self._lock:
            reason = self.health()
            if reason is not None:
                raise EngineUnavailable(reason)
            self._num_submitted += 1
            # A key of our own: a cancelled request's id may come again before the loop has dropped the old one.
            reply = Reply(key=str(self._num_submitted), request=request)
            self._replies[reply.key] = reply
            if not self._enqueue(reply):
                del self._replies[reply.key]
                raise EngineUnavailable("the generation loop has just died; it is being restarted if it can be")
        return reply

    def cancel(self, reply: Reply) -> None:
        """Drop a request and free its cache; its future never resolves."""
        with self._lock:
            if self._replies.pop(reply.key, None) is not None:
                self._drop(reply)

    def refuse(self, reason: str) -> None:
        """Serve nothing from now on, and fail what is running: the weights can't be trusted."""
        with self._lock:
            if not self._is_dead:  # a death is final, and says more
                self._refusal = reason
            replies = self._take_all()
        for reply in replies:
            reply.fail(EngineFault(reason))

    def accept(self) -> None:
        """Serve again, unless the loop is dead."""
        with self._lock:
            if not self._is_dead:
                self._refusal = None

    def _take_all(self) -> list[Reply]:
        """Remove and drop all open requests. Called with the lock held."""
        replies = list(self._replies.values())
        self._replies.clear()
        for reply in replies:
            self._drop(reply)
        return replies
