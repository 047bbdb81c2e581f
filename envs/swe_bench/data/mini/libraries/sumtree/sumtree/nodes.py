"""The tree that a text becomes. `str` of a node is text that gives the same tree."""

from collections import namedtuple

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
STRENGTH = {"=": 0, "+": 2, "-": 2, "*": 3, "/": 3, "%": 3, "^": 4, "negative": 5, **dict.fromkeys(COMPARISONS, 1)}
"""How strongly an operator binds."""
ATOM = 6


class Number(namedtuple("Number", "value")):
    """A literal."""

    strength = ATOM

    def __str__(self):
        return format_number(self.value)


class Name(namedtuple("Name", "name")):
    """A variable."""

    strength = ATOM

    def __str__(self):
        return self.name


class Negative(namedtuple("Negative", "operand")):
    """Minus in front of something."""

    strength = STRENGTH["negative"]

    def __str__(self):
        return "-" + in_brackets(self.operand, self.operand.strength < self.strength)


class Binary(namedtuple("Binary", "operator left right")):
    """Two operands with an operator between them."""

    @property
    def strength(self):
        return STRENGTH[self.operator]

    def __str__(self):
        left_is_weak = self.left.strength < self.strength
        right_is_weak = self.right.strength <= self.strength
        left, right = in_brackets(self.left, left_is_weak), in_brackets(self.right, right_is_weak)
        return "%s %s %s" % (left, self.operator, right)


class Call(namedtuple("Call", "function arguments")):
    """A function with its arguments."""

    strength = ATOM

    def __str__(self):
        return "%s(%s)" % (self.function, ", ".join(map(str, self.arguments)))


class Assignment(namedtuple("Assignment", "name value")):
    """Gives a name a value."""

    strength = STRENGTH["="]

    def __str__(self):
        return "%s = %s" % (self.name, self.value)


class Sequence(namedtuple("Sequence", "parts")):
    """Expressions one after the other."""

    strength = -1

    def __str__(self):
        return "; ".join(map(str, self.parts))


def in_brackets(node, needed):
    """A node's text, in brackets where it would be read differently without."""
    return "(%s)" % (node,) if needed else str(node)


def format_number(value):
    """Whole numbers without a point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return str(int(value))
    return repr(value)
