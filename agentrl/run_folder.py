"""A run's folder and its record in the store: opened, reopened, kept alive, and how it ended."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import platform
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.environment import Environment
from agentrl.errors import AgentRLError, ConfigError, StoreError
from agentrl.interrupts import locked, uninterrupted
from agentrl.place import at
from agentrl.progress import MetricsFile, Watcher, plain
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.chat import chat_client
from agentrl.rollout.chat_client import ChatClient
from agentrl.run_log import RunLog
from agentrl.sandbox import SandboxSpec
from agentrl.store.records import Lease, RunStatus
from agentrl.store.store import Store
from agentrl.tasks import load_tasks, num_excluded
from agentrl.train import checkpoint, tensorboard
from agentrl.types import Task

PACKAGES = ("agentrl", "torch", "transformers", "tokenizers", "numpy", "sqlalchemy", "pydantic", "aiohttp")
LEASE_HEARTBEAT_S = 30.0
MAX_REQUIRED = 100
"""Tasks of a split whose boxes are seen to before the run begins."""
LOGGER = logging.getLogger(__name__)


@dataclass(kw_only=True, slots=True)
class Run:
    """One run: its record in the store, its folder, its environment."""

    id: str
    command: str
    config: RunConfig
    folder: Path
    store: Store
    env_class: type[Environment]
    watcher: Watcher
    metrics: MetricsFile
    log: RunLog
    scalars: tensorboard.Scalars | None
    chat: ChatClient
    """Who answers `ctx.chat`."""
    boxes: Boxes = field(init=False)
    """Where the environment's boxes come from."""
    started: float = field(default_factory=time.monotonic)
    phase_seconds: dict[str, float] = field(default_factory=dict)
    _tasks: dict[str, Sequence[Task]] = field(default_factory=dict)
    _references: dict[str, float] | None = None

    def __post_init__(self) -> None:
        self.boxes = Boxes(self.config.sandbox, run=self.id, tell=self.event)

    def tasks(self, split: str) -> Sequence[Task]:
        """The same ones each time. Raises ConfigError where the environment has no such tasks."""
        if split not in self._tasks:
            self._tasks[split] = load_tasks(self.config, split)
        return self._tasks[split]

    def references(self, tasks: Sequence[Task]) -> dict[str, float]:
        """What the environment has to say beside the held-out measure. Raises ConfigError."""
        if self._references is None:
            try:
                self._references = self.env_class.references(self.config.env.options, tasks)
            except AgentRLError:
                raise
            except Exception as error:
                raise ConfigError(f"environment {self.config.env.name!r}: references raised {error!r}") from error
        return self._references

    def event(self, kind: str, **values: Any) -> None:
        """Tell the metrics file, the log, TensorBoard and whoever watches."""
        self.metrics.write(kind, values)
        LOGGER.info("%s %s", kind, json.dumps(plain(values)))
        if self.scalars is not None:
            self.scalars.write(kind, values)
        self.watcher.event(kind, values)

    def add_seconds(self, seconds: dict[str, float]) -> None:
        """Add to the run's wall time by phase."""
        for name, value in seconds.items():
            self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + value

    def tool_specs(self) -> list[dict[str, Any]]:
        """The tools as chat templates get them."""
        return [tool.spec() for tool in self.env_class(self.config.env.options).tools]


@asynccontextmanager
async def open_run(config: RunConfig, command: str, watcher: Watcher, model: Path | None = None) -> AsyncIterator[Run]:
    """Make the run's folder and its record; mark how it ended. `model`: the folder of its tokenizer, for `show`."""
    plugins.environment(config.env.name)  # an unknown one leaves no folder behind
    if config.log.tensorboard:
        tensorboard.check_installed()
    left_out = num_excluded(config)
    folder = _make_folder(config, command)
    with open_store(config) as store:
        run_id = await store.create_run(
            folder.name,
            config.public()
            | {"command": command, "model_folder": str(model or folder / "start"), "num_excluded": left_out},
            seed=config.seed,
            folder=str(folder),
            packages=_package_versions() | plugins.made_by("agentrl.envs", config.env.name),
            git_commit=_git_commit(),
        )
        async with _working(config, run_id, command, folder, store, watcher) as run:
            if left_out:
                run.event("excluded", list=config.tasks.exclude, **left_out)
            yield run


@asynccontextmanager
async def reopen_run(config: RunConfig, watcher: Watcher, run_id: str) -> AsyncIterator[tuple[Run, Path]]:
    """A run that was stopped, and the model to go on from: its last complete checkpoint, or what it started from."""
    with open_store(config) as store:
        record = store.find_run(run_id)
        folder = Path(record.folder)
        if not folder.is_dir():
            raise ConfigError(f"run {record.id}: its folder {folder} is gone; start a new run")
        async with _working(config, record.id, record.config["command"], folder, store, watcher) as run:
            yield run, checkpoint.latest(folder / "checkpoints") or Path(record.config["model_folder"])


