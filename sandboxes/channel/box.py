"""A `Sandbox` over a channel: all of the contract but how a box is closed off, started and ended."""

from __future__ import annotations

import asyncio
import io
import tarfile
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from posixpath import normpath
from types import MappingProxyType
from typing import Any

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import (
    DEFAULT_FILE_BYTES,
    DEFAULT_OUTPUT_BYTES,
    Command,
    ExecResult,
    Sandbox,
    SandboxSpec,
    Session,
)
from agentrl.sandboxes.channel.client import Client

GRACE_S = 10.0
"""For an answer, after the limit that is kept inside the box."""
FILE_S = 60.0
"""For reading or writing files."""
ALIVE_S = 5.0
NO_VARIABLES: Mapping[str, str] = MappingProxyType({})
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ChannelSandbox(Sandbox):
    """A box whose server answers. A backend adds how it ends, and what its memory limit did."""

    def __init__(self, client: Client, spec: SandboxSpec, *, environment: Mapping[str, str] = NO_VARIABLES) -> None:
        """`environment`: the backend's own variables; the spec's go above them."""
        self._client = client
        self._environment = {"PATH": PATH, "HOME": "/tmp", "LANG": "C.UTF-8", **environment, **spec.environment}
        self._ending: asyncio.Future[None] | None = None
        self._num_out_of_memory = 0

    @abstractmethod
    async def end(self) -> None:
        """End the box and give back what it took; called once."""

    @property
    def is_stopped(self) -> bool:
        """Nothing of it is left."""
        return self._ending is not None and self._ending.done()

    async def stop(self) -> None:
        if self._ending is None:
            self._ending = asyncio.ensure_future(self.end())
        await asyncio.shield(self._ending)

    def num_out_of_memory(self, told: int) -> int:
        """How many processes the box's memory limit has killed. `told`: by the server, where it can see that."""
        return told

    def place(self, path: str) -> str:
        """Where a path of the contract is for the server; relative ones start at its workdir."""
        return path

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
        what = {"line": command} if isinstance(command, str) else {"argv": list(command)}
        request = {"do": "exec", **what, **_limits(timeout_s, max_output_bytes)}
        request |= {"cwd": self.place(cwd or ""), "environment": {**self._environment, **(environment or {})}}
        return await self._run(request, stdin, num_streams=2)

    async def session(self) -> Session:
        return await ChannelSession.start(self)

    async def read(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        request = {"do": "read", "path": self.place(path), "max_bytes": max_bytes}
        return (await self._client.ask(request, limit_s=FILE_S, max_bytes=max_bytes))[1]

    async def read_tree(self, path: str, *, max_bytes: int = DEFAULT_FILE_BYTES) -> bytes:
        request = {"do": "read_tree", "path": self.place(path), "max_bytes": max_bytes}
        return (await self._client.ask(request, limit_s=FILE_S, max_bytes=max_bytes))[1]

    async def write(self, path: str, content: bytes, *, executable: bool = False) -> None:
        request = {"do": "write", "path": self.place(path), "executable": executable}
        await self._client.ask(request, content, limit_s=FILE_S)

    async def write_tree(self, path: str, archive: bytes) -> None:
        await asyncio.to_thread(check_archive, archive)
        await self._client.ask({"do": "write_tree", "path": self.place(path)}, archive, limit_s=FILE_S)

    async def is_alive(self) -> bool:
        try:
            await self._client.ask({"do": "ping"}, limit_s=ALIVE_S)
        except SandboxError:
            return False
        return True

    async def _run(self, request: dict[str, Any], stdin: bytes, *, num_streams: int) -> ExecResult:
        limit_s, max_bytes = request["timeout_s"] + GRACE_S, num_streams * (request["max_output_bytes"] + 1)
        try:
            told, body = await self._client.ask(request, stdin, limit_s=limit_s, max_bytes=max_bytes)
        except OSError as error:  # too many processes in the box
            why = f"can't run this: {error.strerror}\n".encode()
            return ExecResult(exit_code=126, stdout=b"" if num_streams > 1 else why, stderr=why * (num_streams > 1))
        try:
            result = _result(told, body, num_streams)
            num_out_of_memory = self.num_out_of_memory(_integer(told["num_out_of_memory"]))
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise SandboxError(
                f"box {self._client.name} doesn't keep to its protocol: {error!r}", SandboxFault.CHANNEL
            ) from error
        before, self._num_out_of_memory = self._num_out_of_memory, num_out_of_memory
        return replace(result, out_of_memory=self._num_out_of_memory > before)


class ChannelSession(Session):
    """A shell in a box; the server starts it at the first command, and again after its end."""

    def __init__(self, box: ChannelSandbox, number: int) -> None:
        self._box, self._number = box, number
        self._one_at_a_time = asyncio.Lock()
        self._is_closed = False

    @classmethod
    async def start(cls, box: ChannelSandbox) -> ChannelSession:
        request = {"do": "session", "cwd": box.place(""), "environment": box._environment}
        told, _ = await box._client.ask(request, limit_s=GRACE_S)
        return cls(box, _integer(told["session"]))

    async def run(self, command: str, *, timeout_s: float, max_output_bytes: int = DEFAULT_OUTPUT_BYTES) -> ExecResult:
        if self._is_closed:
            raise ValueError("this session is closed; open another")
        request = {"do": "run", "session": self._number, "line": command, **_limits(timeout_s, max_output_bytes)}
        async with self._one_at_a_time:
            return await self._box._run(request, b"", num_streams=1)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self._box._client.ask({"do": "close", "session": self._number}, limit_s=GRACE_S)


def check_archive(archive: bytes) -> None:
    """Raises ValueError for what is no tar archive, or has members that lead out of the folder it is unpacked into."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as members:
            for member in members:
                _check_member(member)
    except tarfile.TarError as error:
        raise ValueError(f"no tar archive: {error}") from error


def _check_member(member: tarfile.TarInfo) -> None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise ValueError(f"archive member {member.name!r} is no file, folder or link; leave it out")
    target = f"{member.name}/../{member.linkname}" if member.issym() else member.linkname
    for path in (member.name, target):
        if path.startswith("/") or member.linkname.startswith("/") or normpath(path).split("/")[0] == "..":
            raise ValueError(f"archive member {member.name!r} leads out of the folder: {path!r}")


def _limits(timeout_s: float, max_output_bytes: int) -> dict[str, Any]:
    if not 0 < timeout_s < float("inf") or max_output_bytes < 0:
        raise ValueError(f"timeout_s={timeout_s}, max_output_bytes={max_output_bytes}: limits are positive and finite")
    return {"timeout_s": timeout_s, "max_output_bytes": max_output_bytes}


def _result(told: dict[str, Any], body: bytes, num_streams: int) -> ExecResult:
    """Raises KeyError, TypeError, ValueError for what isn't as agreed."""
    streams, start, num_left_out = [], 0, 0
    for kept, head, left_out in told["streams"]:
        part = body[start : start + _integer(kept)]
        streams.append(_with_marker(part, _integer(head), _integer(left_out)))
        start, num_left_out = start + kept, num_left_out + left_out
    if len(streams) != num_streams or start != len(body):
        raise ValueError("lengths that don't agree")
    return ExecResult(
        exit_code=_integer(told["exit_code"]),
        stdout=streams[0],
        stderr=b"".join(streams[1:]),
        timed_out=told["timed_out"] is True,
        shell_ended=told["shell_ended"] is True,
        num_left_out_bytes=num_left_out,
        seconds=float(told["seconds"]),
    )


def _with_marker(part: bytes, head: int, left_out: int) -> bytes:
    if left_out == 0:
        return part
    return part[:head] + b"\n[%d bytes left out]\n" % left_out + part[head:]


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"no count: {value!r}")
    return value
