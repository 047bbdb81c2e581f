"""Numbers as people read them, on the terminal and in the browser; a dash where nothing was measured."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Three digits."""
    return _shown(value, ".3f")


def precise(value: float | None) -> str:
    """Four digits; a whole number as it is."""
    return str(value) if isinstance(value, int) else _shown(value, ".4f")


def signed(value: float | None) -> str:
    """Three digits and the sign: an advantage."""
    return _shown(value, "+.3f")


def share(value: float | None) -> str:
    """`0.125` → `12.5 %`."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


def duration(seconds: float) -> str:
    """`95` → `1:35`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None or value != value else format(value, form)


def compact(value: float) -> str:
    """Three significant digits, as short as can be: the label of an axis."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        return text
    return f"{value:.1e}"
