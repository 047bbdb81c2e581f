"""Small faults that can be put into Python source: each changes one line, in its own place, and nothing else."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

COMPARISONS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in",
    "not in": "in",
}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "*": "//", "/": "*", "//": "*", "%": "//"}
LEAVES = (ast.Raise, ast.Return, ast.Continue, ast.Break)
"""What a guard does."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One change of one line."""

    kind: str
    path: str
    line: int
    """From 1."""
    start: int
    end: int
    """Bytes of the line that are replaced, [start, end)."""
    text: str
    """What stands there then."""
    where: str
    """Dotted name of the function, class or module that it is in."""
    doc: str
    """Its documentation; may be empty."""

    def put_into(self, source: str) -> str:
        """The source with the fault."""
        lines = source.split("\n")
        old = lines[self.line - 1].encode()
        lines[self.line - 1] = (old[: self.start] + self.text.encode() + old[self.end :]).decode()
        return "\n".join(lines)

    def makes_another_program(self, source: str) -> bool:
        """Parses the source twice."""
        try:
            return ast.dump(ast.parse(self.put_into(source))) != ast.dump(ast.parse(source))
        except SyntaxError:
            return False

    def patch(self, source: str) -> str:
        """What brings it in, as git's diff."""
        before, after = source.splitlines(keepends=True), self.put_into(source).splitlines(keepends=True)
        diff = difflib.unified_diff(before, after, fromfile=f"a/{self.path}", tofile=f"b/{self.path}")
        return f"diff --git a/{self.path} b/{self.path}\n" + "".join(diff)


class _Place(NamedTuple):
    where: str
    doc: str


class _Edit(NamedTuple):
    kind: str
    node: ast.expr | ast.stmt
    start: int
    end: int
    text: str


def faults_of(path: str, source: str) -> list[Fault]:
    """All that can be put into a file, in its order; none into one whose lines can't be told apart.

    Some of them make no program, or the same one: `makes_another_program` tells, for as long as it takes to parse.
    """
    if not source.endswith("\n") or "\r" in source or "\f" in source:
        return []
    tree, lines = ast.parse(source), source.split("\n")
    module = path.removesuffix(".py").removeprefix("src/").removesuffix("/__init__").replace("/", ".")
    found = {}
    for node, place in _walk(tree, _Place(module, ast.get_docstring(tree) or "")):
        for edit in _edits(node, lines):
            fault = Fault(
                kind=edit.kind, path=path, line=edit.node.lineno, start=edit.start, end=edit.end, text=edit.text,
                where=place.where, doc=place.doc,
            )  # fmt: skip
            found[fault.line, fault.start, fault.end, fault.text] = fault
    return sorted(found.values(), key=lambda fault: (fault.line, fault.start, fault.end, fault.text))


def _walk(node: ast.AST, place: _Place) -> Iterator[tuple[ast.AST, _Place]]:
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = _Place(f"{place.where}.{child.name}", ast.get_docstring(child) or "")
        yield child, inner
        yield from _walk(child, inner)


def _edits(node: ast.AST, lines: list[str]) -> Iterator[_Edit]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _operator("comparison", node.left, node.comparators[0], COMPARISONS, lines)
    elif isinstance(node, ast.BinOp):
        yield from _operator("arithmetic", node.left, node.right, ARITHMETIC, lines)
    elif isinstance(node, ast.BoolOp) and len(node.values) == 2:
        yield from _operator("and/or", node.values[0], node.values[1], {"and": "or", "or": "and"}, lines)
    elif isinstance(node, ast.Constant):
        yield from _constant(node)
    elif isinstance(node, ast.Slice):
        yield from _off_by_one([node.lower, node.upper], lines)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        yield from _off_by_one(node.args[:2], lines)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _condition(node, lines)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _replaced("dropped call", node, "pass")


def _operator(kind: str, left: ast.expr, right: ast.expr, others: dict[str, str], lines: list[str]) -> Iterator[_Edit]:
    """Between two operands on one line; brackets there are left alone."""
    if left.end_lineno != right.lineno or left.end_lineno is None or left.end_col_offset is None:
        return
    start, end = left.end_col_offset, right.col_offset
    between = lines[right.lineno - 1].encode()[start:end].decode()
    operator = between.strip(" ()")
    if operator in others:
        yield _Edit(kind, right, start, end, between.replace(operator, others[operator]))


def _constant(node: ast.Constant) -> Iterator[_Edit]:
    if isinstance(node.value, bool):
        yield from _replaced("constant", node, str(not node.value))
    elif isinstance(node.value, int):
        yield from _replaced("constant", node, str(node.value + 1))
        if node.value > 0:
            yield from _replaced("constant", node, str(node.value - 1))


def _off_by_one(bounds: list[ast.expr | None] | list[ast.expr], lines: list[str]) -> Iterator[_Edit]:
    for bound in bounds:
        if bound is not None and not isinstance(bound, ast.Constant | ast.Starred):
            yield from _replaced("off by one", bound, f"({_text(bound, lines)}) + 1")
            yield from _replaced("off by one", bound, f"({_text(bound, lines)}) - 1")


def _condition(node: ast.If | ast.While | ast.IfExp, lines: list[str]) -> Iterator[_Edit]:
    test = node.test
    yield from _replaced("negated condition", test, f"(not ({_text(test, lines)}))")
    if isinstance(node, ast.If) and len(node.body) == 1 and not node.orelse and isinstance(node.body[0], LEAVES):
        yield from _replaced("dropped guard", test, "False")


def _replaced(kind: str, node: ast.expr | ast.stmt, text: str) -> Iterator[_Edit]:
    if node.lineno == node.end_lineno and node.end_col_offset is not None:
        yield _Edit(kind, node, node.col_offset, node.end_col_offset, text)


def _text(node: ast.expr, lines: list[str]) -> str:
    return lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode()
