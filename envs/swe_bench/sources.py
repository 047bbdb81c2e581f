"""Repositories without an image: what lies on this machine → a folder that boxes start with.

A folder is made once, under a name that its content has, and never changed: boxes read it while they run, and what a
user does to the original in the meantime touches none of them.

What is stored with a task names the content alone, so the task has one key wherever its files lie. Where they lie is
kept on this machine, as links beside the folders.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from agentrl.envs.swe_bench import unpacking
from agentrl.envs.swe_bench.data import MINI
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.errors import ConfigError, SandboxError, SandboxFault

DRAFT = ".making-"
ABANDONED_S = 24 * 3600.0
WHAT = {"tree": "a folder", "archive": "a tar file", "bundle": "a bundle of git"}


def with_hash(task: SweTask) -> SweTask:
    """The task with the hash of its source. Raises ConfigError where that can't be read, or is another."""
    if task.source is None:
        return task
    try:
        source = _checked(task.source)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{task.id}: {_told(task.source, error)}") from None
    return task.model_copy(update={"source": source})


def without_place(task: SweTask) -> SweTask:
    """The task as it is stored; where its files lie is written down here. Raises ConfigError as `with_hash`."""
    if task.source is None:
        return task
    source = task.source if task.source.sha256 else with_hash(task).source
    assert source is not None
    _write_down(source)
    return task.model_copy(update={"source": source.model_copy(update={"path": ""})})


def folder_of(source: Source) -> str:
    """A folder with the repository's files, for `SandboxSpec.base`; of a bundle a clone. Blocks until it is made.

    Raises SandboxError of kind IMAGE where it can't be had, or is another than `sha256` says: another try doesn't help.
    """
    try:
        source = source if source.sha256 else _checked(source)
        folder = cache() / f"{source.kind}-{source.sha256}"
        if not folder.is_dir():
            source = source if source.path else _placed(source)
            _make(_checked(source), folder)
    except (OSError, ValueError) as error:
        raise SandboxError(_told(source, error), SandboxFault.IMAGE) from None
    return str(folder)


def cache() -> Path:
    """Where the folders are kept. Those that no run uses may be deleted: they are made again."""
    return Path.home() / ".cache" / "agentrl" / "swe_bench"


def _link(source: Source) -> Path:
    return cache() / "places" / f"{source.kind}-{source.sha256}"


def _write_down(source: Source) -> None:
    """Raises ConfigError where the cache can't be written."""
    link = _link(source)
    try:
        if link.is_symlink() and os.readlink(link) == source.path:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        draft = link.with_name(f".{link.name}-{secrets.token_hex(8)}")
        draft.symlink_to(source.path)
        draft.replace(link)
    except OSError as error:
        raise ConfigError(f"{link}: {error.strerror}; it says where {source.path} is") from None


def _placed(source: Source) -> Source:
    """With its path: where it was when a task with it was loaded, or of what comes along. Raises ValueError."""
    link = _link(source)
    places = [os.readlink(link)] if link.is_symlink() else []
    known = [place for place in places if os.path.exists(place)] or [
        str(path) for path in MINI.rglob("*.bundle") if unpacking.file_hash(path) == source.sha256
    ]
    if not known and not places:
        raise ValueError(
            "nobody has told on this machine where it is; get it here with the records that name it, and load them "
            "once: agentrl env validate swe_bench env.path=RECORDS"
        )
    return source.model_copy(update={"path": (known or places)[0]})


def _checked(source: Source) -> Source:
    """With its hash. Raises ValueError for another content."""
    path = Path(source.path)
    if not (path.is_dir() if source.kind == "tree" else path.is_file()):
        raise ValueError(f"no such {'folder' if source.kind == 'tree' else 'file'}; restore it, or leave the task out")
    found = unpacking.tree_hash(path) if source.kind == "tree" else _file_hash(str(path), *_signature(path))
    if source.sha256 and source.sha256 != found:
        raise ValueError(
            f"its content has changed: the task was made with {source.sha256[:12]}…, there is {found[:12]}… now; "
            f"restore it, or leave sha256 out to take it as it is"
        )
    return source.model_copy(update={"sha256": found})


def _signature(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


@lru_cache(maxsize=1000)
def _file_hash(path: str, *signature: int) -> str:
    """Many tasks have one file."""
    return unpacking.file_hash(Path(path))


def _make(source: Source, folder: Path) -> None:
    """Beside its place, then all at once: another process may make the same, and this one may be killed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=DRAFT))
    try:
        made = work / "made"
        if source.kind == "tree":
            unpacking.copy_tree(Path(source.path), made)
            _checked(source.model_copy(update={"path": str(made)}))
        else:
            # Of a copy: what is unpacked is what was hashed.
            copy = source.model_copy(update={"path": shutil.copyfile(source.path, work / "file")})
            _checked(copy)
            unpack = unpacking.archive if source.kind == "archive" else unpacking.bundle
            unpack(Path(copy.path), made)
        unpacking.open_to_all(made)
        _put(made, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Away with what processes left that were killed while they made something."""
    for draft in folder.glob(f"{DRAFT}*"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(draft, ignore_errors=True)


def _put(made: Path, folder: Path) -> None:
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():  # another process was faster
            raise


def _told(source: Source, error: OSError | ValueError) -> str:
    problem = f"{error.filename or ''}: {error.strerror}" if isinstance(error, OSError) else str(error)
    return f"{source.path or source.sha256} ({WHAT[source.kind]}): {problem}"
