"""Where a model's tokenizer comes from."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ModelError


def load_tokenizer(path: str) -> tuple[Any, list[int]]:
    """The tokenizer of a model folder or hub id, and the end tokens of its generation config. Raises ModelError."""
    from transformers import AutoTokenizer, GenerationConfig  # heavy: not for environment authors

    folder = Path(path)
    if folder.is_dir() and not any(file for name in ("*token*", "vocab*") for file in folder.glob(name)):
        raise ModelError(f"{path} has no tokenizer: copy the model's tokenizer.json and tokenizer_config.json into it")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} has no tokenizer that transformers can load: {error}") from error
    try:
        eos = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:  # models without a generation config stop at the tokenizer's end token
        eos = None
    return tokenizer, eos if isinstance(eos, list) else [] if eos is None else [eos]


def vocabulary_hash(folder: str | Path) -> str | None:
    """Of which text each id stands for, by a model folder's tokenizer.json; None where there is none to read.

    Equal for every copy of a tokenizer, also one that was saved anew.
    """
    try:
        tokenizer = json.loads((Path(folder) / "tokenizer.json").read_bytes())
        added = sorted((token["id"], token["content"]) for token in tokenizer["added_tokens"])
        text = json.dumps([tokenizer["model"]["vocab"], added], sort_keys=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def recorded_vocabulary(config: Mapping[str, Any]) -> str | None:
    """The same of what a run was rendered with, by its stored config; None where that isn't there any more."""
    known: str | None = config.get("vocabulary")
    return known or vocabulary_hash(config.get("model_folder") or "")
