"""`agentrl view`: look at runs, steps, groups and every token in the browser."""

from __future__ import annotations

import argparse

from agentrl.cli.common import add_db_argument, existing_database
from agentrl.errors import ConfigError

PORT = 8123


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_db_argument(parser)
    parser.add_argument("--port", type=int, default=PORT, help=f"of 127.0.0.1; 0: any free one ({PORT})")


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    try:
        from agentrl.view.serve import serve
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing; install it with: pip install 'agentrl[view]'") from None
    with Store.open(existing_database(options.db), read_only=True) as store:
        serve(store, options.db, options.port)
    return 0
