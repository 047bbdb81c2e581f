"""The text of each id, by a model folder's tokenizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentrl.errors import ModelError

Decode = Callable[[Sequence[int]], str]
LOGPROB_BOUNDS = (-0.1, -1.0, -3.0)
"""A sampled id is likely from the first on, less so from the second and the third, else rare. NaN is rare."""


def decoder(folder: str | None) -> Decode | None:
    """What shows ids as text; None where the model folder isn't there. Raises ModelError where it has no tokenizer."""
    if folder is None or not os.path.isdir(folder):  # False too for what can't be a path, where Path raises
        return None
    file = Path(folder) / "tokenizer.json"
    if file.is_file():
        return _by_file(str(file), file.stat().st_mtime_ns)
    from agentrl.rollout.renderer import Renderer  # knows all forms, and takes seconds to load

    return Renderer.from_pretrained(folder).decode


def likelihood(logprob: float) -> int:
    """0 for a likely id, up to 3 for a rare one, by LOGPROB_BOUNDS."""
    return next((place for place, bound in enumerate(LOGPROB_BOUNDS) if logprob >= bound), len(LOGPROB_BOUNDS))


@lru_cache(maxsize=4)
def _by_file(path: str, changed_ns: int) -> Decode:
    from tokenizers import Tokenizer

    try:
        tokenizer: Any = Tokenizer.from_file(path)
    except Exception as error:  # the library has no class of its own
        raise ModelError(f"{path} is no tokenizer that can be read: {error}") from error
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))
