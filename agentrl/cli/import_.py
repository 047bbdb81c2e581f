"""`agentrl import FILE --model MODEL`: conversations, ids or whole trajectories from a file, as a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.cli.common import add_db_argument, need_extra, run_async
from agentrl.visible import one_line

if TYPE_CHECKING:
    from agentrl.rollout.renderer import Renderer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="FILE", type=Path, help="a .jsonl or .parquet file, or a `datasets` folder")
    add_db_argument(parser)
    parser.add_argument("--model", help="that will learn messages or ids: a folder, a Hugging Face id, smollm2")
    parser.add_argument(
        "--renderer-mode", choices=("append", "rerender"), default="append", help="of rollout.renderer_mode (append)"
    )
    parser.add_argument("--name", help="of the new run (the file's)")


def run(options: argparse.Namespace) -> int:
    from agentrl.exchange.importing import bring_in
    from agentrl.store.store import Store

    folder, renderer = _model(options)
    with Store.open(options.db) as store:
        done = run_async(bring_in(store, options.source, model=folder, renderer=renderer, name=options.name))
        name = store.find_run(done.run).name
    forms = ", ".join(f"{num:,} from {form}" for form, num in done.forms.items())
    print(f"imported {done.forms.total():,} trajectories ({forms}; {done.num_rewards:,} with a reward)")
    print(f"  run       {done.run} ({one_line(name)}) in {options.db}")
    print(f"next: agentrl sft --env ENV sft.run={done.run} model.path={options.model or 'MODEL'}")
    return 0


def _model(options: argparse.Namespace) -> tuple[Path | None, Renderer | None]:
    if options.model is None:
        return None, None
    need_extra("train")
    from agentrl.config import ModelConfig
    from agentrl.rollout.renderer import Renderer
    from agentrl.wiring import pretrained_folder

    folder = pretrained_folder(ModelConfig(path=options.model))
    return folder, Renderer.from_pretrained(str(folder), mode=options.renderer_mode)
