"""The tool of the parity environment."""

from __future__ import annotations

from agentrl.tool import tool


@tool
def count_ones(bits: str) -> str:
    """Count the ones of a row of bits."""
    return str(bits.count("1"))
