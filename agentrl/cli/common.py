"""What the commands that run something share: `--env NAME key=value … [--cfg]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentrl.config import RunConfig
from agentrl.errors import AgentRLError, ConfigError

T = TypeVar("T")


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


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """Run to the end; of several errors at once, the first that a user can act on is raised."""

    async def call() -> T:
        return await work()

    try:
        return asyncio.run(call())
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
    logging.disable_progress_bar()  # ours shows the phases of a run, not of a file


def is_terminal() -> bool:
    """Does a person watch?"""
    return sys.stdout.isatty()
