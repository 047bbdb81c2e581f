"""What the agent changed, as a patch; and which of it a patch may not change."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from posixpath import join, normpath
from typing import Any

PROTECTED = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg"),
    *("pyproject.toml", "sitecustomize.py", "usercustomize.py", "*.pth", "*.egg-link", "*.egg", "*.egg-info"),
    *("*.dist-info", "*.py[co]", "__pycache__", ".git*", ".hg", "pyvenv.cfg", "*.pyd"),
)
"""Names of files or folders, anywhere: what tells pytest how to test, or what Python runs unasked."""
TEST_STACK = {
    *("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup", "tomli", "attr"),
    *("attrs", "hypothesis", "_hypothesis_pytestplugin", "xdist", "execnet", "mock", "nose", "coverage", "colorama"),
    *("importlib_metadata", "zipp", "typing_extensions", "atomicwrites", "toml", "more_itertools", "wcwidth"),
    *("pytest_asyncio", "pytest_cov", "pytest_mock", "pytest_timeout", "pytest_django"),
}
FORBIDDEN_MODULES = TEST_STACK | set(sys.stdlib_module_names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One file that a patch changes."""

    path: str
    is_new: bool
    leads_to: str | None
    """Of a symbolic link."""

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Change:
        return cls(path=told["path"], is_new=told["status"] == "A", leads_to=told["leads_to"])


def normalised(patch: bytes) -> bytes:
    """With one newline at its end, whoever cut it off; nothing else is touched."""
    return patch if patch.endswith(b"\n") or not patch else patch + b"\n"


def not_allowed(
    changes: Iterable[Change], *, files: Collection[str], test_files: Collection[str], allowed: Collection[str]
) -> dict[str, str]:
    """path → why, of the changes that are taken back before grading.

    `files`: what the tree holds without the patch; `allowed`: what the gold patch touches, which may be changed.
    """
    changes = list(changes)
    known = {place for path in files for place in _places(path)}
    packages = {path.rpartition("/")[0] for path in [*files, *(change.path for change in changes)]
                if path.rpartition("/")[2] == "__init__.py"}  # fmt: skip
    reasons = {}
    for change in changes:
        reason = _reason(change, test_files, packages, known)
        if reason is not None and (change.path not in allowed or change.path in test_files):
            reasons[change.path] = reason
    return reasons


def _reason(change: Change, test_files: Collection[str], packages: set[str], known: set[str]) -> str | None:
    if change.path in test_files or any(test.startswith(change.path + "/") for test in test_files):
        return "the tests are the task's own"
    if any(fnmatchcase(part, name) for part in change.path.split("/") for name in PROTECTED):
        return "it has a say in how the tests run"
    if change.leads_to is not None and _leads_out(change.path, change.leads_to):
        return "the link leads out of the repository"
    if change.is_new and _shadows(change.path, packages, known):
        return "it would stand in for a module of Python or of pytest"
    return None


def _leads_out(path: str, target: str) -> bool:
    whole = normpath(join(path, "..", target))
    return target.startswith("/") or whole == ".." or whole.startswith("../") or ".git" in whole.split("/")


def _shadows(path: str, packages: set[str], known: set[str]) -> bool:
    """Would a folder of the path, put on sys.path, bring a module of a name that is taken?"""
    for place in _places(path):
        folder, _, name = place.rpartition("/")
        is_in_package = any(each in packages for each in _places(folder))
        if not is_in_package and place not in known and name.split(".")[0] in FORBIDDEN_MODULES:
            return True
    return False


def _places(path: str) -> list[str]:
    """The path and the folders that it lies in: a, a/b, a/b/c.py."""
    parts = path.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts) + 1)]
