"""An engine whose replies follow from weights, prompt and seed alone, bit for bit.

The embedded engine computes many requests at once, and float32 sums differ in the last bit with the company that a
request has. Here requests are computed one at a time by the plain model. It is slow; use it as `engine=scripted` where
two runs must be equal: a resumed run and one that was never stopped.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from agentrl.engine.base import GenerationLoop
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.engine.reply import EngineFault, Reply
from agentrl.engine.sampling import choose


class ScriptedLoop(GenerationLoop):
    """One request after the other, in the order of arrival."""

    def __init__(
        self, model: PreTrainedModel, *, max_batch_tokens: int, cache_tokens: int, threads: int | None, version: int
    ) -> None:
        super().__init__(
            model, max_batch_tokens=max_batch_tokens, cache_tokens=cache_tokens, threads=threads, version=version
        )
        self._model: Any = model
        self._waiting: queue.Queue[Reply | None] = queue.Queue()
        self._step = threading.Lock()
        """Held while an id is computed, and over a change of the weights."""
        self._thread = threading.Thread(target=self._run, name="agentrl-engine", daemon=True)

    def start(self) -> None:
        """See GenerationLoop."""
        self._thread.start()

    def stop(self) -> None:
        """See GenerationLoop."""
        with self._lock:
            self._stopped = True
            replies = self._take_all()
        for reply in replies:
            reply.finish("abort")
        self._waiting.put(None)
        if self._thread.is_alive():
            self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See GenerationLoop."""
        with self._step:
            yield

    def _enqueue(self, reply: Reply) -> bool:
        self._waiting.put(reply)
        return True

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        while (reply := self._waiting.get()) is not None:
            try:
                self._generate(reply)
            except Exception as error:  # whatever it is, whoever waits for the reply must hear of it
                reply.fail(EngineFault(f"the model failed: {error!r}"))
            with self._lock:
                self._replies.pop(reply.key, None)

    @torch.no_grad()
    def _generate(self, reply: Reply) -> None:
        """Sample until the reply ends or is cancelled."""
        request, ids, cache = reply.request, reply.request.prompt_ids, None
        while reply.key in self._replies:
            with self._step:
                output = self._model(input_ids=torch.tensor([ids]), past_key_values=cache, use_cache=True)
                tokens, logprobs = choose(output.logits[0, -1:].float(), [reply.next_row()])
                reply.add(int(tokens[0]), float(logprobs[0]), self.version)
            ids, cache = [int(tokens[0])], output.past_key_values
            if ids[0] in request.stop_ids:
                return reply.finish("stop")
            if len(reply.ids) == request.max_tokens:
                return reply.finish("length")


class ScriptedEngine(EmbeddedEngine):
    """An EmbeddedEngine in all but how it computes."""

    loop_class = ScriptedLoop
