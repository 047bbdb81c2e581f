"""`agentrl eval --env NAME model.path=… key=value …`, and `agentrl eval --resume RUN`"""

from __future__ import annotations

import argparse

from agentrl.cli.common import (
    add_config_arguments,
    add_db_argument,
    config_of,
    need_extra,
    resumed_config,
    run_async,
)
from agentrl.cli.display import Display, closing_lines


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("--resume", metavar="RUN", help="go on with an evaluation that was stopped: id or folder name")
    add_db_argument(parser)


def run(options: argparse.Namespace) -> int:
    config = resumed_config(options.resume, options, "eval") if options.resume else config_of(options)
    if config is None:
        return 0
    need_extra("train")
    from agentrl.run import evaluate_model, resume_evaluation

    with Display() as display:
        is_resumed = options.resume is not None
        work = resume_evaluation(config, display, options.resume) if is_resumed else evaluate_model(config, display)
        summary = run_async(work)
    print("\n".join(closing_lines(summary)))
    return 0
