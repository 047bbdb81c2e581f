"""The typed configuration: every key, its type, default and meaning. Each key has a consumer.

Hydra composes the YAML of `agentrl.configs` and the command line (see `agentrl.cli.compose`); the result is
checked by `RunConfig`. Sections are named after the part that reads them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny, model_serializer, model_validator

from agentrl import plugins
from agentrl.environment import EnvironmentConfig
from agentrl.urls import PASSWORD, hide_passwords


class Section(BaseModel):
    """Unknown keys are refused, numbers are checked where they enter (G4)."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class SamplingConfig(Section):
    """How replies are sampled. Greedy evaluation uses temperature 0."""

    temperature: float = Field(1.0, ge=0.0)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int = Field(0, ge=0)
    """0: no limit."""


class LimitsConfig(Section):
    """What ends or bounds an episode."""

    max_turns: int = Field(8, ge=1)
    max_turn_tokens: int = Field(512, ge=1)
    """Sampled ids per turn; a reply that reaches it ends the episode as turn_length."""
    max_episode_tokens: int = Field(8192, ge=1)
    """Sampled ids per episode (token_budget)."""
    max_context_tokens: int | None = Field(None, ge=1)
    """Context window, checked before each call; None: the engine's."""
    max_observation_tokens: int = Field(2048, ge=16)
    """A longer observation keeps its head and tail."""
    max_result_characters: int = Field(1_000_000, ge=16)
    """A longer tool result is stored with its head and tail only: a flood must fill neither memory nor database."""
    max_bad_calls: int = Field(4, ge=1)
    """Replies in a row whose calls are all unusable; then parse_limit."""
    tool_timeout_s: float = Field(10.0, gt=0)
    turn_timeout_s: float = Field(120.0, gt=0)
    episode_timeout_s: float = Field(600.0, gt=0)
    grade_timeout_s: float = Field(60.0, gt=0)
    max_tool_processes: int = Field(16, ge=1)
    """Isolated tools that run at once; the others wait, outside their time limit."""
    max_abandoned_threads: int = Field(8, ge=0)
    """Timed-out in-process tools can't be killed; past this many that still run, the run's tools are at fault."""


class RolloutConfig(Section):
    """How many rollouts run, and how faults are retried."""

    concurrency: int = Field(256, ge=1)
    max_attempts: int = Field(2, ge=1)
    """Attempts per sample where the ending is a fault (R3)."""
    max_fault_share: float = Field(0.5, ge=0, le=1)
    """The run stops where more than this share of a step's samples end in a fault; 1: never."""
    renderer_mode: Literal["append", "rerender"] = "append"
    """append: the next turn continues the ids that were sampled. rerender: the chat template writes the conversation
    anew before each reply, and where it changes what was sampled (drops earlier thinking), the turn is a branch."""


class ModelConfig(Section):
    """The weights to start from."""

    path: str = "tiny"
    """A Hugging Face folder or id; "tiny": a small model made here by supervised warm start; "smollm2"."""
    tool_parser: str = "auto"
    """Reads the model's tool calls; auto: the one that reads what the chat template writes. See docs/tool-calls.md."""
    cache_dir: str | None = None
    """Where made models are kept; None: ~/.cache/agentrl."""


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


class SyncConfig(Section):
    """How weights get from the trainer to the engine after each step."""

    transport: Literal["auto", "file", "gloo", "nccl", "ipc"] = "auto"
    """Only engine=vllm leaves a choice. file: by the disk, works everywhere. gloo: over loopback. nccl: between GPUs.
    ipc: where trainer and engine share a GPU. auto: ipc or nccl where the GPUs allow it, else gloo, or file where
    engine.urls names another machine."""
    in_flight: Literal["keep", "wait", "abort"] = "keep"
    """Replies that are being sampled when weights change. keep: they go on with the new ones. wait: they are finished
    first. abort: they are cut, and continued from their ids with the new ones."""


class AlgorithmConfig(Section):
    """GRPO: advantages and loss."""

    group_size: int = Field(8, ge=1)
    groups_per_step: int = Field(16, ge=1)
    normalize_std: bool = True
    clip_low: float = Field(0.2, gt=0, lt=1)
    clip_high: float = Field(0.28, gt=0)
    aggregation: Literal["token", "trajectory"] = "token"
    shuffle_rewards: bool = False
    """A control: rewards are shuffled within each group before advantages, so nothing can be learnt."""

    @model_validator(mode="after")
    def _group_of_one(self) -> AlgorithmConfig:
        if self.group_size < 2:
            raise ValueError("group_size must be at least 2: an advantage is relative to a group's other samples")
        return self


