"""Where a model's tokenizer comes from."""

from __future__ import annotations

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
