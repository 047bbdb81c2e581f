"""`agentrl rollout --env NAME -n 3`: play and print transcripts."""

from __future__ import annotations

import argparse

from agentrl.cli.common import add_config_arguments, config_of, need_extra, run_async
from agentrl.cli.display import Display, closing_lines
from agentrl.cli.transcript import transcript


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    parser.add_argument("-n", dest="num_tasks", type=int, default=1, help="how many tasks to play (1)")
    parser.add_argument("--split", default="held_out", help="which tasks: train or held_out (held_out)")


def run(options: argparse.Namespace) -> int:
    config = config_of(options)
    if config is None:
        return 0
    need_extra("train")
    from agentrl.run import rollout

    with Display() as display:
        summary, groups = run_async(rollout(config, display, options.num_tasks, options.split))
    for group in groups:
        for sample in group.samples:
            print(transcript(sample))
    print("\n".join(closing_lines(summary)))
    print(f"next: agentrl show {groups[0].samples[0].trajectory.id[:8]} --db {summary.paths['database']}")
    return 0