class TrainConfig(Section):
    """The trainer."""

    steps: int = Field(60, ge=0)
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = Field(1e-4, gt=0)
    warmup_steps: int = Field(10, ge=0)
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    weight_decay: float = Field(0.0, ge=0)
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0)
    updates_per_step: int = Field(1, ge=1)
    """Batches (optimizer updates) that a step's Rows are split into."""
    micro_batch_tokens: int = Field(4096, ge=1)
    """Token budget of one forward pass; a longer Row goes alone."""
    logprob_chunk_tokens: int = Field(1024, ge=1)
    """Tokens whose logits exist at once."""
    max_bad_updates: int = Field(3, ge=1)
    """Updates in a row that are not finite before the run stops (G3)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ranks: int = Field(1, ge=1)
    """Processes that hold the model together, each with a share of the weights and of the micro-batches."""
    devices: list[int] | None = None
    """The GPU of each rank; None: the first ones. Only with device cuda, or auto where there is a GPU."""
    threads: int | None = Field(None, ge=1)
    """Torch threads of each rank; None: the machine's cores, shared out among the ranks on CPUs."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in. Weights, optimizer and sums of gradients are kept in float32 whatever this says."""
    activation_checkpointing: bool = False
    """Compute each layer again in the backward pass instead of keeping its activations."""
    checkpoint_every: int = Field(20, ge=0)
    """Steps between checkpoints; 0: only at the end, and when the run is stopped."""
    keep_last: int = Field(2, ge=1)
    """Checkpoints that are kept, the newest first."""
    keep_best: bool = True
    """Also keep the one with the highest held-out success that was measured at its step."""

    @model_validator(mode="after")
    def _one_device_per_rank(self) -> TrainConfig:
        if self.devices is None:
            return self
        if self.device == "cpu":
            raise ValueError("devices chooses GPUs: leave it out with device=cpu")
        if len(set(self.devices)) != len(self.devices) or min(self.devices, default=0) < 0:
            raise ValueError(f"devices={self.devices}: name each GPU once, by its number from 0")
        if len(self.devices) != self.ranks:
            raise ValueError(f"devices names {len(self.devices)} GPUs for ranks={self.ranks}: name one per rank")
        return self


class EvalConfig(Section):
    """The held-out measure."""

    tasks: int = Field(300, ge=1)
    every: int = Field(0, ge=0)
    """Steps between evaluations; 0: only before and after."""
    sampled: bool = True
    """Also measure with the training's sampling, beside greedy."""
    samples: int = Field(1, ge=1)
    """Samples of each task in the sampled measure: its mean is avg@samples."""
    k: int = Field(1, ge=1)
    """The sampled measure also shows pass@k, estimated from the samples."""
    success_reward: float = 1.0
    """A reward of at least this counts as success."""

    @model_validator(mode="after")
    def _enough_samples(self) -> EvalConfig:
        if self.k > self.samples:
            raise ValueError(f"k={self.k} needs at least as many samples per task: set eval.samples={self.k} or more")
        if self.samples > 1 and not self.sampled:
            raise ValueError(f"samples={self.samples} needs eval.sampled=true: greedy replies are all the same")
        return self


class SftConfig(Section):
    """The warm start by `agentrl sft`."""

    demonstrations: int = Field(2048, ge=1)
    steps: int = Field(200, ge=1)
    batch_size: int = Field(32, ge=1)
    """Demonstrations per update."""
    optimizer: Literal["adamw", "muon"] = "muon"
    learning_rate: float = Field(6e-3, gt=0)
    warmup_steps: int = Field(20, ge=0)
    schedule: Literal["constant", "cosine", "linear"] = "linear"

    def train_config(self, train: TrainConfig) -> TrainConfig:
        """The trainer's settings for the warm start: those of `train` with these in their place."""
        return train.model_copy(update=self.model_dump(exclude={"demonstrations", "batch_size"}))


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


class StoreConfig(Section):
    """The database."""

    url: str | None = None
    """Path of a SQLite file or postgresql+psycopg://user@host/database; None: agentrl.db in the runs folder."""
    busy_timeout_s: float = Field(30.0, gt=0)
    """How long a write waits for another process's lock; then the run stops, resumable."""


