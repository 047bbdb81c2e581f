"""A package's own archive: from a path or the index, what in it is code, and what is tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath

from agentrl.errors import ConfigError

_PINNED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!_-]*)")
NO_CODE = {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "build"}
"""Folders without code of the package."""
NO_MODULES = {"setup.py", "conftest.py", "versioneer.py", "_version.py", "noxfile.py"}
DOWNLOAD_TIMEOUT_S = 300.0


def archive_beside(out: Path, sdist: str) -> Path:
    """The archive in the folder of `out`: a copy of a path, or NAME==VERSION fetched by pip where it isn't there yet.

    Raises ConfigError where it can't be had.
    """
    path = Path(sdist).expanduser()
    if path.is_file():
        return _put(path, out.parent)
    pinned = _PINNED.fullmatch(sdist)
    if pinned is None:
        raise ConfigError(f"--sdist {sdist}: no file there; name a .tar.gz, or NAME==VERSION, e.g. toolz==1.2.0")
    name, version = pinned[1].replace("-", "_").lower(), pinned[2]
    for known in sorted(out.parent.glob("*.tar.gz")):
        if known.name.replace("-", "_").lower() == f"{name}_{version}.tar.gz".lower():
            return known
    with tempfile.TemporaryDirectory() as folder:
        return _put(_download(sdist, pinned[1], Path(folder)), out.parent)


def code_files(folder: Path) -> list[str]:
    """Paths of the package's modules, sorted."""
    return [path for path in _python_files(folder) if not _is_apart(path) and _in_package(folder, path)]


def python_path(folder: Path) -> tuple[str, ...]:
    """Where the package is imported from besides the top: src, where its modules are there."""
    return ("src",) if any(path.startswith("src/") for path in code_files(folder)) else ()


def test_files(folder: Path) -> list[str]:
    """Paths of what pytest collects by its names, sorted."""
    names = (PurePosixPath(path) for path in _python_files(folder))
    return [str(path) for path in names if path.name.startswith("test_") or path.stem.endswith("_test")]


def _python_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if path.is_file())


def _is_apart(path: str) -> bool:
    parts = PurePosixPath(path).parts
    is_test = parts[-1].startswith("test_") or parts[-1].endswith("_test.py")
    return is_test or parts[-1] in NO_MODULES or bool(NO_CODE & set(parts[:-1]))


def _in_package(folder: Path, path: str) -> bool:
    """A module at the top, or one whose folders are packages."""
    parts = PurePosixPath(path).parts[:-1]
    parts = parts[1:] if parts[:1] == ("src",) else parts
    top = folder / "src" if path.startswith("src/") else folder
    return all((top.joinpath(*parts[: number + 1]) / "__init__.py").is_file() for number in range(len(parts)))


def _put(path: Path, folder: Path) -> Path:
    """A copy, whole or not at all."""
    target = folder / path.name
    if not target.exists() or not target.samefile(path):
        draft = target.with_name(target.name + ".draft")
        shutil.copyfile(path, draft)
        os.replace(draft, target)
    return target


def _download(sdist: str, name: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "-d", str(folder)]
    try:
        done = subprocess.run(
            [*command, sdist], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--sdist {sdist}: pip took longer than {DOWNLOAD_TIMEOUT_S:g} s; try again") from None
    found = sorted(folder.glob("*.tar.gz"))
    if done.returncode != 0 or not found:
        words = (done.stderr.strip().splitlines() or ["pip fetched no .tar.gz"])[-1]
        raise ConfigError(f"--sdist {sdist}: {words}; download it elsewhere, and name the file")
    return found[0]
