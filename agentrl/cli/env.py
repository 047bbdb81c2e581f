"""`agentrl env list | new NAME | check NAME | validate NAME`: the installed environments, and how to make one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl import plugins
from agentrl.cli.columns import print_plugins
from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.config import RunConfig
    from agentrl.environment import Chat
    from agentrl.types import Message


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "the installed environments: name, distribution, version, state"
    actions.add_parser("list", help=summary, description=summary)
    summary = "write a package with a small environment, its YAML and its test"
    new = actions.add_parser("new", help=summary, description=summary)
    new.add_argument("name", metavar="NAME", help="what the environment will be called, e.g. word-puzzles")
    new.add_argument("--path", metavar="DIR", type=Path, help="the folder to make (agentrl-NAME)")
    summary = "run the contract suite on an environment"
    check = actions.add_parser("check", help=summary, description=summary)
    _add_name(check)
    check.add_argument("--tasks", type=int, default=3, help="tasks to play in each split (3)")
    summary = "play each task: no work must not be paid, and the oracle must be, each time"
    validate = actions.add_parser("validate", help=summary, description=summary)
    _add_name(validate)
    validate.add_argument("--repeat", type=int, default=3, help="how often the oracle plays each task (3)")
    validate.add_argument("--split", choices=("train", "held_out"), help="only these tasks (both)")
    validate.add_argument("--write", metavar="FILE", type=Path, help="write the list for tasks.exclude=FILE")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="an environment; `agentrl env list` shows them")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="config overrides, e.g. env.level=3")


def run(options: argparse.Namespace) -> int:
    actions = {
        "list": list_environments,
        "new": new_environment,
        "check": check_environment,
        "validate": validate_environment,
    }
    return actions[options.action](options)


def list_environments(options: argparse.Namespace) -> int:
    """One line per environment; a broken one with its reason."""
    return print_plugins("agentrl.envs")


def new_environment(options: argparse.Namespace) -> int:
    """Write the package and say what to do with it."""
    from agentrl.cli.new_package import write_package

    folder = options.path or Path(f"agentrl-{options.name}")
    for path in write_package(options.name, folder):
        print(f"  {path}")
    print(f"next: pip install -e {folder} && agentrl env check {options.name}")
    return 0


def check_environment(options: argparse.Namespace) -> int:
    """One line per check; exit code 1 where one failed."""
    from agentrl.cli.compose import load_config
    from agentrl.testing.contract import check

    config = load_config(options.name, options.overrides)
    results = check(
        plugins.environment(options.name),
        config.env.options,
        name=options.name,
        chat=chat_of(config),
        sandbox=config.sandbox,
        num_tasks=options.tasks,
        max_turns=config.limits.max_turns,
        timeout_s=config.limits.tool_timeout_s,
        grade_timeout_s=config.limits.grade_timeout_s,
    )
    for result in results:
        print(visible(result.line()))
    num_failed = sum(result.problem is not None for result in results)
    num_open = sum(not result.is_shown for result in results)
    verdict = f"{num_failed} of {len(results)} checks failed" if num_failed else f"{options.name} keeps the contract"
    print(verdict + (f"; {num_open} not shown" if num_open else ""))
    return 1 if num_failed else 0


def validate_environment(options: argparse.Namespace) -> int:
    """See agentrl.cli.env_validate."""
    from agentrl.cli.env_validate import validate_tasks

    return validate_tasks(options)


def chat_of(config: RunConfig) -> Chat | None:
    """Who answers `ctx.chat`: the endpoint of the config; None: nobody is named."""
    from agentrl.rollout.chat import chat_client

    async def chat(agent: str, messages: list[Message]) -> Message:
        async with chat_client(config.chat) as client:
            reply = await client.ask(messages, sampling={"seed": config.seed}, request_id=f"check-{agent}")
        return reply.completion.message

    return chat if config.chat.url else None
