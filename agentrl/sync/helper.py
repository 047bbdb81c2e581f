"""vLLM's own trainer-side engines as transports. They would drive a whole update; here they only deliver.

They wait without a limit where a worker fails in the middle. So they run in a thread that is given up then.
"""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from agentrl.errors import EngineError
from agentrl.sync.base import RemoteReceiver
from agentrl.sync.remote import Sent, Transport, all_of

TIMEOUT_S = 300.0
"""For a model to travel between GPUs, and be loaded."""
T = TypeVar("T")


class FlowClient:
    """What vLLM's trainer-side engines call instead of a server. Its methods block, outside the event loop's thread."""

    def __init__(self, transport: str, engines: Sequence[RemoteReceiver], loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._engines, self._loop = transport, engines, loop
        self.sent: Sent | None = None
        """What is on its way."""
        self.arrived: list[dict[str, str]] = []
        """What each engine says that has arrived."""
        self.failure: asyncio.Future[None] = loop.create_future()
        """Fails when an engine does: the sender may wait for it for ever."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Have all engines meet the trainer, who is rank 0."""
        meetings, rank = [], 1
        for engine in self._engines:
            meetings.append(engine.meet(self._transport, self.options_of_meeting(init_info, rank)))
            rank += engine.num_workers
        self._run(all_of(meetings))

    def start_weight_update(self) -> None:
        """The flow has begun it."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Have all engines receive what is sent meanwhile."""
        assert self.sent is not None
        manifest, options = self.sent.manifest, self.options_of_update(update_info)
        self.arrived = self._run(all_of(engine.receive(manifest, options) for engine in self._engines))

    def finish_weight_update(self) -> None:
        """The flow will end it."""

    def options_of_meeting(self, init_info: dict[str, Any], first_rank: int) -> dict[str, Any]:
        """What an engine is told when it meets."""
        return init_info | {"rank_offset": first_rank}

    def options_of_update(self, update_info: dict[str, Any]) -> dict[str, Any]:
        """What an engine is told beside the manifest."""
        return {}

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, self.failure, error)
            raise


class HelperTransport(Transport):
    """One of vLLM's trainer-side engines, made at the first publish and after a failure."""

    on_cpu: ClassVar[bool] = False
    name: ClassVar[str]
    client_class: ClassVar[type[FlowClient]] = FlowClient

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._engines: list[RemoteReceiver] = []
        self._client: FlowClient | None = None
        self._sender: Any = None

    @abstractmethod
    def open(self, client: FlowClient, source: Any) -> Any:
        """vLLM's trainer-side engine, after it has met the workers. Blocks."""

    def connect(self, engines: Sequence[RemoteReceiver]) -> None:
        """See Transport."""
        self.close()
        self._engines = list(engines)

    async def prepare(self, sent: Sent) -> None:
        """Meet, where that hasn't happened."""
        if self._sender is None:
            client = self._client = self.client_class(self.name, self._engines, asyncio.get_running_loop())
            self._sender = await self._in_time(lambda: self.open(client, Source(sent)))

    async def deliver(self, sent: Sent) -> list[dict[str, str]]:
        """See Transport."""
        assert self._client is not None
        self._client.sent, self._sender.source = sent, Source(sent)
        try:
            await self._in_time(self._sender.send_weights)
        except EngineError:
            self._sender = None  # not shut down: that would wait for those that have failed
            raise
        return self._client.arrived

    def close(self) -> None:
        """See Transport."""
        if self._sender is not None:
            self._sender.shutdown()
        self._sender = None

    async def _in_time(self, work: Callable[[], T]) -> T:
        """Its result, unless an engine fails first or it takes too long. Raises EngineError."""
        assert self._client is not None
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        threading.Thread(target=_settle, args=(work, done, loop), daemon=True).start()
        futures: tuple[asyncio.Future[Any], ...] = (self._client.failure, done)
        await asyncio.wait(futures, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for future in futures:
            if future.done() and (error := future.exception()) is not None:
                raise EngineError(f"the weights could not be sent by {self.name}: {error}") from error
        if not done.done():
            raise EngineError(f"the weights could not be sent by {self.name} within {self._timeout_s:g} s")
        return done.result()


class Source:
    """The tensors as vLLM's trainer-side engines read them."""

    def __init__(self, sent: Sent) -> None:
        self._sent = sent

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each."""
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._sent.tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._sent.tensors.items())


def _settle(work: Callable[[], T], done: asyncio.Future[T], loop: asyncio.AbstractEventLoop) -> None:
    """In a thread: do the work, and tell the event loop."""
    try:
        result = work()
        loop.call_soon_threadsafe(done.set_result, result)
    except BaseException as error:
        loop.call_soon_threadsafe(_fail, done, error)


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # seen: nobody may be waiting any more
