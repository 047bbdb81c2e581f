"""What becomes of an error at the boundary of a rollout: a text for the record, and work that is done all the same."""

from __future__ import annotations

import traceback

MAX_ERROR_CHARACTERS = 2000
_NUM_FRAMES = 4
_MAX_CAUSES = 5


def describe(where: str, error: BaseException) -> str:
    """`where raised Type: text`, its causes, and the last frames of the first cause's traceback."""
    first = error
    for _ in range(_MAX_CAUSES):  # a plugin's error may be its own cause
        first = first.__cause__ or first
    frames = "".join(traceback.format_tb(first.__traceback__, limit=-_NUM_FRAMES)).rstrip()
    return f"{where} raised {with_causes(error)}\n{frames}".rstrip()[:MAX_ERROR_CHARACTERS]


def with_causes(error: BaseException) -> str:
    """`Type: text; caused by Type: text`, from the error down its chain of causes."""
    texts: list[str] = []
    link: BaseException | None = error
    while link is not None and len(texts) < _MAX_CAUSES:
        texts.append(f"{type(link).__name__}: {_text(link)}")
        link = link.__cause__
    return "; caused by ".join(texts)


def _text(error: BaseException) -> str:
    try:
        return str(error)[:MAX_ERROR_CHARACTERS]
    except Exception as broken:  # plugin code may break even here
        return f"(its text can't be had: {type(broken).__name__})"
