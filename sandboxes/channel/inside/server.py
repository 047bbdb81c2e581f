"""The loop: requests in, replies out, and what is due in between."""

from __future__ import annotations

import base64
import errno
import json
import os
import resource
import select
import signal
import struct
import sys
import time

from agentrl.sandboxes.channel.inside.closing import open_files_as
from agentrl.sandboxes.channel.inside.commands import Exec, Shell
from agentrl.sandboxes.channel.inside.files import TooLarge, read, read_tree, write, write_tree
from agentrl.sandboxes.channel.inside.processes import (
    NUM_FILES,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    WAITED,
    Launch,
    as_bytes,
    descendants,
    kill_descendants,
    prctl,
    reap,
)
from agentrl.sandboxes.channel.inside.tree import KILL_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from agentrl.sandboxes.channel.inside.tree import Tree

HEADER = struct.Struct(">III")
READ_BYTES = 1 << 20
POLL_S = 60.0
"""At most, because the system takes no more than 24 days."""


class Server:
    """One box.

    `settings`: workdir, lifetime_s, rlimits {name: limit}, cgroups [open files to join through]; where the server is
    root's, the user of its commands and files; where nothing outside filters system calls, the filter of its commands;
    counters: files that count what the box's memory limit killed, where the host can't see that;
    lifeline: an open file that ends when the box has lost its keeper, though somebody may hold the channel; close:
    files that were inherited and are others'.
    """

    def __init__(self, settings: dict[str, Any], channel: tuple[int, int]) -> None:
        self.settings, self.channel = settings, channel
        self.shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
        self.ends_at, self.is_over = time.monotonic() + settings["lifetime_s"], False
        self.trees: dict[int, Tree] = {}
        self.shells: dict[int, Shell] = {}
        self.running: dict[int, Tree] = {}
        self.spare: Launch | None = None
        """For the next command. There is one only while nothing of any command runs: what nobody could reach before
        it gets its command carries nothing from one to the next."""
        self.has_strays = False
        self.poll = select.poll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        self.incoming, self.outgoing = bytearray(), bytearray()
        self.watch(channel[0], select.POLLIN, self._on_request)
        if settings.get("lifeline") is not None:
            self.watch(settings["lifeline"], select.POLLIN, self._on_lifeline)

    def serve(self) -> None:
        """Until the host hangs up or the lifetime is over."""
        self.reply(0, {"pid": os.getpid()})
        while not self.is_over:
            now = time.monotonic()
            for tree in list(self.trees.values()):
                tree.on_time(now)
            self.is_over = now >= self.ends_at
            self._prepare()
            due = min([self.ends_at] + [tree.next_time() for tree in self.trees.values()])
            for file, _ in self.poll.poll(min(max(0, due - now), POLL_S) * 1000 + 1):
                if file in self.handlers:  # what came before may have closed it
                    self.handlers[file](file)

    # What commands and shells need of it.

    def watch(self, file: int, events: int, handler: Callable[[int], object]) -> None:
        self.handlers[file] = handler
        self.poll.register(file, events)

    def unwatch(self, file: int) -> None:
        if self.handlers.pop(file, None):
            self.poll.unregister(file)

    def close(self, file: int) -> None:
        self.unwatch(file)
        os.close(file)

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """What a request says of its command, complete."""
        argv = request.get("argv") or [self.shell, "-c", request["line"]]
        cwd = os.path.join(self.settings["workdir"], request.get("cwd") or "")
        return {"argv": argv, "cwd": cwd, "environment": request["environment"]}

    def num_out_of_memory(self) -> int:
        """How many processes the box's memory limit has killed, by the first of the files that is there."""
        for path in self.settings.get("counters", ()):
            try:
                with open(path, "rb") as file:
                    words = file.read().split()
            except OSError:
                continue
            return int(words[words.index(b"oom_kill") + 1]) if b"oom_kill" in words else 0
        return 0

    def launch(self, command: dict[str, Any]) -> Launch:
        """The processes for a command. Raises OSError where there can't be more."""
        spare, self.spare = self.spare, None
        if spare is not None and spare.give(command):
            return spare
        return Launch(self.settings, command)

    def _prepare(self) -> None:
        """Start a spare one while the host has its replies and nothing runs."""
        if self.trees or self.has_strays or self.outgoing or self.spare is not None:
            return
        try:  # noqa: SIM105 - contextlib takes long to load
            self.spare = Launch(self.settings)
        except OSError:  # the box is full; the next command will be told
            pass

    def end(self, supervisor: int) -> None:
        """A supervisor ended, or was killed; then what it watched over has become ours."""
        was_killed = os.waitpid(supervisor, 0)[1] != 0
        del self.trees[supervisor]
        until = time.monotonic() + KILL_S
        while was_killed and kill_descendants(os.getpid(), self.trees) and time.monotonic() < until:
            time.sleep(0.001)
        # What forks faster than we find it: one call meets all, other commands too. Only as the first process of a
        # namespace: elsewhere it would meet the whole machine.
        if was_killed and os.getpid() == 1 and descendants(1, self.trees):
            os.kill(-1, signal.SIGKILL)
        self.has_strays = (was_killed or self.has_strays) and bool(descendants(os.getpid(), self.trees))
        self._reap_strays()

    def reply(self, number: int, told: dict[str, Any], body: bytes = b"") -> None:
        text = json.dumps(told).encode()
        self.outgoing += HEADER.pack(number, len(text), len(body)) + text + body
        self.watch(self.channel[1], select.POLLOUT, self._on_room)

    # Requests.

    def _on_request(self, file: int) -> None:
        data = os.read(file, READ_BYTES)
        self.is_over |= not data  # the host hung up
        self.incoming += data
        while len(self.incoming) >= HEADER.size:
            number, text_bytes, body_bytes = HEADER.unpack_from(self.incoming)
            start, end = HEADER.size + text_bytes, HEADER.size + text_bytes + body_bytes
            if len(self.incoming) < end:
                return
            request = json.loads(self.incoming[HEADER.size : start])
            body = bytes(self.incoming[start:end])
            del self.incoming[:end]
            self._answer(number, request, body)

    def _on_lifeline(self, file: int) -> None:
        self.is_over |= not os.read(file, READ_BYTES)

    def _on_room(self, file: int) -> None:
        del self.outgoing[: os.write(file, self.outgoing[:READ_BYTES])]
        if not self.outgoing:
            self.unwatch(file)

    def _answer(self, number: int, request: dict[str, Any], body: bytes) -> None:
        try:
            getattr(self, "_do_" + request.pop("do"))(number, request, body)
        except OSError as error:
            self.reply(number, {"errno": error.errno, "reason": error.strerror})
        except TooLarge:
            self.reply(number, {"is_too_large": True})
        except Exception:  # an odd tree or archive, e.g. of more folders in folders than Python goes down
            self.reply(number, {"errno": errno.EIO, "reason": ""})

    def _do_ping(self, number: int, request: dict[str, Any], body: bytes) -> None:
        self.reply(number, {})

    def _do_exec(self, number: int, request: dict[str, Any], body: bytes) -> None:
        Exec(self, number, request, body)

    def _do_cancel(self, number: int, request: dict[str, Any], body: bytes) -> None:
        """End a command whose result nobody waits for; its own reply comes all the same."""
        if request["number"] in self.running:
            self.running[request["number"]].kill()
        self.reply(number, {})

    def _do_session(self, number: int, request: dict[str, Any], body: bytes) -> None:
        self.shells[number] = Shell(self, request)
        self.reply(number, {"session": number})

    def _do_run(self, number: int, request: dict[str, Any], body: bytes) -> None:
        self.shells[request["session"]].start_run(number, request)

    def _do_close(self, number: int, request: dict[str, Any], body: bytes) -> None:
        """End a session's shell and what it started. The reply comes when they are gone."""
        self.shells.pop(request["session"]).end(number)

    def _do_read(self, number: int, request: dict[str, Any], body: bytes) -> None:
        self.reply(number, {}, read(self._path(request), request["max_bytes"]))

    def _do_read_tree(self, number: int, request: dict[str, Any], body: bytes) -> None:
        self.reply(number, {}, read_tree(self._path(request), request["max_bytes"]))

    def _do_write(self, number: int, request: dict[str, Any], body: bytes) -> None:
        write(self._path(request), body, request["executable"])
        self.reply(number, {})

    def _do_write_tree(self, number: int, request: dict[str, Any], body: bytes) -> None:
        write_tree(self._path(request), body)
        self.reply(number, {})

    def _path(self, request: dict[str, Any]) -> bytes:
        return as_bytes(os.path.join(self.settings["workdir"], request["path"]))

    def _reap_strays(self) -> None:
        """Zombies that are no supervisor's: theirs must be seen by `end`."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None or found.si_pid in self.trees:
                return
            os.waitpid(found.si_pid, 0)


def main() -> None:
    """Settings are the first argument, as JSON."""
    settings = json.loads(sys.argv[1])
    for file in settings.get("close", ()):
        try:  # noqa: SIM105 - contextlib takes long to load
            os.close(file)
        except OSError:  # who started us did
            pass
    settings["filter"] = base64.b64decode(settings.get("filter", ""))
    signal.pthread_sigmask(signal.SIG_BLOCK, WAITED | {signal.SIGINT, signal.SIGHUP})
    resource.setrlimit(resource.RLIMIT_NOFILE, (NUM_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    channel = (os.dup(0), os.dup(1))  # not inherited by commands
    os.set_blocking(channel[1], False)
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1):
        os.dup2(nothing, file)
    if settings.get("user"):
        os.setgroups([])
        open_files_as(settings["user"])
    try:
        Server(settings, channel).serve()
    except BrokenPipeError:  # the host is gone
        pass
    finally:
        while kill_descendants(os.getpid()):
            reap()
