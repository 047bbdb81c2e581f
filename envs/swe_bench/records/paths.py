"""Which files a patch touches, and which files tests are in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_LETTERS = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def touched(patch: str) -> tuple[str, ...]:
    """Paths of a git diff, both names of what it renames; in their order, each once."""
    found: dict[str, None] = {}
    for header in _headers(patch):
        found.update(dict.fromkeys(_named(header)))
    return tuple(found)


def files_of(tests: Iterable[str]) -> tuple[str, ...]:
    """The files in names of pytest's form, path::test; in their order, each once."""
    return tuple(dict.fromkeys(name.split("::")[0] for name in tests if "::" in name))


def are_of_pytest(tests: Iterable[str]) -> bool:
    """Is each name a path to a Python file and a test in it?"""
    return all(re.match(r"[^:\s]+\.py::", name) for name in tests)


def _headers(patch: str) -> Iterator[list[str]]:
    """For each file the lines ahead of its first hunk: what follows may look like anything."""
    for section in re.split(r"^(?=diff --git )", patch, flags=re.M):
        if section.startswith("diff --git "):
            yield re.split(r"^@@ |^GIT binary patch", section, maxsplit=1, flags=re.M)[0].splitlines()


def _named(header: list[str]) -> Iterator[str]:
    names = [name for line in header[1:] for name in _of_line(line)]
    if not names:  # a mode, or an empty file: only the first line names it
        first, second = _halves(header[0].removeprefix("diff --git "))
        names = [first, second]
    yield from (name for name in names if name)


def _of_line(line: str) -> Iterator[str]:
    for prefix in ("rename from ", "rename to ", "copy to "):
        if line.startswith(prefix):
            yield _unquoted(line.removeprefix(prefix))
    for prefix in ("--- ", "+++ "):
        name = _unquoted(line.removeprefix(prefix).split("\t")[0].rstrip("\r"))
        if line.startswith(prefix) and name != "/dev/null":
            yield _bare(name)


def _halves(names: str) -> tuple[str, str]:
    """`a/x b/x`: the two are the same but for the first letter."""
    if names.startswith('"'):
        return (_bare(_unquoted(names.rsplit(' "', 1)[0])),) * 2
    middle = len(names) // 2
    return _bare(names[:middle]), _bare(names[middle + 1 :])


def _bare(name: str) -> str:
    return name[2:] if name[:2] in ("a/", "b/") else name


def _unquoted(name: str) -> str:
    """git writes names with odd characters as C does."""
    if not (name.startswith('"') and name.endswith('"') and len(name) > 1):
        return name
    return _ESCAPE.sub(_meant, name[1:-1].encode()).decode("utf-8", "surrogateescape")


def _meant(match: re.Match[bytes]) -> bytes:
    code = match[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _LETTERS.get(code, code)
