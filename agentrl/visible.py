"""Text of models, tools and servers, made harmless for terminals and log files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby


def visible(text: str) -> str:
    """Text that can't move the cursor, ring the bell or turn the line around; line breaks stay.

    Whatever is not printable (control characters, bidirectional overrides, lone surrogates) is shown escaped.
    """
    return "".join(piece for piece, _ in pieces(text))


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """`visible` in pieces: (text, was it escaped?), so that what was escaped can be marked."""
    for is_shown, run in groupby(text, _is_shown):
        piece = "".join(run)
        yield piece if is_shown else "".join(map(_escaped, piece)), not is_shown


def one_line(text: str) -> str:
    """`visible`, with line breaks and runs of blanks as one blank each."""
    return visible(" ".join(text.split()))


def _is_shown(character: str) -> bool:
    return character.isprintable() or character == "\n"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
