"""Tokens in colour: by mask, logprob or version. Without a terminal, or with NO_COLOR set, the same text plain.

Whatever is printed goes through `visible` here, once: colours come from us alone, never from a model, tool or data set.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from agentrl.replay.tokens import LOGPROB_BOUNDS, likelihood
from agentrl.visible import visible

BY = ("mask", "logprob", "version")
NOT_SAMPLED = "dim"
SAMPLED = "green"
LIKELIHOODS = ("green", "yellow", "magenta", "bold red")
"""By `tokens.likelihood`, the likely first."""
VERSIONS = ("green", "cyan", "yellow", "magenta", "blue", "red")
"""By version, over and over."""
Style = Callable[[float, int], str]
"""(logprob, version) of a sampled id → rich style."""


def style_by(kind: str) -> Style:
    """The style of sampled ids by one of BY."""
    styles: dict[str, Style] = {
        "mask": lambda logprob, version: SAMPLED,
        "logprob": lambda logprob, version: LIKELIHOODS[likelihood(logprob)],
        "version": lambda logprob, version: SAMPLED if version < 0 else VERSIONS[version % len(VERSIONS)],
    }
    return styles[kind]


def legend(kind: str) -> Text:
    """What the colours mean, in these colours."""
    entries = {
        "mask": [("sampled (mask 1)", SAMPLED)],
        "logprob": list(zip([*(f"logprob ≥ {bound:g}" for bound in LOGPROB_BOUNDS), "less"], LIKELIHOODS, strict=True)),
        "version": [(f"version {n}", style) for n, style in enumerate(VERSIONS)] + [("and again", "")],
    }
    parts = [("colours: ", ""), ("not sampled (mask 0)", NOT_SAMPLED)]
    return joined([*parts, *((f", {name}", style) for name, style in entries[kind])])


def joined(parts: list[tuple[str, str]]) -> Text:
    """One line of (text, style) pairs, with control characters made visible."""
    return Text.assemble(*((visible(text), style) for text, style in parts), end="")


class Printer:
    """Prints lines; in colour where there is a terminal that shows it and NO_COLOR is not set."""

    def __init__(self) -> None:
        colours = None if os.environ.get("NO_COLOR") else "auto"
        self._console = Console(highlight=False, markup=False, emoji=False, color_system=colours)  # type: ignore[arg-type]

    @property
    def has_colours(self) -> bool:
        return self._console.is_terminal and self._console.color_system is not None

    def line(self, text: str | Text, style: str = "") -> None:
        """One line (or several, where the text has line breaks)."""
        self._console.print(joined([(text, style)]) if isinstance(text, str) else text, soft_wrap=True)
