"""`agentrl sandbox cleanup [NAME]`: remove what dead runs left on this machine."""

from __future__ import annotations

import argparse

from agentrl import plugins
from agentrl.cli.common import run_async
from agentrl.errors import AgentRLError
from agentrl.visible import one_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="one backend; all that can be used here")


def run(options: argparse.Namespace) -> int:
    """One line per backend. Boxes of living runs are left alone. Raises what keeps a backend that was named."""
    names = [options.name] if options.name else plugins.names("agentrl.sandboxes")
    for name in names:
        try:
            print(f"{name}: {run_async(_sweep(name))} boxes of dead runs removed")
        except AgentRLError as error:
            if options.name:
                raise
            print(f"{name}: not looked at: {one_line(str(error))}")
    return 0


async def _sweep(name: str) -> int:
    kind = plugins.sandbox(name)
    return await kind(kind.Options(), run="cleanup").sweep()
