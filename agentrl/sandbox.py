"""The sandbox contract: a closed box in which commands run and files live.

An environment asks for a box with `SandboxSpec`; a `SandboxBackend`, found by entry-point name in the group
`agentrl.sandboxes`, starts it. One box serves one episode and is never used again.

A command that fails is a result. A file that isn't there is the OSError that Python would raise. A box that can't be
had or is gone raises `errors.SandboxError`: then nothing was measured, and nobody is punished (R2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from agentrl.errors import SandboxError, SandboxFault

Command = str | Sequence[str]
"""A line for the box's shell, or a program with its arguments, which no shell reads."""

DEFAULT_OUTPUT_BYTES = 1024**2
DEFAULT_FILE_BYTES = 64 * 1024**2


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxSpec:
    """What an environment needs. Everything that isn't asked for is closed: no network, no mounts, no secrets."""

    backend: str = "auto"
    """Entry-point name in the group agentrl.sandboxes; auto: what the run's `sandbox.backend` says."""
    image: str | None = None
    """A container image; None: the system that the backend offers, with a shell and Python."""
    base: str | None = None
    """A folder of this machine whose content `workdir` starts with. The box writes to a copy of its own."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Written before the first command: path in the box → content."""
    workdir: str = "/workspace"
    """Where commands start, and the only folder besides /tmp that they can write to. It begins empty, or as `base`."""
    writable_root: bool = False
    """The image's own folders stay as they are and can be written to, `workdir` among them; needs an image."""
    cpus: float = 1.0
    memory_bytes: int = 2 * 1024**3
    """Of all processes together, swap included."""
    max_processes: int = 256
    disk_bytes: int = 1024**3
    """What the box may write, `base` not counted."""
    network: bool = False
    user: int = 1000
    """The user id inside, never 0; bubblewrap under root gives each box an id of its own instead."""
    lifetime_s: float = 3600.0
    """After this the box ends by itself, whoever forgot it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command. Nothing of this process's environment gets in."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExecResult:
    """What a command printed and how it ended."""

    exit_code: int
    """128 + n where signal n ended it."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    """It and everything that it started were killed at the limit (R4); what was printed until then is here."""
    out_of_memory: bool = False
    """The box's memory limit killed it or one of its children, or a background job since the command before."""
    shell_ended: bool = False
    """The session's shell ended (limit, `exit`, a kill), by this command or since the one before: its folder, variables
    and jobs are gone."""
    num_left_out_bytes: int = 0
    """Of the output, from the middle, where it was longer than the cap; a marker stands in their place."""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """stdout, then stderr; bytes that aren't UTF-8 are U+FFFD here and untouched in the fields."""
        return (self.stdout + self.stderr).decode("utf-8", "replace")


class Session(ABC):
    """One long-lived shell in a box: folder, variables and background jobs stay from call to call."""

    @abstractmethod
    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES) -> ExecResult:
        """Run one command; both outputs come as `stdout`, in the order in which they were printed.

        At the limit everything that the session started is killed, and the next call finds a new shell in the box's
        `workdir`: `timed_out` and `shell_ended` say so. An unclosed quote or heredoc is an error of this call and of
        no other.
        Raises SandboxError where the box is gone.
        """

    @abstractmethod
    async def close(self) -> None:
        """End the shell and what it started; safe to call twice."""


class Sandbox(ABC):
    """A started box. Every method raises `SandboxError` when the box itself is gone.

    Relative paths start at the spec's `workdir`. Where what runs in the box keeps a file from being read or written
    (no right to it, a full disk, a tree that is too odd), that is the OSError, not the SandboxError.
    """

    @cached_property
    def shells(self) -> dict[str, Session]:
        """The shells that tools keep open in this box from call to call, by the tool's name."""
        return {}

    @abstractmethod
    async def exec(
        self,
        command: Command,
        *,
        timeout_s: float,
        cwd: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        max_output_bytes: int = DEFAULT_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run a command to its end. Nothing that it started lives on.

        `cwd`: default `workdir`. `environment` is added to the spec's. The cap holds for stdout and stderr each.
        """

    @abstractmethod
    async def session(self) -> Session:
        """A new shell."""

    @abstractmethod
    async def read(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        """A file's bytes. Raises FileNotFoundError, IsADirectoryError, PermissionError, or ValueError above the cap.

        A link is followed inside the box only: it can't lead to a file of this machine.
        """

    @abstractmethod
    async def read_tree(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        """A folder as a tar archive with names relative to it; links are kept as links. Raises as `read`.

        The archive was written by whoever runs in the box: unpack it with tarfile's filter "data", or not at all.
        """

    @abstractmethod
    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Write a file, owned by the box's user; missing folders are made. OSError, also on a full disk."""

    @abstractmethod
    async def write_tree(self, path: str, archive: bytes) -> None:
        """Unpack a tar archive into a folder; ValueError for members that lead out: nothing is written."""

    @abstractmethod
    async def is_alive(self) -> bool:
        """Does a command still get an answer? Never raises."""

    @abstractmethod
    async def stop(self) -> None:
        """End the box, everything in it, and everything that it took from this machine; safe to call twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """What a backend can do on this machine."""

    missing: tuple[str, ...] = ()
    """Why it can't start boxes at all, each with what to do about it; empty: it can."""
    not_enforced: tuple[str, ...] = ()
    """Limits of the spec that this machine can't hold, each with the reason, e.g. "cpus: no cgroup is writable"."""
    is_closed: bool = True
    """Is a box closed at all? Where it isn't, what runs in it can do whatever this process can."""


class SandboxOptions(BaseModel):
    """Base of a backend's options. Each field is a key `sandbox.options.<field>` on the command line."""

    model_config = ConfigDict(extra="forbid")


class SandboxBackend(ABC):
    """Starts boxes of one kind; one instance per process."""

    Options: ClassVar[type[SandboxOptions]] = SandboxOptions

    def __init__(self, options: SandboxOptions, *, run: str) -> None:
        """`run`: id of the run that the boxes belong to, for labels and names."""
        self.options = options
        self.run = run

    @abstractmethod
    async def preflight(self) -> Preflight:
        """Look at this machine; starts at most one box, and leaves nothing."""

    @abstractmethod
    async def start(self, spec: SandboxSpec) -> Sandbox:
        """A new box with the spec's files in it. Raises SandboxError with its kind."""

    async def prepare(self, spec: SandboxSpec) -> None:  # noqa: B027 - optional hook, not forgotten
        """Get what may take long before a box can be started, such as its image. Raises SandboxError with its kind.

        Whoever waits here takes no other box's place. `start` doesn't rely on it.
        """

    def memory_bytes(self, spec: SandboxSpec) -> int:
        """What a box may take of this machine's memory; its disk included, where that lies in memory beside it."""
        return spec.memory_bytes

    async def pull(self, image: str, tell: Callable[[str], None]) -> None:
        """Get an image, or a newer one of its name, ahead of a run; `tell` takes a line now and then, in any thread.

        Raises SandboxError of kind IMAGE.
        """
        raise SandboxError(f"{type(self).__name__} has no images to get", SandboxFault.IMAGE)

    async def sweep(self) -> int:
        """Remove what dead runs left on this machine; how many boxes that were. Living runs are left alone."""
        return 0

    async def close(self) -> None:  # noqa: B027 - optional hook, not forgotten
        """Stop what is still there of this process's boxes."""
