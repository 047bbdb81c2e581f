"""Text of models, tools and servers, made harmless for terminals and log files."""

from __future__ import annotations


def visible(text: str) -> str:
    """Text that can't move the cursor, ring the bell or turn the line around; line breaks stay.

    Whatever is not printable (control characters, bidirectional overrides, lone surrogates) is shown escaped.
    """
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def one_line(text: str) -> str:
    """`visible`, with line breaks and runs of blanks as one blank each."""
    return visible(" ".join(text.split()))


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()
