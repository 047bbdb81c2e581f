"""`agentrl train --env NAME key=value …`, and `agentrl train --resume RUN`"""

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
    parser.add_argument("--resume", metavar="RUN", help="go on with a run that was stopped: its id or folder name")
    add_db_argument(parser)


def run(options: argparse.Namespace) -> int:
    config = resumed_config(options.resume, options, "train") if options.resume else config_of(options)
    if config is None:
        return 0
    need_extra("train")
    from agentrl.run import resume, train

    with Display(config.train.steps) as display:
        work = resume(config, display, options.resume) if options.resume else train(config, display)
        summary = run_async(work)
    print("\n".join(closing_lines(summary)))
    command = "rollout" if config.is_played else "eval"  # what nobody measured yet
    print(f"next: agentrl {command} --env {config.env.name} model.path={summary.paths['checkpoint']}")
    return 0
