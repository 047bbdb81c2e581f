"""Text → tokens."""

import re
from collections import namedtuple

from sumtree.errors import SyntaxProblem

Token = namedtuple("Token", "kind text position")
"""Kinds: number, name, operator, end."""

_TOKEN = re.compile(
    r"""
    (?P<space>\s+ | \#[^\n]*)
  | (?P<number>(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?)
  | (?P<name>[A-Za-z_]\w*)
  | (?P<operator><=|>=|==|!=|[-+*/%^()<>,=;])
    """,
    re.VERBOSE,
)


def tokens(text):
    """All tokens, the last of which is of the kind end. Spaces, and comments from # on, are left out."""
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise SyntaxProblem("unexpected %r" % text[position], text, position)
        if match.group("space") is None:
            found.append(Token(kind(match), match.group(), position))
        position = match.end()
    found.append(Token("end", "", position))
    return found


def kind(match):
    """Which of the kinds matched."""
    return next(name for name in ("number", "name", "operator") if match.group(name) is not None)
