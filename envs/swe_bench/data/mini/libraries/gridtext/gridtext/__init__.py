"""Tables as plain text, Markdown and CSV."""

from gridtext.styles import STYLES, Style
from gridtext.table import Table

__all__ = ["STYLES", "Style", "Table"]
__version__ = "0.4.0"
