"""What the commands that run something share: `--env NAME key=value … [--cfg]`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from agentrl.config import RunConfig, fault_text
from agentrl.errors import AgentRLError, ConfigError, StoreError
from agentrl.interrupts import Terminated

T = TypeVar("T")
DEFAULT_DATABASE = "runs/agentrl.db"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that `config_of` reads."""
    parser.add_argument("--env", metavar="NAME", help="the environment; `agentrl env list` shows them")
    parser.add_argument("--cfg", action="store_true", help="print the resolved config as YAML and stop")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="config overrides, e.g. train.steps=10")


def config_of(options: argparse.Namespace) -> RunConfig | None:
    """The checked config; None where `--cfg` printed it. Raises ConfigError."""
    from agentrl.cli.compose import load_config, split_env

    named, overrides = split_env(options.overrides)
    env = options.env or named
    if env is None:
        raise ConfigError("which environment? Add --env NAME; `agentrl env list` shows them")
    config = load_config(env, overrides)
    if options.cfg:
        from omegaconf import OmegaConf

        print(OmegaConf.to_yaml(OmegaConf.create(config.public())), end="")
        return None
    return config


def add_db_argument(parser: argparse.ArgumentParser) -> None:
    """`--db`, for commands that look into a database."""
    parser.add_argument("--db", default=DEFAULT_DATABASE, help=f"database file or URL ({DEFAULT_DATABASE})")


def existing_database(target: str) -> str:
    """`target`, if it can be there: looking something up makes no new file. Raises StoreError."""
    if "://" not in target and not Path(target).is_file():
        raise StoreError(f"{target}: no database there; name it with --db")
    return target


def resumed_config(run: str, options: argparse.Namespace, command: str) -> RunConfig | None:
    """The config of a run of `command` that is to be resumed: the stored one.

    The command may be repeated as it was, with its --env and key=value; a config that differs is refused. None
    where `--cfg` printed it. Raises StoreError, ConfigError.
    """
    if not (options.overrides or options.env):
        return _stored_config(run, options.db, command)
    given = config_of(options)
    if given is None:
        return None
    database = options.db if options.db != DEFAULT_DATABASE else given.database
    was, now = (_leaves(it.public()) for it in (_stored_config(run, database, command), given))
    for key in sorted(was.keys() | now.keys()):
        if was.get(key) != now.get(key) and key.partition(".")[0] not in ("name", "runs_dir", "store"):
            raise ConfigError(
                f"--resume {run}: {key}={now.get(key)}, but the run has {was.get(key)}; results of different configs "
                "aren't mixed. Leave it out, or start a new run without --resume"
            )
    return given.model_copy(update={"store": given.store.model_copy(update={"url": database})})


def _stored_config(run: str, database: str, command: str) -> RunConfig:
    from agentrl.store.store import Store

    with Store.open(existing_database(database)) as store:
        record = store.find_run(run)
    if record.config["command"] != command:
        kind = {"train": "training run"}.get(command, f"{command} run")
        raise ConfigError(f"run {run} is no {kind}; `agentrl {command} --resume` goes on with those only")
    try:
        return RunConfig.of_stored(record.config, database)
    except ValidationError as error:
        raise ConfigError(
            f"--resume {run}: its config doesn't fit what is installed now: {fault_text(error)}. It was made with "
            f"{record.made_with}; install those versions to go on with it, or start a new run"
        ) from None


def _leaves(node: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"section.key": value} of a nested config."""
    found: dict[str, Any] = {}
    for name, value in node.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; of several errors at once, the first that a user can act on is raised.

    SIGTERM ends it as Ctrl-C does: in an orderly way, with everything written. Raises Terminated after it.
    """
    terminated = False

    async def main() -> T:
        task = asyncio.current_task()
        assert task is not None

        def stop() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        if threading.current_thread() is threading.main_thread():  # the only one that gets signals
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if terminated:
            raise Terminated from None
        raise
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    known, _ = group.split(AgentRLError)
    error: BaseException = known or group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def need_extra(name: str) -> None:
    """Exit early where the packages of an extra are missing. Raises ConfigError."""
    try:
        from transformers.utils import logging
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it with: pip install 'agentrl[{name}]'") from None
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours shows the phases of a run, not of a file


def is_terminal() -> bool:
    """Does a person watch?"""
    return sys.stdout.isatty()
