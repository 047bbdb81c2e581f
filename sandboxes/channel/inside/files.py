"""Files and folders of the box, for the host. Paths are looked up in here, so a link can't lead to the host's files.

The host knows the limits, and checks an archive before it comes here.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import time

from agentrl.sandboxes.channel.inside.closing import file_owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    import tarfile

TREE_S = 20.0
"""For reading a folder: meanwhile the server does nothing else."""


class TooLarge(Exception):
    """More than the host asked for."""


def read(path: bytes, max_bytes: int) -> bytes:
    """A regular file's bytes. Raises OSError, TooLarge."""
    file = open_regular(path)
    try:
        parts: list[bytes] = []
        room = max_bytes + 1
        while room > 0:
            part = os.read(file, min(room, 1 << 20))
            if not part:
                return b"".join(parts)
            parts.append(part)
            room -= len(part)
    finally:
        os.close(file)
    raise TooLarge


def open_regular(path: bytes, flags: int = os.O_RDONLY) -> int:
    """Never waits, as for who writes to a pipe, and refuses what is no file."""
    file = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return file
    os.close(file)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "no regular file")


def write(path: bytes, content: bytes, executable: bool) -> None:
    """Make a file or replace what is in it. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    file = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(file, view) :]
        if executable:
            os.fchmod(file, 0o755)
    finally:
        os.close(file)


def read_tree(path: bytes, max_bytes: int) -> bytes:
    """A tar archive of files, folders and links; pipes, sockets and devices stay out. Raises OSError, TooLarge."""
    import tarfile

    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise OSError(errno.ENOTDIR, "no folder")
    out = Limited(max_bytes)
    top = os.fsdecode(path)
    start = len(os.path.join(top, ""))
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for folder, folders, names in os.walk(top, onerror=_raise):
            folders.sort()
            for name in sorted(folders + names):
                whole = os.path.join(folder, name)
                _add(archive, whole, whole[start:])
    return out.getvalue()


def write_tree(path: bytes, content: bytes) -> None:
    """Unpack an archive, which the host has checked, as files of this user. Raises OSError."""
    import tarfile

    os.makedirs(path, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        for member in archive:
            (member.uid, member.gid), member.uname, member.gname = file_owner(), "", ""
            member.mode |= 0o700 if member.isdir() else 0o600
            if hasattr(tarfile, "fully_trusted_filter"):
                archive.extract(member, os.fsdecode(path), filter="fully_trusted")
            else:
                archive.extract(member, os.fsdecode(path))


class Limited(io.BytesIO):
    """Holds so many bytes and no more, and takes them for so long and no longer."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.max_bytes, self.until = max_bytes, time.monotonic() + TREE_S

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self.tell() + len(data) > self.max_bytes or time.monotonic() > self.until:
            raise TooLarge
        return super().write(data)


def _add(archive: tarfile.TarFile, path: str, name: str) -> None:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            file = os.fdopen(open_regular(os.fsencode(path), os.O_RDONLY | os.O_NOFOLLOW), "rb")
            with file:
                member = _anonymous(archive.gettarinfo(arcname=name, fileobj=file))
                archive.addfile(member, file)
        elif stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            archive.addfile(_anonymous(archive.gettarinfo(path, name)))
    except FileNotFoundError:  # a running command removed it
        pass


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without whose it was; a hard link is a file of its own."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _raise(error: OSError) -> None:
    raise error
