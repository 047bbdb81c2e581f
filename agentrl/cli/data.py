"""`agentrl data NAME …`: generators of data, found by entry points in the group agentrl.data."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from agentrl import plugins
from agentrl.cli.columns import print_plugins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a generator, or `list`")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="its own options; --help tells them")


def run(options: argparse.Namespace) -> int:
    """A generator is a function: the words after its name → exit code."""
    if options.name == "list":
        return print_plugins("agentrl.data")
    generator: Callable[[Sequence[str]], int] = plugins.load("agentrl.data", options.name)
    return generator(options.words)
