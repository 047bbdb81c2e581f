"""The console script `agentrl`: one file per command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from agentrl.errors import AgentRLError

COMMANDS = {
    "train": "train on an environment",
    "eval": "measure a model on held-out tasks",
    "rollout": "play a few tasks and print the transcripts",
    "sft": "warm start: imitate the environment's oracle",
    "show": "print a stored trajectory, token by token",
    "env": "list, make and check environments",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. 0: done, 1: it failed, 2: the command or config is wrong."""
    parser = argparse.ArgumentParser(prog="agentrl", description="Multi-turn RL for LLM agents.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((a for a in (sys.argv[1:] if arguments is None else arguments) if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        if name == chosen:  # the others stay unloaded: torch takes seconds to import
            module = importlib.import_module(f"agentrl.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    options, rest = parser.parse_known_args(arguments)
    if rest and (any(word.startswith("-") for word in rest) or not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # key=value after an option: argparse takes only the first row of them
        options.overrides += rest
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        result: int = options.run(options)
        return result
    except AgentRLError as error:
        if options.debug:
            raise
        print(f"agentrl {options.command}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"agentrl {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, e.g. `head`
        sys.stderr.close()
        return 1
