"""The generation loop: transformers' continuous batching with our own sampling, stamps, failures and end.

transformers 5.19 runs the loop in a thread of its manager. What is replaced there, and why:

- `model_runner._sample`: stock sampling draws from torch's global generator and knows no version; ours has a
  generator per request and stamps each id with the version in force at that step (V1).
- the output router: stock delivery needs a live asyncio loop and dies with it; ours resolves a future.
- the thread: stock is non-daemon and would keep the interpreter from exiting for ever.
- a fatal error: the loop is restarted once, so that one bad step doesn't end a run; a second one is final.
"""

from __future__ import annotations

import atexit
import logging
import math
import queue
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel
from transformers.generation.continuous_batching.continuous_api import ContinuousBatchingManager, OutputRouter
from transformers.generation.continuous_batching.requests import GenerationOutput, RequestStatus

from agentrl.engine.attention import PAGED_ATTENTION, register
from agentrl.engine.base import GenerationLoop
from agentrl.engine.reply import EngineFault, EngineUnavailable, Reply
from agentrl.engine.sampling import GREEDY, choose

logger = logging.getLogger(__name__)

PAGE_TOKENS = 32
"""Tokens per page of the key-value cache."""
_STOP_TIMEOUT_S = 30.0


class _Router(OutputRouter):
    """Hands every output to one callable, in the loop's thread."""

    def __init__(self, deliver: Any) -> None:
        super().__init__()
        self._deliver = deliver

    def deliver(self, output: GenerationOutput) -> None:
        self._deliver(output)

    def deliver_batch(self, outputs: list[GenerationOutput]) -> None:
        for output in outputs:
            self._deliver(output)