@asynccontextmanager
async def _working(
    config: RunConfig, run_id: str, command: str, folder: Path, store: Store, watcher: Watcher
) -> AsyncIterator[Run]:
    """The run, while this process alone works on it."""
    with locked(folder), disk_faults_named(folder):
        run = Run(
            id=run_id,
            command=command,
            config=config,
            folder=folder,
            store=store,
            env_class=plugins.environment(config.env.name),
            watcher=watcher,
            metrics=MetricsFile(folder / "metrics.jsonl"),
            log=RunLog(folder, run_id, config.log, config.secrets()),
            scalars=tensorboard.Scalars(folder) if config.log.tensorboard else None,
            chat=chat_client(config.chat),
        )
        async with _ending(run):
            yield run


@asynccontextmanager
async def _ending(run: Run) -> AsyncIterator[None]:
    """Tell where the run is, and record how it ends."""
    status = RunStatus.FAILED
    with run.log, at(run=run.id):
        run.event("run", run=run.id, command=run.command, folder=str(run.folder), database=run.store.location)
        try:
            await _require_boxes(run)
            yield
            status = RunStatus.COMPLETED
        except (KeyboardInterrupt, asyncio.CancelledError):
            status = RunStatus.INTERRUPTED
            raise
        finally:
            await uninterrupted(run.boxes.close())
            await run.chat.close()
            await run.store.finish_run(run.id, status)
            run.event("end", run=run.id, command=run.command, status=str(status), database=run.store.location)
            if run.scalars is not None:
                run.scalars.close()
            LOGGER.info("the run is %s", status)


async def _require_boxes(run: Run) -> None:
    """Before anything heavy starts. Raises ConfigError where the environment needs boxes that can't be had here."""
    env_class = run.env_class
    if env_class.sandbox is Environment.sandbox and _same(env_class.grading_sandbox, Environment.grading_sandbox):
        return
    specs: list[SandboxSpec | None] = []
    for split in ("train", "held_out"):
        with suppress(ConfigError):  # a command that needs the split has seen that there are tasks
            for task in run.tasks(split)[:MAX_REQUIRED]:
                specs += [env_class(run.config.env.options).sandbox(task), env_class.grading_sandbox(task)]
    await run.boxes.require(spec for spec in specs if spec is not None)


def _same(method: Any, other: Any) -> bool:
    """Of classes: is it inherited?"""
    return bool(method.__func__ is other.__func__)


def check_tasks(config: RunConfig, *splits: str) -> None:
    """Before anything heavy starts. Raises ConfigError where there are no tasks of a split, or of tasks.exclude."""
    num_excluded(config)
    for split in splits:
        load_tasks(config, split)


@contextmanager
def disk_faults_named(folder: Path) -> Iterator[None]:
    """A disk that is full, over its quota, read-only or broken leaves as a StoreError that says what to do."""
    try:
        yield
    except Exception as error:
        # Writers in Rust (safetensors) give the number in their text only.
        text = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else text and int(text[1])
        if number not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
            raise
        why = f"{getattr(error, 'filename', None) or folder}: {getattr(error, 'strerror', None) or error}"
        raise StoreError(f"{why}; free some space or make it writable, then resume") from error


def lease_seconds(config: RunConfig) -> float:
    """How long a lease lasts between heartbeats: a rollout's time limit and some."""
    return 2 * LEASE_HEARTBEAT_S + config.limits.turn_timeout_s


@asynccontextmanager
async def heartbeat(run: Run, leases: Sequence[Lease]) -> AsyncIterator[None]:
    """Keep the leases while their groups are played."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(LEASE_HEARTBEAT_S)
            for lease in leases:
                await run.store.queue.heartbeat(lease, lease_seconds(run.config))

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()


def _make_folder(config: RunConfig, command: str) -> Path:
    name = config.name or time.strftime(f"%Y%m%d-%H%M%S-{command}-{config.env.name}")
    folder = Path(config.runs_dir) / name
    number = 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder.resolve()
        except FileExistsError:
            if config.name is not None:
                raise ConfigError(f"name={name}: {folder} exists already; choose another name or remove it") from None
            number += 1
            folder = folder.with_name(f"{name}-{number}")
        except OSError as error:
            raise ConfigError(f"runs_dir={config.runs_dir}: can't make {folder}: {error.strerror}") from None


def open_store(config: RunConfig) -> Store:
    """The config's database. Raises StoreError."""
    try:
        return Store.open(config.database, busy_timeout_s=config.store.busy_timeout_s)
    except StoreError as error:
        raise StoreError(f"store.url: {error}") from error


def _package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _git_commit() -> str | None:
    """The commit of the code that runs, if it runs from a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