class LogConfig(Section):
    """What is written down beside metrics.jsonl."""

    tensorboard: bool = False
    """Scalars of each step and evaluation in the run's folder, for `tensorboard --logdir`."""
    level: Literal["debug", "info", "warning"] = "info"
    """From which level on run.log holds messages."""
    max_file_bytes: int = Field(20_000_000, ge=10_000)
    """run.log starts anew at this size; one older part is kept as run.log.1."""


class EnvSelection(BaseModel):
    """The chosen environment. Flat where it is written: `{"name": "calculator", "level": 1}`."""

    model_config = ConfigDict(extra="forbid")

    name: str
    options: SerializeAsAny[EnvironmentConfig]
    """Typed by the environment's own `Config`."""

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "options" in value:
            return value
        flat = dict(value)
        name = flat.pop("name")
        return {"name": name, "options": plugins.environment(name).Config.model_validate(flat)}

    @model_serializer
    def _to_flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.options.model_dump(mode="json")}


class RunConfig(Section):
    """Everything that a run depends on. Stored with the run, without secrets."""

    env: EnvSelection
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    rollout: RolloutConfig = RolloutConfig()
    limits: LimitsConfig = LimitsConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    sft: SftConfig = SftConfig()
    chat: ChatConfig = ChatConfig()
    store: StoreConfig = StoreConfig()
    log: LogConfig = LogConfig()
    seed: int = 0
    runs_dir: str = "runs"
    name: str | None = None
    """Folder name of the run; None: the time and the environment."""

    @property
    def is_hosted(self) -> bool:
        """Only a chat endpoint has the model: there is no tokenizer here, so conversations stay text without ids."""
        return self.engine.api == "chat" and self.model.path == ModelConfig().path

    @model_validator(mode="after")
    def _measurable(self) -> RunConfig:
        if self.is_hosted and self.limits.max_context_tokens is not None:
            raise ValueError(
                "limits.max_context_tokens is measured with a tokenizer: name the model's by model.path=…, or leave it "
                "out, since a chat endpoint says itself when a conversation is too long for it"
            )
        return self

    @model_validator(mode="after")
    def _own_sync_keys(self) -> RunConfig:
        if self.engine.name != "vllm" and self.sync != SyncConfig():
            raise ValueError(
                f"engine={self.engine.name} is in this process and takes weights by memory, while its replies wait: "
                "leave sync.transport and sync.in_flight out, or choose engine=vllm"
            )
        return self

    @classmethod
    def of_stored(cls, stored: dict[str, Any], database: str) -> RunConfig:
        """The config in a run's record, which was found in `database`, without what else is kept there."""
        config = {name: value for name, value in stored.items() if name not in ("command", "model_folder", "template")}
        config |= {"store": config["store"] | {"url": database}, "engine": _engine_of_today(config["engine"])}
        return cls.model_validate(config)

    @property
    def database(self) -> str:
        """Path or URL of the run's database."""
        return self.store.url or str(Path(self.runs_dir) / "agentrl.db")

    def public(self) -> dict[str, Any]:
        """The config as stored and printed: secrets are left out."""
        dump = self.model_dump(mode="json")
        for section in ("store", "chat"):
            url = dump[section]["url"]
            dump[section]["url"] = None if url is None else hide_passwords(url)
        dump["engine"]["urls"] = [hide_passwords(url) for url in self.engine.urls]
        return dump

    def secrets(self) -> list[str]:
        """The values that must not be written down, as far as the config knows them."""
        urls = [url for url in (self.store.url, *self.engine.urls, self.chat.url) if url is not None]
        found = [password for url in urls for _, password in PASSWORD.findall(url) if password]
        keys = [os.environ.get(server.key_env) for server in (self.engine, self.chat) if server.key_env]
        return [*found, *(key for key in keys if key)]


def _engine_of_today(stored: dict[str, Any]) -> dict[str, Any]:
    """Before there were `urls` there was one `url`, and 0.9 stood for vLLM's own share of a device."""
    if "url" not in stored:
        return stored
    engine = {name: value for name, value in stored.items() if name != "url"}
    share = engine.get("gpu_memory_utilization")
    urls = [] if stored["url"] is None else [stored["url"]]
    return engine | {"urls": urls, "gpu_memory_utilization": None if share == 0.9 else share}
