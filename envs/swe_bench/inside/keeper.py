"""Runs in a box, alone: starts pytest in a process of its own, and keeps what that tells where its code can't reach.

The tests and the repository's code run in the child. This process holds the key of the signed lines, the canaries'
files and what was told; a process of its own user can't look into it or trace it (PR_SET_DUMPABLE), and its stdout is
not the child's. So a daemon, a thread or a forged text on stdout changes nothing that was told.

It reads one JSON object: word, source (of the reporter), python, arguments, canary_folder, canaries (name → text),
must_fail, planted, bundle, python_path, timeout_s, max_results_bytes, max_output_bytes. It writes one: word,
exit_code, timed_out, events, num_strange_lines, changed_files, output.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_DUMPABLE = 4
DRAIN_S = 0.2
"""For what is still in the pipes when pytest has ended; a daemon may hold them open for ever."""
READ_BYTES = 1 << 16


class Tail:
    """The last bytes of a stream."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.content = max_bytes, bytearray()

    def add(self, part: bytes) -> bool:
        self.content += part
        del self.content[: -self.max_bytes]
        return True


class Whole:
    """The first bytes of a stream; more than it may hold ends it all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.content = max_bytes, bytearray()

    def add(self, part: bytes) -> bool:
        self.content += part
        return len(self.content) <= self.max_bytes


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    request = json.load(sys.stdin)
    before = digests(request["watched"])
    for name, text in request["canaries"].items():
        with open(os.path.join(request["canary_folder"], name), "x") as file:
            file.write(text)
    key = secrets.token_hex(16)
    ran = run(request, key)
    events, num_strange = signed(bytes(ran["results"]), bytes.fromhex(key))
    after = digests(request["watched"])
    told = {
        "word": request["word"],
        "exit_code": ran["exit_code"],
        "timed_out": ran["timed_out"],
        "events": events,
        "num_strange_lines": num_strange,
        "changed_files": [path for path in before if before[path] != after[path]],
        "output": ran["output"].decode("utf-8", "replace"),
    }
    sys.stdout.write(json.dumps(told))


def run(request: dict[str, Any], key: str) -> dict[str, Any]:
    """pytest to its end, or to the time limit."""
    results, told = os.pipe()
    process = subprocess.Popen(
        [request["python"], "-c", request["source"]], pass_fds=[told], start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0
    )  # fmt: skip
    os.close(told)
    names = ("arguments", "must_fail", "planted", "bundle", "python_path")
    for_child = {name: request[name] for name in names}
    for_child.update(key=key, results=told, canaries=list(request["canaries"]))
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError):  # it ended at once
        process.stdin.write(json.dumps(for_child).encode())
        process.stdin.close()
    kept: dict[int, Any] = {
        results: Whole(request["max_results_bytes"]),
        process.stdout.fileno(): Tail(request["max_output_bytes"]),
    }
    in_time = follow(process, kept, time.monotonic() + request["timeout_s"])
    end(process)
    exit_code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    contents = [stream.content for stream in kept.values()]
    return {"exit_code": exit_code, "timed_out": not in_time, "results": contents[0], "output": contents[1]}


def follow(process: subprocess.Popen[bytes], kept: dict[int, Any], until: float) -> bool:
    """Read both streams until the process has ended. Was that in time, and not too much?"""
    selector = selectors.DefaultSelector()
    for file in kept:
        selector.register(file, selectors.EVENT_READ)
    drain_until = None
    while selector.get_map():
        now = time.monotonic()
        if drain_until is None and process.poll() is not None:
            drain_until = now + DRAIN_S
        if drain_until is not None and now > drain_until:
            return True
        if now > until:
            return process.poll() is not None
        for ready, _ in selector.select(min(0.05, max(0.0, until - now))):
            part = os.read(ready.fd, READ_BYTES)
            if not part:
                selector.unregister(ready.fd)
            elif not kept[ready.fd].add(part):
                return True
    try:
        process.wait(max(0.1, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def end(process: subprocess.Popen[bytes]) -> None:
    """What left its session dies with this command."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def signed(content: bytes, key: bytes) -> tuple[list[Any], int]:
    """The events of lines with the right signature, as long as their numbers go on; and how many lines are left."""
    events: list[Any] = []
    lines = content.split(b"\n")
    for number, line in enumerate(lines[:-1]):
        signature, _, text = line.partition(b" ")
        right = hashlib.blake2b(text, key=key, digest_size=16).hexdigest().encode()
        if not secrets.compare_digest(signature, right):
            return events, len(lines) - number
        event = json.loads(text)
        if event["n"] != number:
            return events, len(lines) - number
        events.append(event)
    return events, 0  # a last line that is cut off was being written when all ended


def digests(paths: list[str]) -> dict[str, str | None]:
    """path → hash of the file, without following a link; None: it isn't there, or is none."""
    found: dict[str, str | None] = {}
    for path in paths:
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                found[path] = hashlib.sha256(file.read()).hexdigest()
        except OSError:
            found[path] = None
    return found


if __name__ == "__main__":
    main()
