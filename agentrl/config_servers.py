"""The sections of the configuration that are about servers: who is asked, and how weights get there.

Apart from `agentrl.config` only for its length; that is where all sections come together.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentrl.urls import hide_passwords


class Section(BaseModel):
    """Unknown keys are refused, numbers are checked where they enter (G4)."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class ServerConfig(Section):
    """A server that is asked over HTTP, and how faults of it are met."""

    section: ClassVar[str]
    url_key: ClassVar[str]
    """What its keys begin with, and the one that says where it is."""
    model: str | None = None
    """The model's name at the server."""
    key_env: str | None = None
    """The environment variable that holds the server's key; the key itself is never stored."""
    request_timeout_s: float = Field(120.0, gt=0)
    connect_timeout_s: float = Field(60.0, gt=0)
    """A wave of rollouts waits in the server's accept queue."""
    max_tries: int = Field(4, ge=1)
    """Tries of one request where the fault is transient: no connection, a time-out, 429, 5xx, garbage."""
    retry_wait_s: float = Field(0.5, ge=0)
    """Longest wait before the second try; it doubles from try to try, and a random share of it is taken."""
    max_retry_wait_s: float = Field(30.0, ge=0)


def _check_one_secret(config: ServerConfig, urls: list[str]) -> None:
    """Raises ValueError where a request would have to show a key and a user: one header holds either."""
    if config.key_env is not None and any("@" in urlsplit(url).netloc for url in urls):
        raise ValueError(
            f"{config.section}.key_env={config.key_env}: {config.url_key} names a user as well, and a request can show "
            "only one of them; leave one out"
        )


class EngineConfig(ServerConfig):
    """The inference server. limits.turn_timeout_s bounds all tries of a turn together."""

    section = "engine"
    url_key = "engine.urls"
    name: Literal["embedded", "vllm", "scripted"] = "embedded"
    """embedded: in this process. vllm: a vLLM server that is started and ended with the run. scripted: one request at a
    time by `agentrl.testing.engine`, so that replies are equal bit for bit."""
    threads: int | None = Field(None, ge=1)
    """Torch threads; None: the machine's cores."""
    max_batch_tokens: int = Field(1024, ge=16)
    cache_tokens: int | None = Field(None, ge=256)
    """embedded: size of the key-value pool in tokens; one request must fit alone. None: 65,536, or what 1 GiB holds."""
    cache_gib: int = Field(1, ge=1)
    """vllm on a CPU: size of the key-value pool."""
    replicas: int = Field(1, ge=1)
    """vllm: servers that hold the model; each rollout stays with one of them."""
    devices: list[int] = Field(default_factory=list)
    """vllm: the CUDA devices, as many for each replica, which hold the model together; none: the CPU."""
    gpu_memory_utilization: float | None = Field(None, gt=0, lt=1)
    """vllm: its share of each device's memory; None: vLLM's own 0.9. Set it where trainer and engine share a device."""
    start_timeout_s: float = Field(240.0, gt=0)
    """vllm: how long its start may take."""
    urls: Annotated[list[str], BeforeValidator(lambda urls: [urls] if isinstance(urls, str) else urls)] = []
    """Running servers of one model instead of ours; a single one needs no brackets. See docs/vllm.md."""
    api: Literal["tokens", "chat"] = "tokens"
    """What the servers at `urls` are asked for: tokens, or chat, i.e. messages at any OpenAI-compatible
    URL/chat/completions, e.g. with https://api.openai.com/v1. What comes back is text: evaluated, never trained on.
    Its tokens are counted by the tokenizer of model.path where that isn't "tiny", else by the server alone."""

    @property
    def url(self) -> str | None:
        """The first of `urls`; with api=chat the only one."""
        return self.urls[0] if self.urls else None

    @model_validator(mode="after")
    def _names_its_servers(self) -> EngineConfig:
        if self.api == "chat" and (len(self.urls) != 1 or self.model is None):
            raise ValueError("api=chat asks one server that is running: set engine.urls=…/v1 and engine.model=…")
        if len({url.rstrip("/") for url in self.urls}) != len(self.urls):
            raise ValueError(f"urls names a server twice: {', '.join(map(hide_passwords, self.urls))}")
        _check_one_secret(self, self.urls)
        if len(self.devices) % self.replicas:
            raise ValueError(f"devices={self.devices}: name as many for each of replicas={self.replicas}")
        return self

    @model_validator(mode="after")
    def _own_keys(self) -> EngineConfig:
        starting = {"replicas", "devices", "gpu_memory_utilization", "start_timeout_s", "cache_gib"}
        foreign = {"cache_tokens"} if self.name == "vllm" else starting
        # By value, for a stored config names every key.
        default = type(self).model_construct()
        changed = {key for key in starting | foreign if getattr(self, key) != getattr(default, key)}
        if wrong := ", ".join(sorted(changed & foreign)):
            raise ValueError(f"engine={self.name} has no {wrong}: leave it out, or choose another engine.name")
        if self.urls and (wrong := ", ".join(sorted(changed & starting))):
            raise ValueError(f"{wrong}: for servers that we start; those at engine.urls run already, so leave it out")
        return self


class ChatConfig(ServerConfig):
    """The endpoint behind `ctx.chat`: whoever plays a user or a judge in an environment. Any OpenAI-compatible one."""

    section = "chat"
    url_key = "chat.url"
    url: str | None = None
    """What the paths of the API are appended to, e.g. http://127.0.0.1:8000/v1."""
    temperature: float = Field(1.0, ge=0.0)
    max_tokens: int | None = Field(1024, ge=1)
    """Per reply; None: the endpoint's own limit."""

    @model_validator(mode="after")
    def _url_and_model(self) -> ChatConfig:
        if (self.url is None) != (self.model is None):
            raise ValueError("chat.url and chat.model belong together: set both")
        _check_one_secret(self, [self.url] if self.url else [])
        return self


class SyncConfig(Section):
    """How weights get from the trainer to the engine after each step."""

    transport: Literal["auto", "file", "gloo", "nccl", "ipc"] = "auto"
    """Only engine=vllm leaves a choice. file: by the disk, works everywhere. gloo: over loopback. nccl: between GPUs.
    ipc: where trainer and engine share a GPU. auto: ipc or nccl where the GPUs allow it, else gloo, or file where
    engine.urls names another machine."""
    in_flight: Literal["keep", "wait", "abort"] = "keep"
    """Replies that are being sampled when weights change. keep: they go on with the new ones. wait: they are finished
    first. abort: they are cut, and continued from their ids with the new ones."""
