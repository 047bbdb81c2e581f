"""What the run asks of a vLLM server: pause, take weights, say what it holds, score a canary."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Literal, Self

import httpx
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from agentrl.engine.vllm.process import VllmOptions, VllmProcess
from agentrl.errors import EngineError
from agentrl.interrupts import uninterrupted
from agentrl.transfer import Manifest
from agentrl.urls import hide_passwords

PauseMode = Literal["keep", "wait", "abort"]
_TIMEOUT_S = 300.0
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For servers that speak no TLS: to read the system's certificates takes 20 ms for each request."""
_WITNESS = [0] * 34
"""A prompt that fills one block of the cache, and one id more: the last id is never taken from there."""
_DEATH_LOOKS, _DEATH_LOOK_S = 4, 0.25


class VllmEngine:
    """A server that is started and ended here. Use as `async with`.

    A publish calls, in this order: `pause`, `begin_update`, `receive`, `end_update`, `resume`, `score`.
    """

    def __init__(self, options: VllmOptions, on_wait: Callable[[float], None] = lambda seconds: None) -> None:
        self.name = options.name
        """This engine's name in records and errors."""
        self.model = options.name
        """The name that the model is served under."""
        self.version = 0
        """The version that it was told it holds."""
        self._options = options
        self._on_wait = on_wait
        self._process = VllmProcess(options=options)
        self._is_paused = self._is_updating = False
        self._salt = secrets.token_hex(8)
        """Of what is asked here, so that nobody else's prompts are found in the cache."""
        self._witness: list[int] | None = None
        """A prompt that was in the cache when the engine was paused; None: none, or it isn't there any more."""

    @property
    def url(self) -> str:
        """http://127.0.0.1:<port>."""
        return self._process.url

    @property
    def key(self) -> str:
        """The bearer token that requests must show; empty: none."""
        return self._process.key

    async def start(self) -> None:
        """Start the server, or start it anew, and wait until it serves version 0. Raises ConfigError, EngineError."""
        self.version, self._is_paused, self._is_updating, self._witness = 0, False, False, None
        try:
            await self._process.start(self._on_wait)
            await self._post("/update_weight_version", {"new_version": "0"})
        except BaseException:
            await uninterrupted(self.stop())
            raise

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await uninterrupted(self.stop())

    async def stop(self) -> None:
        """End the server. May be called more than once."""
        await self._process.stop()

    def failure(self) -> EngineError | None:
        """Why the server doesn't run any more, with its log's tail; None while it runs."""
        return self._process.failure()

    def weights_hash(self) -> str:
        """Of the weights in the model folder, which it began with; as the trainer's policy hashes. Blocks."""
        tensors: dict[str, torch.Tensor] = {}
        for path in self._options.model.glob("*.safetensors"):
            tensors |= load_file(path)
        with torch.device("meta"):
            config = AutoConfig.from_pretrained(self._options.model)
            skeleton: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
        digest = hashlib.sha256()
        for name in [name for name in skeleton.state_dict() if name in tensors]:
            tensor = tensors[name]
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    # ------------------------------------------------------------------------------------------------- weights

    @property
    def num_workers(self) -> int:
        """Processes that hold the model together."""
        return max(1, len(self._options.devices))

    async def pause(self, mode: PauseMode = "keep", canary_ids: Sequence[int] = ()) -> None:
        """Sample nothing; what runs is kept as it is, finished first, or aborted. Every cache is cleared.

        The cache of what is kept is computed anew, by then with the new weights, when it goes on. A prompt is put in
        the cache first, by which `score` sees that it was cleared: the canary's own beginning where it is long enough.
        """
        if not self._is_paused:  # or it would not answer
            begins = list(canary_ids[: len(_WITNESS)])
            witness = begins if len(begins) == len(_WITNESS) else _WITNESS
            await self._generate(witness, {"temperature": 0.0}, self._salt)
            self._witness = witness
        await self._post(f"/pause?mode={mode}&clear_cache=true")
        self._is_paused = True

    async def resume(self) -> None:
        """Go on."""
        await self._post("/resume")
        self._is_paused = False

    async def meet(self, transport: str, options: dict[str, Any]) -> None:
        """Agree with the workers on how tensors will travel. Raises EngineError."""
        await self._post("/init_weight_transfer_engine", {"init_info": {"transport": transport, "options": options}})

    async def begin_update(self) -> None:
        """New weights are on their way."""
        if self._is_updating:  # the last one wasn't put in force: its tensors will be loaded over
            await self._post("/finish_weight_update")
        await self._post("/start_weight_update")
        self._is_updating = True

    async def receive(self, manifest: Manifest, options: dict[str, Any]) -> dict[str, str]:
        """Load all tensors; BLAKE3 of each as it arrived. Raises EngineError by its name."""
        try:
            info = {"manifest": asdict(manifest), "options": options}
            await self._post("/update_weights", {"update_info": info})
        except EngineError:
            self._is_updating = False  # vLLM has ended it
            raise
        answer = await self._post("/collective_rpc", {"method": "agentrl_received"})
        first: dict[str, str] = answer["results"][0]
        for other in answer["results"][1:]:
            if other != first:
                raise EngineError(f"engine {self.name!r}: its workers received different tensors")
        return first

    async def end_update(self, version: int) -> None:
        """The weights are in force; what is sampled from now on is stamped with this version."""
        await self._post("/finish_weight_update", {"weight_version": str(version)})
        self._is_updating = False
        self.version = version

    async def score(self, prompt_ids: list[int], forced_ids: list[int]) -> tuple[list[float], list[int]]:
        """Logprobs (temperature 1) of `forced_ids` after `prompt_ids`, and the version in force. Raises EngineError.

        As logprobs of a prompt, which vLLM computes anew and takes from no cache unless it is told to; one more id is
        sampled and thrown away. The first time after a pause it is told to: nothing from before must be found there.
        """
        sampling = {"temperature": 1.0, "seed": 0, "logprobs": 0, "prompt_logprobs": 0, "detokenize": False}
        ids, witness, self._witness = prompt_ids + forced_ids, self._witness, None
        if witness is None:
            answer = await self._generate(ids, sampling)
        elif witness == ids[: len(witness)]:
            answer = await self._score_by_cache(ids, sampling)
        else:
            asking = self._generate(witness, {"temperature": 0.0}, self._salt)
            answer, asked = await asyncio.gather(self._generate(ids, sampling), asking)
            self._check_cleared(asked)
        given = answer["prompt_logprobs"][len(prompt_ids) :]
        logprobs = [float(entry[str(id)]["logprob"]) for entry, id in zip(given, forced_ids, strict=True)]
        spans = answer["choices"][0]["weight_versions"]
        return logprobs, [int(spans[0]["version"])] * len(forced_ids)

    async def _score_by_cache(self, ids: list[int], sampling: dict[str, Any]) -> Any:
        """Score the canary, whose beginning must not be in the cache any more."""
        try:
            answer = await self._generate(ids, sampling | {"skip_reading_prefix_cache": False}, self._salt)
        except EngineError as error:  # vLLM leaves logprobs of cached ids empty: whatever is in memory there, or a 500
            raise EngineError(f"{error}. It may have kept its cache when it was paused") from error
        self._check_cleared(answer)
        return answer

    async def _generate(self, ids: list[int], sampling: dict[str, Any], salt: str | None = None) -> Any:
        """One id."""
        body = {"token_ids": ids, "sampling_params": {"max_tokens": 1} | sampling, "model": self.model}
        return await self._post("/inference/v1/generate", body | ({"cache_salt": salt} if salt else {}))

    def _check_cleared(self, answer: Any) -> None:
        """Raises EngineError where some of a prompt came from the cache."""
        details = answer["usage"].get("prompt_tokens_details") or {}
        if num_cached := details.get("cached_tokens"):
            raise EngineError(
                f"engine {self.name!r} kept its cache when it was paused: {num_cached} ids of a prompt still come from "
                "the weights before"
            )

    async def _post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        verify = self.url.startswith("https:") or _TRUSTS_NOBODY
        try:
            async with httpx.AsyncClient(headers=headers, timeout=_TIMEOUT_S, trust_env=False, verify=verify) as http:
                response = await http.post(self.url + path, json=body or {})
        except httpx.HTTPError as error:
            raise await self._why(f"{hide_passwords(self.url)}{path}: {error!r}") from error
        if response.status_code != 200:
            raise await self._why(f"{path}: HTTP {response.status_code}: {response.text[:1000]}")
        return response.json() if response.content else None

    async def _why(self, what: str) -> EngineError:
        """A server that dies is seen as an HTTP error first; then its log says more."""
        for _ in range(_DEATH_LOOKS):
            if failure := self.failure():
                return failure
            await asyncio.sleep(_DEATH_LOOK_S)
        return EngineError(f"engine {self.name!r} at {what}")
