"""What goes wrong with a database as such: how it is told from a write that doesn't fit, and what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

ADVICE = {
    "SQLITE_FULL": "free some space, then resume; what was committed is safe",
    "SQLITE_BUSY": "another process holds it; stop that one, or wait longer with store.busy_timeout_s",
    "SQLITE_LOCKED": "another process holds it; stop that one, or wait longer with store.busy_timeout_s",
    "SQLITE_READONLY": "make the file and its folder writable",
    "SQLITE_CANTOPEN": "make sure that it is a file in a folder that you may write to",
    "SQLITE_PERM": "make sure that it is a file in a folder that you may write to",
    "SQLITE_CORRUPT": "the file is corrupt; restore a copy, or try sqlite3's .recover",
    "SQLITE_NOTADB": "the file is corrupt or no SQLite file; move it away or give another path",
    "SQLITE_IOERR": "check the disk and its quota, then resume; what was committed is safe",
    "SQLITE_NOMEM": "the process is out of memory; lower rollout.concurrency, then resume",
}
"""By the beginning of SQLite's name for the error."""

NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|fuse\.(sshfs|s3fs|gcsfuse|rclone|glusterfs|juicefs)"
)


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error behind one of SQLAlchemy's."""
    return getattr(error, "orig", None) or error


def advice(error: BaseException) -> str:
    """What to do about an error of the database; empty where nothing is known."""
    name = _name(error)
    return next((text for start, text in ADVICE.items() if name.startswith(start)), "")


def is_down(error: BaseException) -> bool:
    """Is the database itself at fault, so that any other write would fail too? (Not: a write that doesn't fit.)"""
    name = _name(error)
    if name:
        return name.startswith(tuple(ADVICE))
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    )


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The type of the network file system that holds `path`, or None where it is local or can't be told."""
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None  # no Linux
    resolved = path.resolve()
    found = {Path(_unescaped(point)): kind for _, point, kind, *_ in map(str.split, lines)}
    holders = [folder for folder in (resolved, *resolved.parents) if folder in found]
    kind = found[holders[0]] if holders else ""
    return kind if NETWORK_FILE_SYSTEMS.fullmatch(kind) else None


def _name(error: BaseException) -> str:
    return str(getattr(cause_of(error), "sqlite_errorname", ""))


def _unescaped(mount_point: str) -> str:
    """Spaces and the like stand as octal escapes in the list of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point)
