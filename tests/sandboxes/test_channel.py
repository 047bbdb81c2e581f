"""The channel: what an enemy may send, what a silent box does, and old Pythons inside."""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

import psutil
import pytest

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.channel.box import ChannelSandbox, check_archive
from agentrl.sandboxes.channel.client import Client
from agentrl.sandboxes.channel.inside import processes
from agentrl.sandboxes.channel.inside.server import HEADER
from agentrl.sandboxes.channel.inside.tree import NUM_COMMANDS
from agentrl.sandboxes.channel.process import BoxProcess
from agentrl.sandboxes.channel.program import INSIDE, MODULES, program
from agentrl.sandboxes.local import LocalBackend, LocalOptions

READY = HEADER.pack(0, 2, 0) + b"{}"
HOSTILE = {
    "a length of 4 GB": HEADER.pack(1, 2**32 - 1, 0),
    "more bytes than asked for": HEADER.pack(1, 2, 11) + b"{}" + b"x" * 11,
    "a reply to nobody": HEADER.pack(7, 2, 0) + b"{}",
    "no JSON": HEADER.pack(1, 3, 0) + b"\xff\x00{",
    "no object": HEADER.pack(1, 2, 0) + b"[]",
    "JSON without a bottom": HEADER.pack(1, 60_000, 0) + b"[" * 60_000,
    "text, as a program prints it": b"Traceback (most recent call last):\n",
}


async def puppet(says: bytes) -> BoxProcess:
    """A box that starts, reads one request and then says what an enemy would."""
    code = (
        "import os\n"
        f"os.write(1, {READY!r})\n"
        "os.read(0, 1 << 16)\n"
        f"os.write(1, {says!r})\n"
        "while os.read(0, 1 << 16): pass\n"
    )
    return await BoxProcess.start([sys.executable, "-IS", "-c", code], name="puppet", timeout_s=30)


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_was_not_agreed_ends_this_channel_and_no_other(what: str) -> None:
    good = await LocalBackend(LocalOptions(unsafe=True), run="test").start(SandboxSpec())
    box = await puppet(HOSTILE[what])
    with pytest.raises(SandboxError, match="protocol") as raised:
        await box.client.ask({"do": "read"}, limit_s=20, max_bytes=10)
    assert raised.value.kind is SandboxFault.CHANNEL and str(raised.value).isprintable()
    with pytest.raises(SandboxError, match="protocol"):
        await box.client.ask({"do": "ping"}, limit_s=20)
    await box.stop()
    assert (await good.exec("echo fine", timeout_s=20)).stdout == b"fine\n"
    await good.stop()


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"streams": [[3, 0, 0], [0, 0, 0]], "exit_code": "0", "timed_out": False, "shell_ended": False, "seconds": 1},
        {"streams": [[99, 0, 0], [0, 0, 0]], "exit_code": 0, "timed_out": False, "shell_ended": False, "seconds": 1},
        {"streams": [[-3, 0, 0], [6, 0, 0]], "exit_code": 0, "timed_out": False, "shell_ended": False, "seconds": 1},
        {"streams": [[3, 0, 0]] * 3, "exit_code": 0, "timed_out": False, "shell_ended": False, "seconds": 1},
        {"streams": [[3, 0, 0], [0, 0, 0]], "exit_code": 0, "timed_out": 0, "shell_ended": 0, "seconds": 10**400},
        {"streams": 5, "exit_code": 0, "timed_out": False, "shell_ended": False, "seconds": "soon"},
    ],
)
async def test_a_result_that_does_not_add_up_is_no_result(told: dict[str, object]) -> None:
    class Puppet(ChannelSandbox):
        async def end(self) -> None:
            await process.stop()

    text = json.dumps(told).encode()
    process = await puppet(HEADER.pack(1, len(text), 3) + text + b"abc")
    box = Puppet(process.client, SandboxSpec())
    with pytest.raises(SandboxError, match="protocol"):
        await box.exec("true", timeout_s=20)
    await box.stop()