class BatchingLoop(GenerationLoop):
    """Many requests at once, by transformers' continuous batching."""

    def __init__(
        self, model: PreTrainedModel, *, max_batch_tokens: int, cache_tokens: int, threads: int | None, version: int
    ) -> None:
        super().__init__(
            model, max_batch_tokens=max_batch_tokens, cache_tokens=cache_tokens, threads=threads, version=version
        )
        self._restarts_left = 1
        self._swap = threading.Lock()
        """Held over a pause and a restart, which must not meet: a restart would lose the pause's count."""
        self._manager: Any = _make_manager(model, max_batch_tokens, cache_tokens)
        self._manager.output_router = _Router(self._on_output)

    # ------------------------------------------------------------------------------------------- start and stop

    def start(self) -> None:
        """Start the thread. The global random state is the same afterwards."""
        manager = self._manager
        with torch.random.fork_rng():  # making the batch processor seeds the global generator
            manager.warmup()
        manager.batch_processor.model_runner._sample = self._sample
        manager.background_thread_status.clear()
        # Daemon, with an orderly stop at exit: atexit runs only after non-daemon threads have ended by themselves.
        manager._generation_thread = threading.Thread(target=self._run, name="agentrl-engine", daemon=True)
        manager._generation_thread.start()
        atexit.register(_stop_at_exit, weakref.ref(self))

    def stop(self) -> None:
        """End the loop; open requests end as "abort" with what they have. May be called more than once."""
        with self._swap, self._lock:
            if self._stopped:
                return
            self._stopped = True
            replies = self._take_all()
        for reply in replies:
            reply.finish("abort")
        if self._manager.is_running():  # joined without a lock: the thread takes both before it ends
            self._manager.stop(block=True, timeout=_STOP_TIMEOUT_S, hard_stop=True)

    @property
    def free_cache_share(self) -> float:
        """Share of the key-value pool that no request holds, 0..1."""
        cache = self._manager.batch_processor.cache
        cache.pool.try_to_free_sectors()
        return float(cache.compute_free_capacity())

    # ------------------------------------------------------------------------------------------------ requests

    def _enqueue(self, reply: Reply) -> bool:
        request = reply.request
        accepted = self._manager.add_request(
            request.prompt_ids,
            request_id=reply.key,
            max_new_tokens=request.max_tokens,
            eos_token_id=sorted(request.stop_ids),
        )
        return accepted is not None

    def _drop(self, reply: Reply) -> None:
        self._manager.cancel_request(reply.key)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step runs inside; requests keep their cache and go on afterwards. Blocks for about one step.

        Raises EngineUnavailable where the loop isn't running.
        """
        with self._swap:
            try:
                pause = self._manager.pause()
                pause.__enter__()
            except RuntimeError as error:
                raise EngineUnavailable(f"the generation loop can't be paused: {self.health() or error}") from error
            try:
                yield
            finally:
                pause.__exit__(None, None, None)

    # ---------------------------------------------------------------------------------------- the loop's thread

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        self._manager._run_generation_loop()
        while self._prepare_restart():
            self._manager._run_generation_loop()

    def _prepare_restart(self) -> bool:
        """After the loop has ended: whether it should run again. Open requests have failed either way."""
        status = self._manager.background_thread_status
        with self._swap, self._lock:
            if self._stopped or status.fatal_error is None:
                return False
            fatal = f"{type(status.fatal_error).__name__}: {status.fatal_error}"
            for reply in self._take_all():
                reply.fail(EngineFault(f"the generation loop died: {fatal}"))
            for waiting in (self._manager.input_queue, self._manager.cancel_queue):
                _drain(waiting)
            self._restarts_left -= 1
            if self._restarts_left < 0:
                self._is_dead = True
                self._refusal = f"the generation loop died twice, the last time of {fatal}; restart the engine"
                return False
            logger.error("the generation loop died of %s; restarting it, a second death will be final", fatal)
            status.clear()
        return True

    def _sample(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Stand-in for ModelRunner._sample: scores float32 [1, rows, V], ids go to output_ids[0, :rows].

        Rows of prompts that are still being read have no token yet; they come without a score, at the end.
        """
        states = self._manager.batch_processor.inputs_and_outputs.requests_in_batch
        replies = [self._replies.get(row.state.request_id) for row in states if row.has_new_token]
        if not replies:
            return
        # A request that was cancelled during this step has no reply any more; its row is thrown away afterwards.
        rows = [GREEDY if reply is None else reply.next_row() for reply in replies]
        tokens, logprobs = choose(scores[0, : len(rows)], rows)
        output_ids[0, : len(rows)].copy_(tokens)
        for reply, token, logprob in zip(replies, tokens.tolist(), logprobs.tolist(), strict=True):
            if reply is not None:
                self._record(reply, token, logprob)

    def _record(self, reply: Reply, token: int, logprob: float) -> None:
        reply.add(token, logprob, self.version)
        if not math.isfinite(logprob):
            self.cancel(reply)
            reply.fail(EngineFault(f"the logprob of sampled id {token} is {logprob} under version {self.version}"))

    def _on_output(self, output: GenerationOutput) -> None:
        with self._lock:
            reply = self._replies.pop(output.request_id, None)
        if reply is None:
            return
        if output.status == RequestStatus.FAILED:
            reply.fail(EngineFault(f"the generation loop died: {output.error}"))
        elif output.generated_tokens != reply.ids:
            reply.fail(EngineFault("the engine's record of the sampled ids differs from what it fed back"))
        else:
            reply.finish("stop" if reply.ids[-1] in reply.request.stop_ids else "length")


def _make_manager(model: Any, max_batch_tokens: int, cache_tokens: int) -> ContinuousBatchingManager:
    """A manager that steps synchronously, shares no blocks (V2: no stale prefixes) and builds no masks.

    The generation config is explicit and neutral: a model's own would change the scores behind our back.
    """
    register()
    neutral = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
    )
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=cache_tokens // PAGE_TOKENS,
        max_batch_tokens=max_batch_tokens,
        max_blocks_per_request=0,
        allow_block_sharing=False,
        use_async_batching=False,
        use_cuda_graph=False,
        auto_switch_to_flash=False,
        seed=0,
    )
    manager: ContinuousBatchingManager = model.init_continuous_batching(
        generation_config=neutral, continuous_batching_config=config
    )
    # Only now: the manager knows stock names, and a name that it doesn't know makes it build no dense mask.
    model.set_attn_implementation(PAGED_ATTENTION)
    return manager


def _drain(waiting: queue.Queue[Any]) -> None:
    while True:
        try:
            waiting.get_nowait()
        except queue.Empty:
            return


def _stop_at_exit(loop_ref: weakref.ref[BatchingLoop]) -> None:
    loop = loop_ref()
    if loop is not None:
        loop.stop()
