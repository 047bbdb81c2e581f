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

POSTGRESQL_ADVICE = {
    "08": "make sure that the server runs and can be reached, then resume; what was committed is safe",
    "25006": "the server takes no writes (a standby?); name the primary in the URL",
    "28": "check user and password; PGPASSWORD and ~/.pgpass are read too",
    "3D000": "make it with createdb",
    "42501": "give the user the rights to it",
    "53100": "free some space on the server, then resume; what was committed is safe",
    "53": "the server is out of memory or connections; relieve it, then resume",
    "55P03": "another process holds it; stop that one, or wait longer with store.busy_timeout_s",
    "57": "the server was stopped or a query cancelled; start it again, then resume; what was committed is safe",
    "58": "check the server's disk, then resume; what was committed is safe",
    "XX": "the server's data may be corrupt; see its log",
}
"""By the beginning of the SQLSTATE; the first that fits counts."""
UNREACHABLE = "make sure that the server runs, and check host, user, password and database in the URL"
"""Where a connection couldn't be made or was lost, PostgreSQL's client gives no SQLSTATE."""
COLLISIONS = ("40001", "40P01")
"""SQLSTATEs of transactions that PostgreSQL ended in favour of another one: deadlocks."""

NETWORK_FILE_SYSTEMS = re.compile(
    r"nfs\d?|cifs|smb\w*|9p|afs|ceph|lustre|gpfs|beegfs|glusterfs|ocfs2|fuse\.(sshfs|s3fs|gcsfuse|rclone|glusterfs|juicefs)"
)


def cause_of(error: BaseException) -> BaseException:
    """The driver's own error behind one of SQLAlchemy's."""
    return getattr(error, "orig", None) or error


def text_of(error: BaseException) -> str:
    """What the driver says, without what it quotes: PostgreSQL what was to be written, SQLite text that isn't UTF-8."""
    cause = cause_of(error)
    primary: str | None = getattr(getattr(cause, "diag", None), "message_primary", None)
    return primary or str(cause).partition(" with text '")[0]


def advice(error: BaseException) -> str:
    """What to do about an error of the database; empty where nothing is known."""
    if _is_disconnected(error):
        return UNREACHABLE
    name, state = _name(error), _state(error)
    known = ADVICE if name else POSTGRESQL_ADVICE
    return next((text for start, text in known.items() if (name or state).startswith(start)), "")


def is_collision(error: BaseException) -> bool:
    """Did the database end the transaction because of another one, so that it may be tried again?"""
    return _state(error) in COLLISIONS


def is_down(error: BaseException) -> bool:
    """Is the database itself at fault, so that any other write would fail too? (Not: a write that doesn't fit.)"""
    name, state = _name(error), _state(error)
    if name:
        return name.startswith(tuple(ADVICE))
    return _is_disconnected(error) or state.startswith(tuple(POSTGRESQL_ADVICE))


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


def _is_disconnected(error: BaseException) -> bool:
    """Was no connection to be had, or was it lost?"""
    is_stateless = hasattr(cause_of(error), "sqlstate") and not _state(error)
    return isinstance(error, DBAPIError) and (
        error.connection_invalidated or (is_stateless and isinstance(error, OperationalError | InterfaceError))
    )


def _state(error: BaseException) -> str:
    return str(getattr(cause_of(error), "sqlstate", None) or "")


def _name(error: BaseException) -> str:
    return str(getattr(cause_of(error), "sqlite_errorname", ""))


def _unescaped(mount_point: str) -> str:
    """Spaces and the like stand as octal escapes in the list of mounts."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount_point)