async def test_a_box_that_never_answers_is_given_up_after_the_limit_and_its_grace() -> None:
    """F07: the message names the limit that fired."""
    box = await puppet(b"")
    with pytest.raises(SandboxError, match=r"no answer to 'exec' within 0.3 s") as raised:
        await box.client.ask({"do": "exec"}, limit_s=0.3)
    assert raised.value.kind is SandboxFault.CHANNEL
    await box.stop()


async def test_a_box_that_never_gets_ready_fails_alone_with_its_last_words() -> None:
    """G05: one prints a megabyte and hangs; three others start meanwhile."""
    noise = "import sys; sys.stderr.write('noise ' * 200_000 + 'stuck at \\x1b[31mstep 3'); sys.stdin.read()"
    backend = LocalBackend(LocalOptions(unsafe=True), run="test")
    hanging = BoxProcess.start([sys.executable, "-IS", "-uc", noise], name="hanging", timeout_s=3)
    boxes = await asyncio.gather(hanging, *(backend.start(SandboxSpec()) for _ in range(3)), return_exceptions=True)
    failure, *good = boxes
    assert isinstance(failure, SandboxError) and failure.kind is SandboxFault.START
    assert "wasn't ready within 3 s" in str(failure) and "step 3" in str(failure) and str(failure).isprintable()
    assert all([await box.is_alive() for box in good if not isinstance(box, BaseException)]) and len(good) == 3
    await backend.close()


def test_the_program_is_python_3_7() -> None:
    for name in MODULES:
        ast.parse(resources.files(INSIDE).joinpath(f"{name}.py").read_text(), feature_version=(3, 7))


