"""`agentrl sandbox list | check NAME | pull NAME IMAGE… | cleanup`: what is installed, and what it holds here."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from pydantic import ValidationError

from agentrl import plugins
from agentrl.cli import sandbox_cleanup, sandbox_pull
from agentrl.cli.columns import print_plugins
from agentrl.config_sandbox import SandboxConfig
from agentrl.errors import ConfigError
from agentrl.visible import one_line, visible

if TYPE_CHECKING:
    from agentrl.sandbox import SandboxBackend
    from agentrl.testing.sandbox import Result

PREFIX = "sandbox.options."
MARKS = {"passed": "✓", "failed": "✗", "not shown here": "–"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "the installed sandboxes: name, distribution, version, state"
    actions.add_parser("list", help=summary, description=summary)
    summary = "try the contract, and every known way out, on this machine"
    check = actions.add_parser("check", help=summary, description=summary)
    check.add_argument("name", metavar="NAME", help="a sandbox; `agentrl sandbox list` shows them")
    check.add_argument("overrides", nargs="*", metavar="key=value", help=f"its options, e.g. {PREFIX}unsafe=true")
    check.add_argument("--image", metavar="I", help="the image that boxes are made of, where the sandbox needs one")
    check.add_argument("--only", action="append", default=[], metavar="CHECK", help="this check (may be repeated)")
    summary = "remove what dead runs left on this machine"
    sandbox_cleanup.add_arguments(actions.add_parser("cleanup", help=summary, description=summary))

    summary = "get images ahead of the run that needs them"
    sandbox_pull.add_arguments(actions.add_parser("pull", help=summary, description=summary))


def run(options: argparse.Namespace) -> int:
    actions = {"list": list_sandboxes, "check": check_sandbox, "pull": pull_images, "cleanup": sandbox_cleanup.run}
    return actions[options.action](options)


def list_sandboxes(options: argparse.Namespace) -> int:
    """One line per sandbox; a broken one with its reason."""
    return print_plugins("agentrl.sandboxes")


def check_sandbox(options: argparse.Namespace) -> int:
    """One line per check; exit code 1 where one failed."""
    return asyncio.run(_check(options))


def pull_images(options: argparse.Namespace) -> int:
    """Exit code 1 where one can't be had."""
    overrides = [word for word in options.images if word.startswith(PREFIX)]
    images = [word for word in options.images if word not in overrides]
    if not images:
        raise ConfigError("name an image to pull, too; there are only options")
    return sandbox_pull.run(_backend(options.name, overrides), images)


async def _check(options: argparse.Namespace) -> int:
    from agentrl.testing.sandbox import Verdict, all_checks, check

    unknown = set(options.only) - {one.name for one in all_checks()}
    if unknown:
        raise ConfigError(f"--only {', '.join(sorted(unknown))}: no such check; without --only all are shown")
    backend = _backend(options.name, options.overrides)
    state = await backend.preflight()
    for line in state.not_enforced:
        print(visible(f"– not enforced here: {line}"))
    if not state.is_closed:
        print("– it isn't closed: no escape is tried, since it would work")
    results = await check(backend, image=options.image, only=options.only, on_result=_print)
    count = {verdict: sum(result.verdict is verdict for result in results) for verdict in Verdict}
    print(", ".join(f"{number} {verdict}" for verdict, number in count.items()))
    return 1 if count[Verdict.FAILED] else 0


def _backend(name: str, overrides: list[str]) -> SandboxBackend:
    """Raises ConfigError, PluginError."""
    words = [override.partition("=") for override in overrides]
    given = {key.removeprefix(PREFIX): value for key, _, value in words}
    try:
        config = SandboxConfig(backend=name, options=given)
    except ValidationError as error:
        raise ConfigError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
    return plugins.sandbox(name)(config.options_of(name), run="check")


def _print(result: Result) -> None:
    line = f"{MARKS[result.verdict]} {result.check.name:22} {result.seconds:5.1f} s  {result.check.shows}"
    print(visible(line), flush=True)
    if result.note:
        print(f"  {one_line(result.note)[:600]}", flush=True)
