"""A calculator over exact rationals: an AST walker, no eval, with limits on size and exponent."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from fractions import Fraction

from agentrl.tool import tool

MAX_CHARACTERS = 200
MAX_EXPONENT = 64
MAX_BITS = 2048
"""Of a numerator or denominator: longer results are refused before they cost memory."""

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return format_number(evaluate(expression))


def evaluate(expression: str, max_operations: int | None = None) -> Fraction:
    """The exact value of an expression of + - * / ** and parentheses.

    Raises ValueError for anything else, for more than `max_operations` binary operations, and past the limits.
    """
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"expression longer than {MAX_CHARACTERS} characters")
    try:
        body = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, MemoryError, RecursionError, ValueError):
        raise ValueError(f"not an arithmetic expression: {expression!r}") from None
    operations = sum(isinstance(node, ast.BinOp) for node in ast.walk(body))
    if max_operations is not None and operations > max_operations:
        raise ValueError(f"{operations} operations in one call; at most {max_operations} allowed")
    return _walk(body, expression)


def format_number(value: Fraction) -> str:
    """`7`, `-7` or `7/2`."""
    return str(value)


def _walk(node: ast.expr, source: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # The decimal text, not the float: 0.1 is one tenth here.
        return _bounded(Fraction((ast.get_source_segment(source.strip(), node) or "").replace("_", "")))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        operand = _walk(node.operand, source)
        return operand if isinstance(node.op, ast.UAdd) else -operand
    if isinstance(node, ast.BinOp):
        return _bounded(_binary(node.op, _walk(node.left, source), _walk(node.right, source)))
    raise ValueError(f"only numbers, + - * / ** and parentheses are allowed, not {type(node).__name__}")


def _binary(op: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(op, ast.Pow):
        return _power(left, right)
    if type(op) not in _BINARY:
        raise ValueError(f"operator {type(op).__name__} is not allowed")
    if isinstance(op, ast.Div) and right == 0:
        raise ValueError("division by zero")
    return _BINARY[type(op)](left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise ValueError(f"the exponent must be a whole number of at most {MAX_EXPONENT}")
    if base == 0 and exponent < 0:
        raise ValueError("division by zero")
    return Fraction(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError(f"the number is too long (over {MAX_BITS} bits)")
    return value
