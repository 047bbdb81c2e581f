"""A command's processes: how they are started, watched over, and all ended.

Each command has a supervisor between the server and itself. Whatever the command starts stays below the supervisor,
also after setsid or a double fork, because orphans become the supervisor's children. So its end takes all of it along.
Should the supervisor be killed, they become the server's children, and it kills what it didn't start. What it doesn't
get hold of so dies with all other commands of the box, where the server is the first process of a namespace.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import struct
import time

from agentrl.sandboxes.channel.inside.closing import filter_calls, turn_into

TYPE_CHECKING = False  # typing takes longer to load than all of this
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from typing import Any

STATUS = struct.Struct(">i")
"""What a supervisor tells: its command's exit code, then NOTHING_LEFT."""
NOTHING_LEFT = -1
NUM_FILES = 1024
"""Open at once in the server."""
MARK_FILE = 8
"""Where a shell tells that a command ended; the commands themselves don't inherit it."""
STOP_S = 1.0
"""For stopping all that one command started; what has got away by then is met by the next round."""
LIBC = ctypes.CDLL(None)
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WAITED = {signal.SIGCHLD, signal.SIGTERM}


def prctl(option: int, value: int) -> None:
    LIBC.prctl(option, value, 0, 0, 0)


def descendants(root: int, spared: Collection[int] = ()) -> set[int]:
    """Process ids below `root` that still run, without those in `spared` and what is below them."""
    children: dict[int, list[tuple[int, bytes]]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
            except OSError:  # it ended
                continue
            children.setdefault(int(parent), []).append((int(name), state))
    found, ahead = set(), [root]
    while ahead:
        for pid, state in children.get(ahead.pop(), ()):
            if pid not in spared:
                ahead.append(pid)
                if state not in (b"Z", b"X"):
                    found.add(pid)
    return found


def send_signal(pid: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib takes long to load
        os.kill(pid, number)
    except OSError:  # it ended
        pass


def kill_descendants(root: int, spared: Collection[int] = ()) -> bool:
    """Stop them all, then kill them: what is stopped can't fork, and keeps its place under a process limit.

    Was there any?
    """
    stopped: set[int] = set()
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        new = descendants(root, spared) - stopped
        if not new:
            break
        for pid in new:
            send_signal(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        send_signal(pid, signal.SIGKILL)
    return bool(stopped)


def reap() -> tuple[dict[int, int], bool]:
    """({pid: exit code} of the children that ended, whether there are others)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Launch:
    """A supervisor, the process below it that turns into a command, and our ends of the pipes to both.

    Without a command it is made ahead: all that doesn't depend on one is done, and the process waits for `give`.
    """

    def __init__(self, settings: dict[str, Any], command: dict[str, Any] | None = None) -> None:
        """Raises OSError where there can't be more processes."""
        files, self.stdin = os.pipe()
        readers = [os.pipe() for _ in range(3)]  # a shell: output, marks, status; else: stdout, stderr, status
        source, self.source = os.pipe()
        self.outputs, self.status = [reader for reader, _ in readers[:2]], readers[2][0]
        theirs = [files, *(writer for _, writer in readers), source]
        try:
            self.pid = os.fork()
        except OSError:
            for file in (*theirs, self.stdin, *self.outputs, self.status, self.source):
                os.close(file)
            raise
        if self.pid == 0:
            try:
                supervise(theirs, command, settings)
            finally:
                os._exit(1)
        for file in theirs:
            os.close(file)
        if command is not None:
            os.close(self.source)

    def give(self, command: dict[str, Any]) -> bool:
        """To the process that waits for it; False: that has ended, and all of this is closed.

        Only while no command runs: one could have stopped the process, and this would wait for ever.
        """
        try:
            with open(self.source, "wb", buffering=0) as source:
                text = json.dumps(command).encode() if self._is_alive() else b""
                while text:
                    text = text[source.write(text) :]
                    if not text:
                        return True
        except BrokenPipeError:
            pass
        for file in (self.stdin, *self.outputs, self.status):
            os.close(file)
        return False

    def _is_alive(self) -> bool:
        """The supervisor; without it nothing would watch over the command."""
        try:
            return os.waitpid(self.pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:
            return False


def supervise(files: list[int], command: dict[str, Any] | None, settings: dict[str, Any]) -> None:
    """The supervisor's whole life: tell the command's exit code; on SIGTERM, end everything below.

    `files`: stdin, two outputs, status, and where the command comes from if there is none yet.
    """
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    child = os.fork()
    if child == 0:
        become([*files[:3], files[4]], command, settings)
    status = files[3]
    keep_open({status})
    is_ending = False
    while True:
        ended, has_more = reap()
        if child in ended:
            os.write(status, STATUS.pack(ended[child]))
        if not has_more:
            os.write(status, STATUS.pack(NOTHING_LEFT))  # its own end takes a while longer
            os._exit(0)
        if is_ending:
            kill_descendants(os.getpid())
        is_ending |= signal.sigwait(WAITED) == signal.SIGTERM


def become(files: list[int], command: dict[str, Any] | None, settings: dict[str, Any]) -> None:
    """Turn into the command, or end with 127 or 126 and the reason on stderr, as a shell does.

    `files`: stdin, two outputs, and where the command comes from if there is none yet.
    """
    keep_open([*files, *settings["cgroups"]])  # also of our own end of the last: there would be no end to what comes
    failure: Exception | None = None
    try:
        close_off(settings)
    except OSError as error:  # is told when there is somebody to tell it to
        failure = error
    command = command or receive(files[3])
    files = [files[0], files[1], files[1], files[2]] if command["is_shell"] else files[:3]
    errors = os.dup2(files[2], NUM_FILES - 1, inheritable=False)
    try:
        if failure is not None:
            raise failure
        above = [os.dup2(old, errors - 1 - number) for number, old in enumerate(files)]
        kept = [os.dup2(old, new) for old, new in zip(above, (0, 1, 2, MARK_FILE))]  # noqa: B905 - Python 3.7
        keep_open([*kept, errors])
        os.chdir(as_bytes(command["cwd"]))
        environment = {as_bytes(name): as_bytes(value) for name, value in command["environment"].items()}
        execute([as_bytes(word) for word in command["argv"]], environment)
    except (OSError, ValueError) as error:  # ValueError: a NUL
        reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        text = f"can't run {command['argv'][0]} in {command['cwd']}: {reason}\n"
        os.write(errors, text.encode("utf-8", "replace"))
        os._exit(127 if isinstance(error, FileNotFoundError) else 126)


def close_off(settings: dict[str, Any]) -> None:
    """All that a command is limited by, whatever it is. Raises OSError."""
    for group in settings["cgroups"]:
        os.write(group, b"0")
    os.setsid()
    for name, limit in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if settings.get("user"):
        turn_into(settings["user"])
    if settings.get("filter"):
        filter_calls(settings["filter"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.umask(0o022)


def receive(source: int) -> dict[str, Any]:
    """The command, once it is there. Where there never will be one, this process ends."""
    with open(source, "rb") as file:
        text = file.read()
    if not text:
        os._exit(0)
    command: dict[str, Any] = json.loads(text)
    return command


def execute(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """As os.execvpe, which loads modules for it."""
    folders = [b""] if b"/" in argv[0] else environment.get(b"PATH", b"/usr/bin:/bin").split(b":")
    failure: OSError = FileNotFoundError(errno.ENOENT, "")
    for folder in folders:
        try:
            os.execve(os.path.join(folder, argv[0]), argv, environment)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failure = error
    raise failure


def keep_open(files: Iterable[int]) -> None:
    """Close every other descriptor."""
    first = 0
    for file in [*sorted(files), NUM_FILES]:
        if file > first:  # Python takes an empty range for all files
            os.closerange(first, file)
        first = file + 1


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