@pytest.mark.parametrize("python", sorted(Path.home().glob(".pyenv/versions/3.[789].*/bin/python3")), ids=str)
def test_old_pythons_run_it(python: Path) -> None:
    """Those that are on this machine: one command, one file, one archive."""
    settings = {"workdir": "/tmp", "lifetime_s": 30, "rlimits": {}, "cgroups": []}
    command = {"line": "echo hi", "environment": {"PATH": "/usr/bin:/bin"}, "timeout_s": 20, "max_output_bytes": 99}
    requests = [{"do": "exec", **command}, {"do": "read", "path": str(python), "max_bytes": 3}, {"do": "ping"}]
    process = subprocess.Popen(
        [python, "-IS", "-c", program(), json.dumps(settings)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    for number, request in enumerate(requests, start=1):
        text = json.dumps(request).encode()
        process.stdin.write(HEADER.pack(number, len(text), 0) + text)
    process.stdin.flush()
    replies = {}
    for _ in range(1 + len(requests)):
        number, text_bytes, body_bytes = HEADER.unpack(process.stdout.read(HEADER.size))
        replies[number] = (json.loads(process.stdout.read(text_bytes)), process.stdout.read(body_bytes))
    process.stdin.close()
    assert process.wait(20) == 0
    process.stdout.close()
    assert replies[1][0]["exit_code"] == 0 and replies[1][1] == b"hi\n"
    assert replies[2][0] == {"is_too_large": True} and replies[3] == ({}, b"")


async def test_a_request_after_the_end_is_refused_at_once() -> None:
    box = await puppet(b"")
    await box.stop()
    with pytest.raises(SandboxError, match="was stopped"):
        await box.client.ask({"do": "ping"}, limit_s=60)
    assert isinstance(box.client, Client)


async def test_more_commands_than_a_box_takes_are_results_and_no_faults() -> None:
    backend = LocalBackend(LocalOptions(unsafe=True), run="test")
    box = await backend.start(SandboxSpec())
    ends = await asyncio.gather(*(box.exec("sleep 4", timeout_s=60) for _ in range(NUM_COMMANDS + 5)))
    assert sorted(end.exit_code for end in ends) == [0] * NUM_COMMANDS + [126] * 5
    assert "can't run this" in next(end.text for end in ends if end.exit_code == 126)
    await backend.close()


def test_an_archive_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="no tar archive"):
        check_archive(b"x" * 1000)


async def test_an_error_number_that_is_none_is_an_error_all_the_same() -> None:
    text = b'{"errno": 1%s}' % (b"0" * 40)
    box = await puppet(HEADER.pack(1, len(text), 0) + text)
    with pytest.raises(OSError, match="nowhere"):
        await box.client.ask({"do": "read", "path": "nowhere"}, limit_s=20)
    await box.stop()


async def test_a_box_that_cannot_be_stopped_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = LocalBackend(LocalOptions(unsafe=True), run="test")
    stuck, other = [await backend.start(SandboxSpec()) for _ in range(2)]
    end = stuck.end

    async def fail() -> None:
        await end()
        raise SandboxError("the engine doesn't answer", SandboxFault.UNAVAILABLE)

    monkeypatch.setattr(stuck, "end", fail)
    await backend.close()
    assert other.is_stopped


async def test_a_sweep_counts_what_it_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is another user's stays, and is no box that was removed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number in range(2):
        (tmp_path / f"agentrl-box-00000000-1-1-1-{number}").mkdir()
    removing = shutil.rmtree

    def refused(path: Path, **options: bool) -> None:
        if not path.name.endswith("-0"):
            removing(path, **options)

    monkeypatch.setattr(shutil, "rmtree", refused)
    assert await LocalBackend(LocalOptions(unsafe=True), run="test").sweep() == 1


def test_what_forks_faster_than_it_is_stopped_holds_nobody_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look finds others; those that were found are killed all the same."""
    new, sent = itertools.count(10**8), []
    monkeypatch.setattr(processes, "STOP_S", 0.05)
    monkeypatch.setattr(processes, "descendants", lambda root, spared: {next(new)})
    monkeypatch.setattr(processes, "send_signal", lambda pid, number: sent.append((pid, number)))
    assert processes.kill_descendants(1)
    stopped, killed = ({pid for pid, sent_one in sent if sent_one == one} for one in (signal.SIGSTOP, signal.SIGKILL))
    assert stopped == killed and 10**8 in stopped


def _waiting(box: ChannelSandbox) -> list[psutil.Process]:
    """The processes of a box of `local` that wait for its next command."""
    servers = [one for one in psutil.Process().children() if f"{box.place('')}" in " ".join(one.cmdline())]
    return servers[0].children(recursive=True)


async def test_what_waits_for_a_command_is_there_only_while_nothing_runs() -> None:
    """No command sees the processes of the next, and one whose processes were killed before it runs all the same."""
    backend = LocalBackend(LocalOptions(unsafe=True), run="test")
    box = await backend.start(SandboxSpec())
    assert isinstance(box, ChannelSandbox)
    first = await _two_waiting(box)
    told = await box.exec("echo $$; ps -o pid= --ppid $(ps -o ppid= -p $PPID)", timeout_s=20)
    own, *below_server = map(int, told.stdout.split())
    assert [own] == [first[1].pid] and below_server == [first[0].pid]  # those that waited, and no others
    session = await box.session()
    assert (await session.run("echo open", timeout_s=20)).stdout == b"open\n"
    assert len(_waiting(box)) == 2  # the shell and its supervisor
    await session.close()
    waiting = await _two_waiting(box)
    for one in waiting:
        one.kill()
    async with asyncio.timeout(20):
        while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in waiting):
            await asyncio.sleep(0.02)
    assert (await box.exec("echo alive", timeout_s=20)).stdout == b"alive\n"
    long = "x" * 100_000  # more than a pipe holds
    assert (await box.exec("echo $LONG", environment={"LONG": long}, timeout_s=20)).stdout.decode() == long + "\n"
    await backend.close()


async def _two_waiting(box: ChannelSandbox) -> list[psutil.Process]:
    """A supervisor, and what is to become a command."""
    async with asyncio.timeout(20):
        while len(found := _waiting(box)) != 2:
            await asyncio.sleep(0.02)
    return sorted(found, key=lambda one: one.pid)
