"""`agentrl env list`: the environments that are installed, and whether they load."""

from __future__ import annotations

import argparse

from agentrl import plugins


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["list"], help="list: name, distribution, version, state")


def run(options: argparse.Namespace) -> int:
    for info in plugins.describe("agentrl.envs"):
        print(f"{info.name:20} {info.distribution:20} {info.version:10} {info.state}")
    return 0
