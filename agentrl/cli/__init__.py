"""The console script `agentrl`: one file per command."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence
from keyword import iskeyword

from agentrl.errors import AgentRLError
from agentrl.interrupts import Terminated
from agentrl.place import place_of, place_text
from agentrl.run_log import log_path
from agentrl.urls import hide_passwords
from agentrl.visible import one_line

COMMANDS = {
    "train": "train on an environment",
    "eval": "measure a model on held-out tasks",
    "rollout": "play a few tasks and print the transcripts",
    "sft": "warm start: imitate the environment's oracle",
    "runs": "list the runs of a database: status, last metrics, folder",
    "find": "find stored trajectories by run, environment, ending, reward, step and text",
    "show": "print a stored trajectory, token by token",
    "why": "tell why a rollout got its reward, and who trained on it",
    "db": "look after a database: stats, verify, gc, migrate",
    "replay": "look at, play, grade or score a stored trajectory again, fork it, or recompute a step",
    "view": "look at runs, steps, groups and every token in the browser",
    "export": "write stored trajectories to a file: for SFT, as preferences, or whole",
    "import": "read conversations, ids or whole trajectories from a file, as a run",
    "doctor": "what a model's chat template does, and whether it can be trained",
    "env": "list, make, check and validate environments",
    "data": "make data: tasks from packages, by generators that are plugins",
    "sandbox": "list sandboxes, check what they hold on this machine, clean up after dead runs",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. 0: done, 1: it failed, 2: the command or config is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(prog="agentrl", description="Multi-turn RL for LLM agents.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((a for a in arguments if not a.startswith("-")), None)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--debug", action="store_true", help="show tracebacks of errors")
        if name == chosen:  # the others stay unloaded: torch takes seconds to import
            module = importlib.import_module(f"agentrl.cli.{name}_" if iskeyword(name) else f"agentrl.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    words = [word for word in arguments if word != "--debug"]
    options, rest = parser.parse_known_args(words)
    if rest and (any(word.startswith("-") for word in rest) or not hasattr(options, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:  # key=value after an option: argparse takes only the first row of them
        options.overrides += rest
    options.debug = "--debug" in arguments
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    try:
        result: int = options.run(options)
        return result
    except (KeyboardInterrupt, Terminated) as stop:
        print(f"agentrl {options.command}: stopped", file=sys.stderr)
        return 130 if isinstance(stop, KeyboardInterrupt) else 143
    except BrokenPipeError:  # the reader of our output has gone, e.g. `head`
        sys.stderr.close()
        return 1
    except Exception as error:
        if options.debug:
            traceback.print_exception(error)
        print(error_line(options.command, error), file=sys.stderr)
        return error.exit_code if isinstance(error, AgentRLError) else 1


def error_line(command: str, error: Exception) -> str:
    """What, where in the run, and where more is to be read."""
    is_known = isinstance(error, AgentRLError)
    what = str(error) if is_known else f"unexpected {type(error).__name__}: {error}"
    where = place_text(place_of(error))
    log = log_path(error)
    more = f"; traceback in {log}" if log else "" if is_known else "; --debug shows the traceback"
    return f"agentrl {command}: error: {hide_passwords(one_line(what))}{f' [{where}]' if where else ''}{more}"
