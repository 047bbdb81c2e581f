"""`agentrl doctor --model X`: what a model's chat template does, and whether the model can be trained with it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl import plugins
from agentrl.cli.common import need_extra
from agentrl.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from agentrl.rollout.renderer import Renderer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        required=True,
        metavar="X",
        help="what model.path takes: tiny, smollm2, a folder or a Hugging Face id",
    )
    parser.add_argument("--template", type=Path, metavar="FILE", help="try this chat template (jinja) with the model")
    parser.add_argument("--env", metavar="NAME", help="with this environment's tools, not with a sample tool")
    parser.add_argument("--json", action="store_true", help="print JSON: for scripts")


def run(options: argparse.Namespace) -> int:
    """Exit code 0 where the model can be trained in at least one mode, else 2.

    With an environment: with its tools; without: with tools or without them.
    """
    need_extra("train")
    from agentrl.cli.diagnosis import print_diagnosis
    from agentrl.rollout.probe import probe_template

    tools = _tools(options.env)
    try:
        renderer = _renderer(options.model, options.template)
        facts = probe_template(renderer, tools)
    except ModelError as error:
        raise ConfigError(str(error)) from error
    is_trainable = facts.is_trainable if options.env is None else facts.is_trainable_with_tools
    if options.json:
        found = {"model": options.model, "template_hash": renderer.template_hash, "stop_ids": renderer.stop_ids}
        print(json.dumps(found | {"is_trainable": is_trainable, "template": facts.as_json()}, indent=2))
    else:
        print_diagnosis(options.model, renderer, facts)
    return 0 if is_trainable else 2


def _tools(env: str | None) -> list[dict[str, Any]]:
    """Specs. Raises ConfigError, PluginError."""
    from agentrl.cli.compose import load_config
    from agentrl.rollout.probe import TOOL

    if env is None:
        return [TOOL]
    return [tool.spec() for tool in plugins.environment(env)(load_config(env, []).env.options).tools]


def _renderer(model: str, template: Path | None) -> Renderer:
    """Raises ModelError, TemplateError, ConfigError."""
    from agentrl.rollout.renderer import Renderer

    tokenizer, stop_ids = _tokenizer(model)
    tokenizer.name_or_path = template.name if template else model  # what errors name
    if template is not None:
        try:
            tokenizer.chat_template = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--template {template}: can't be read: {error.strerror if isinstance(error, OSError) else error}"
            ) from None
    return Renderer(tokenizer, stop_ids=stop_ids)


def _tokenizer(model: str) -> tuple[Any, list[int]]:
    """The tokenizer and the end tokens of the generation config; no weights are loaded."""
    from agentrl.rollout.tokenizer import load_tokenizer
    from agentrl.train import smollm2, tiny

    if model == tiny.NAME:  # its template and control tokens are the same for all environments
        return tiny.build_tokenizer([]), []
    if model == smollm2.NAME:
        return smollm2.load_tokenizer(), []
    folder = Path(model).expanduser()
    if model.startswith((".", "/", "~")) and not folder.is_dir():
        raise ConfigError(f"--model {model}: no folder there; check the path")
    return load_tokenizer(str(folder) if folder.is_dir() else model)
