"""`agentrl sft --env NAME key=value …`"""

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
    from agentrl.run import sft

    with Display() as display:
        summary = run_async(sft(config, display))
    print("\n".join(closing_lines(summary)))
    print(f"next: agentrl train --env {config.env.name} model.path={summary.paths['checkpoint']}")
    return 0
