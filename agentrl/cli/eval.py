"""`agentrl eval --env NAME model.path=… key=value …`"""

from __future__ import annotations

import argparse

from agentrl.cli.common import add_config_arguments, config_of, need_extra, run_async
from agentrl.cli.display import Display, closing_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)


def run(options: argparse.Namespace) -> int:
    config = config_of(options)
    if config is None:
        return 0
    need_extra("train")
    from agentrl.run import evaluate_model

    with Display() as display:
        summary = run_async(evaluate_model(config, display))
    print("\n".join(closing_lines(summary)))
    return 0
