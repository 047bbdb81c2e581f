"""Trees, tar files and bundles of git → folders, and the hashes of what is in them.

What is unpacked comes from anywhere: it can't write outside its folder, and its size and number of files are bounded.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

MAX_BYTES = 4 * 1024**3
MAX_FILES = 200_000
GIT_TIMEOUT_S = 600.0
LEFT_OUT = (".git", "__pycache__")
"""Of trees: what changes while nobody changes the code."""


def file_hash(path: Path) -> str:
    """Of its bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_hash(folder: Path) -> str:
    """Of names, contents, links and who may execute; not of times, owners and other rights. Raises OSError."""
    total = hashlib.sha256()
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            kind, content = "link", os.readlink(path)
        elif path.is_dir():
            kind, content = "folder", ""
        else:
            kind, content = ("program" if path.stat().st_mode & 0o100 else "file"), file_hash(path)
        total.update(f"{kind}\0{name}\0{content}\0".encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def copy_tree(source: Path, target: Path) -> None:
    """Links stay links; sockets and the like are left out. Raises OSError, or ValueError over the caps."""
    _bounded(source)
    target.mkdir()
    for path in _walk(source):
        copy = target / path.relative_to(source)
        if path.is_symlink():
            copy.symlink_to(os.readlink(path))
        elif path.is_dir():
            copy.mkdir()
        else:
            shutil.copy(path, copy)


def archive(path: Path, target: Path) -> None:
    """A tar file, in any compression, without its only top folder. Raises OSError, or ValueError."""
    try:
        with tarfile.open(path) as file:
            members = list(_members(file))
            top = _top(members)
            target.mkdir()
            for member in members:
                if (inner := _without(member, top)) is not None:
                    file.extract(inner, target, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(f"no tar file that can be unpacked: {error}") from None


def bundle(path: Path, target: Path) -> None:
    """A clone, with the commit checked out that the bundle calls HEAD. Raises OSError, or ValueError."""
    git = shutil.which("git")
    if git is None:
        raise ValueError("there is no git on this machine, which takes it apart: apt-get install git")
    _git(git, "clone", "--quiet", "--template=", "--no-hardlinks", "--", str(path), str(target))
    try:
        _git(git, "-C", str(target), "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    except ValueError:
        raise ValueError("it has no HEAD; make it with: git bundle create FILE HEAD --all") from None
    # A remote would tell where the file lies on this machine.
    _git(git, "-C", str(target), "remote", "remove", "origin")
    _bounded(target)


def open_to_all(folder: Path) -> None:
    """The same rights whoever made it, with whatever umask: all read, the owner writes, programs stay programs."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def _walk(folder: Path) -> Iterator[Path]:
    """Files, folders and links, in one order on every machine; what isn't any of these is passed over."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if entry.name in LEFT_OUT:
            continue
        if entry.is_symlink() or entry.is_file():
            yield path
        elif entry.is_dir():
            yield path
            yield from _walk(path)


def _bounded(folder: Path) -> None:
    sizes = [path.lstat().st_size for path in folder.rglob("*")]
    _check(len(sizes), sum(sizes))


def _check(num_files: int, num_bytes: int) -> None:
    if num_files > MAX_FILES:
        raise ValueError(f"more than {MAX_FILES} files")
    if num_bytes > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes in all")


def _members(file: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """What it says of itself, before anything is written."""
    num_files = num_bytes = 0
    for member in file:
        num_files, num_bytes = num_files + 1, num_bytes + member.size
        _check(num_files, num_bytes)
        yield member


def _top(members: list[tarfile.TarInfo]) -> str | None:
    """The only top folder; None: there are several entries at the top."""
    tops = {_parts(member.name)[:1] for member in members} - {()}
    files = {_parts(member.name) for member in members if not member.isdir()}
    (top,) = tops if len(tops) == 1 else ((),)
    return top[0] if top and top not in files else None


def _without(member: tarfile.TarInfo, top: str | None) -> tarfile.TarInfo | None:
    """The member as if the top folder were the archive; None: it is that folder."""
    strip = 0 if top is None else 1
    parts = _parts(member.name)[strip:]
    if not parts:
        return None
    name = "/".join(parts)
    # A hard link names another member; a symbolic link goes from where it is.
    link = "/".join(_parts(member.linkname)[strip:]) if member.islnk() else member.linkname
    return member.replace(name=name, linkname=link, deep=False)


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in PurePosixPath(name).parts if part != "/")


def _git(git: str, *words: str) -> None:
    """Without anybody's configuration. Raises ValueError with what git said."""
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    command = [git, "-c", "core.autocrlf=false", "-c", "safe.directory=*", *words]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"git took more than {GIT_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise ValueError(f"git: {done.stderr.strip() or f'exit code {done.returncode}'}")
