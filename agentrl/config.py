"""The typed configuration: every key, its type, default and meaning. Each key has a consumer.

Hydra composes the YAML of `agentrl.configs` and the command line (see `agentrl.cli.compose`); the result is
checked by `RunConfig`. Sections are named after the part that reads them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from agentrl import plugins
from agentrl.config_sandbox import SandboxConfig
from agentrl.config_servers import ChatConfig, EngineConfig, Section, SyncConfig
from agentrl.config_tasks import TasksConfig
from agentrl.environment import FOR_REPLAY, EnvironmentConfig
from agentrl.urls import PASSWORD, hide_passwords


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


class SourceConfig(Section):
    """Where the groups of a step come from."""

    name: Literal["live", "replay"] = "live"
    """live: they are played for it. replay: they are stored groups of other runs in the same database, sampled by other
    weights (off-policy), and no engine is started; see docs/replay.md."""
    runs: Annotated[list[str], BeforeValidator(lambda runs: [runs] if isinstance(runs, str) else runs)] = Field([])
    """replay: the runs, by id or folder name, in this order; a single one needs no brackets."""
    batches: Literal["recorded", "planned"] = "recorded"
    """replay: recorded: a step gets what a step of theirs trained on. planned: algorithm.groups_per_step of their
    groups in the order of their plans, also those that no step trained on."""
    first_step: int = Field(0, ge=0)
    """replay, recorded: the first of each run's steps, by its ordinal."""
    last_step: int | None = Field(None, ge=0)
    """replay, recorded: the last one, itself included; None: the run's last."""

    @model_validator(mode="after")
    def _own_keys(self) -> SourceConfig:
        if self.name == "live" and self != SourceConfig.model_construct():
            raise ValueError("source=live plays its groups: leave the other keys of source out, or say source=replay")
        if self.name == "replay" and not self.runs:
            raise ValueError("source=replay trains on what other runs stored: name them by source.runs=[RUN]")
        if self.batches == "planned" and (self.first_step or self.last_step is not None):
            raise ValueError(
                "source.first_step and last_step choose among steps, and source.batches=planned doesn't look at them: "
                "leave one or the other out"
            )
        return self


class AlgorithmConfig(Section):
    """GRPO: advantages and loss."""

    group_size: int = Field(8, ge=1)
    oracle_samples: int = Field(0, ge=0)
    """Of each group, so many samples are played by the environment's oracle, the last ones. What a script says has
    weight 0, but its rewards are in the baseline: so a model that never succeeds is still told what to leave."""
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
        if self.oracle_samples >= self.group_size:
            raise ValueError("oracle_samples must be less than group_size: nothing is learnt from a script's samples")
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
    """Steps between evaluations; 0: only before and after, and with source=replay none."""
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

    run: str | None = None
    """Imitate this run's stored rollouts (an import's, say), those of evaluations left out; None: the environment's
    demonstrator plays."""
    demonstrations: int = Field(2048, ge=1)
    """How many the demonstrator plays."""
    steps: int = Field(200, ge=1)
    batch_size: int = Field(32, ge=1)
    """Demonstrations per update."""
    optimizer: Literal["adamw", "muon"] = "muon"
    learning_rate: float = Field(6e-3, gt=0)
    warmup_steps: int = Field(20, ge=0)
    schedule: Literal["constant", "cosine", "linear"] = "linear"

    def train_config(self, train: TrainConfig) -> TrainConfig:
        """The trainer's settings for the warm start: those of `train` with these in their place."""
        return train.model_copy(update=self.model_dump(exclude={"run", "demonstrations", "batch_size"}))

    @model_validator(mode="after")
    def _one_source(self) -> SftConfig:
        if self.run is not None and self.demonstrations != SftConfig.model_fields["demonstrations"].default:
            raise ValueError(f"demonstrations are played, but run={self.run} imitates what is stored: leave one out")
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
    def _from_flat(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict) or "options" in value:
            return value
        flat = dict(value)
        name = flat.pop("name")
        return {"name": name, "options": plugins.environment(name).Config.model_validate(flat, context=info.context)}

    @model_serializer
    def _to_flat(self) -> dict[str, Any]:
        return {"name": self.name, **self.options.model_dump(mode="json")}


class RunConfig(Section):
    """Everything that a run depends on. Stored with the run, without secrets."""

    env: EnvSelection
    tasks: TasksConfig = TasksConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    source: SourceConfig = SourceConfig()
    rollout: RolloutConfig = RolloutConfig()
    limits: LimitsConfig = LimitsConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    sft: SftConfig = SftConfig()
    chat: ChatConfig = ChatConfig()
    sandbox: SandboxConfig = SandboxConfig()
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

    @property
    def is_played(self) -> bool:
        """Is an engine asked for anything? A replay needs one only to be measured."""
        return self.source.name == "live" or self.eval.every > 0

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

    @model_validator(mode="after")
    def _own_engine_keys(self) -> RunConfig:
        if not self.is_played and self.engine != EngineConfig():
            raise ValueError(
                "source=replay starts no engine: leave the keys of engine out, or have the run measured on the way by "
                "eval.every=N"
            )
        return self

    @classmethod
    def of_stored(cls, stored: dict[str, Any], database: str, *, for_replay: bool = False) -> RunConfig:
        """The config in a run's record, which was found in `database`, without what else is kept there.

        `for_replay`: the files that it names may be gone or have changed by now.

        Raises ValidationError where another version of agentrl, or of the environment, wrote it in another way.
        """
        others = ("command", "model_folder", "template", "num_excluded")
        config = {name: value for name, value in stored.items() if name not in others}
        config["store"] = config.get("store", {}) | {"url": database}
        config["engine"] = _engine_of_today(config.get("engine", {}))
        return cls.model_validate(config, context=FOR_REPLAY if for_replay else None)

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


def fault_text(error: ValidationError) -> str:
    """The first fault of a failed validation: key, value, what is expected."""
    fault = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in fault["loc"] if part != "options")
    message = fault["msg"].removeprefix("Value error, ")
    if not key:
        return message
    return f"{key}={fault['input']!r}: {message}" if not isinstance(fault["input"], dict) else f"{key}: {message}"


def _engine_of_today(stored: dict[str, Any]) -> dict[str, Any]:
    """Before there were `urls` there was one `url`, and 0.9 stood for vLLM's own share of a device."""
    if "url" not in stored:
        return stored
    engine = {name: value for name, value in stored.items() if name != "url"}
    share = engine.get("gpu_memory_utilization")
    urls = [] if stored["url"] is None else [stored["url"]]
    return engine | {"urls": urls, "gpu_memory_utilization": None if share == 0.9 else share}
