"""Tables on the screen."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl import plugins
from agentrl.visible import one_line, visible


def print_table(head: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
    """Columns as wide as what is in them; numbers to the right."""
    texts = [list(head), *([_text(cell) for cell in row] for row in rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(head))]
    is_number = [all(isinstance(row[place], int) for row in rows) for place in range(len(head))]
    for row in texts:
        cells = zip(row, widths, is_number, strict=True)
        print("  ".join(text.rjust(width) if right else text.ljust(width) for text, width, right in cells).rstrip())


def print_plugins(group: str) -> int:
    """One line per plugin of a group; a broken one with its reason."""
    for info in plugins.describe(group):
        name, distribution, version, state = map(visible, info)
        print(f"{name:20} {distribution:20} {version:10} {state}")
    return 0


def _text(cell: str | int) -> str:
    return f"{cell:,}" if isinstance(cell, int) else one_line(cell)
