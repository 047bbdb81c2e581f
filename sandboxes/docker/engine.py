"""The engine's API: calls of the SDK off the event loop, and one stream to a container's stdin and stdout.

The SDK's own way to such a stream loses what a container prints first, and blocks. So that request is made here.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from agentrl.errors import SandboxError, SandboxFault
from agentrl.visible import one_line

if TYPE_CHECKING:
    from docker import APIClient

Result = TypeVar("Result")
DEFAULT_SOCKET = "unix:///var/run/docker.sock"
NUM_THREADS = 8
HEADER = struct.Struct(">BxxxI")
"""Before each piece of a container's output: which stream, and how many bytes."""
STDOUT = 1
READ_BYTES = 65536
TAIL_BYTES = 500
_HOST_FULL = (
    "no space left", "cannot allocate memory", "resource temporarily unavailable", "too many open files",
    "address pools", "no available ipv4",
)  # fmt: skip


class Engine:
    """One per process and socket. Connects with the first call."""

    def __init__(self, socket: str | None, *, timeout_s: float) -> None:
        """`timeout_s`: of each call."""
        self.url = socket or os.environ.get("DOCKER_HOST") or DEFAULT_SOCKET
        if "://" not in self.url:
            self.url = f"unix://{self.url}"
        self._timeout_s = timeout_s
        self._client: APIClient | None = None
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None

    @property
    def path(self) -> str:
        """Of the socket."""
        return urlsplit(self.url).path

    def reason_missing(self) -> str | None:
        """Why there can be no connection, before one is tried; None: it may well work."""
        if importlib.util.find_spec("docker") is None:
            return "the Python package docker isn't installed: pip install 'agentrl[docker]'"
        if not self.url.startswith("unix://"):
            return (
                f"the engine's address {urlsplit(self.url).scheme}://… is no socket of this machine: "
                "forward it by `ssh -L`, and name the socket by sandbox.options.socket=… or DOCKER_HOST"
            )
        if not os.path.exists(self.path):
            return f"there is no {self.path}: start the engine, or name its socket by sandbox.options.socket=…"
        if not os.access(self.path, os.R_OK | os.W_OK):
            return f"{self.path} may not be opened: run as a member of its group, which is as good as root"
        return None

    async def call(self, function: Callable[[APIClient], Result]) -> Result:
        """What the function returns, which may block. Raises SandboxError with its kind."""
        self._threads = self._threads or ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="docker")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, function)

    async def call_long(self, function: Callable[[APIClient], Result], *, timeout_s: float) -> Result:
        """The same for what may take very long: this process can end before it does. `timeout_s`: of each request."""
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()  # who stops waiting doesn't stop it
        work = partial(_settle, done, partial(self._run, function, timeout_s))
        threading.Thread(target=work, name="docker-long", daemon=True).start()
        return await asyncio.wrap_future(done)

    async def attach(self, container: str) -> Stream:
        """The container's stdin and stdout. Opened before it starts, so that nothing is lost.

        Raises SandboxError where the engine refuses.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_unix_connection(self.path)
        except OSError as error:
            raise _gone(self.path, error) from error
        target = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        writer.write(
            f"POST {target} HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
            "Content-Length: 0\r\n\r\n".encode()
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError) as error:
            writer.close()
            raise _gone(self.path, error) from error
        status = head.split(None, 2)[1]
        if status not in (b"101", b"200"):
            writer.close()
            raise SandboxError(f"the engine lets nobody attach (HTTP {status.decode()})", SandboxFault.START)
        return Stream(reader, writer)

    def close(self) -> None:
        """Wait for no call that hangs. The next call would connect again."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()
        self._threads, self._client = None, None

    def _run(self, function: Callable[[APIClient], Result], timeout_s: float | None = None) -> Result:
        missing = self.reason_missing()
        if missing:
            raise SandboxError(missing, SandboxFault.UNAVAILABLE)
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            if timeout_s is not None:
                with self._connect(timeout_s) as client:
                    return function(client)
            with self._lock:
                self._client = self._client or self._connect(self._timeout_s)
            return function(self._client)
        except APIError as error:
            raise refused(error.explanation or str(error)) from error
        except (RequestException, DockerException) as error:
            raise _gone(self.path, error) from error

    def _connect(self, timeout_s: float) -> APIClient:
        from docker import APIClient

        return APIClient(self.url, version="auto", timeout=timeout_s, max_pool_size=NUM_THREADS)


class Stream:
    """What a container prints and reads. Its stderr is no part of it, but the end of that is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._num_left_bytes = 0
        self._words = b""

    @property
    def words(self) -> str:
        """The last ones on stderr, after a colon; nothing where there are none."""
        said = one_line(self._words.decode("utf-8", "replace"))
        return f": {said}" if said else ""

    async def readexactly(self, num_bytes: int, /) -> bytes:
        """So many bytes of stdout. Raises IncompleteReadError where the container has ended or the engine is gone."""
        data = bytearray()
        while len(data) < num_bytes:
            while self._num_left_bytes == 0:
                await self._next_piece()
            part = await self._reader.read(min(num_bytes - len(data), self._num_left_bytes))
            if not part:
                raise asyncio.IncompleteReadError(bytes(data), num_bytes)
            self._num_left_bytes -= len(part)
            data += part
        return bytes(data)

    async def _next_piece(self) -> None:
        kind, num_bytes = HEADER.unpack(await self._reader.readexactly(HEADER.size))
        if kind == STDOUT:
            self._num_left_bytes = num_bytes
            return
        while num_bytes:
            part = await self._reader.readexactly(min(num_bytes, READ_BYTES))
            num_bytes -= len(part)
            self._words = (self._words + part)[-TAIL_BYTES:]


def _settle(done: Future[Result], work: Callable[[], Result]) -> None:
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)


def refused(reason: str) -> SandboxError:
    """What the engine answered, as an error with its kind."""
    text = reason.lower()
    if any(sign in text for sign in _HOST_FULL):
        return SandboxError(
            f"the engine's machine is full: {one_line(reason)}; make room there, or lower sandbox.max_boxes",
            SandboxFault.HOST_FULL,
        )
    kind = SandboxFault.IMAGE if "no such image" in text else SandboxFault.START
    return SandboxError(f"the engine refuses: {one_line(reason)}", kind)


def _gone(path: str, error: Exception) -> SandboxError:
    return SandboxError(
        f"the engine at {path} doesn't answer: {one_line(str(error)) or type(error).__name__}; is it running?",
        SandboxFault.UNAVAILABLE,
    )
