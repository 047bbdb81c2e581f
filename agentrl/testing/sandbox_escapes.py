"""Ways out of a box, each tried. Checks of `agentrl.testing.sandbox`."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agentrl.sandbox import Sandbox
from agentrl.testing.sandbox import Bench, escape, processes, python, run, says

CONNECT = """
import socket, sys
family, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
s = socket.socket(family)
s.settimeout(2)
try:
    s.connect((address, port))
    print("connected")
except OSError as error:
    print("no:", error)
"""
SYSTEM_CALL = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
result = {call}
print("done" if result >= 0 else "no: " + os.strerror(ctypes.get_errno()))
"""
SOCKETS = ("docker.sock", "podman/podman.sock", "containerd/containerd.sock", "dbus/system_bus_socket")
FOLDERS = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/proc/sys/kernel", "/sys", "/root", "/home", "/var", "/opt")


@escape("no network but its own loopback: not outside, not this machine's servers")
async def network(bench: Bench) -> None:
    box = await bench.box()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        places = [("127.0.0.1", port), ("192.0.2.1", 80), (_own_address(), port), ("8.8.8.8", 53)]
        for address, number in places:
            said = (await run(box, ["python3", "-c", CONNECT, "2", address, str(number)])).text
            assert said.startswith("no:"), f"{address}:{number}: {said}"
    interfaces = await says(box, "tail -n +3 /proc/net/dev | cut -d: -f1")
    assert interfaces.split() in ([], ["lo"]), interfaces


@escape("the addresses at which clouds give out credentials can't be reached")
async def metadata_addresses(bench: Bench) -> None:
    box = await bench.box()
    for family, address in (("2", "169.254.169.254"), ("10", "fd00:ec2::254"), ("2", "100.100.100.200")):
        said = (await run(box, ["python3", "-c", CONNECT, family, address, "80"])).text
        assert "no:" in said or "Error" in said, f"{address}: {said}"


@escape("no raw packets, and no socket to a virtual machine's host past the network namespace")
async def odd_sockets(bench: Bench) -> None:
    box = await bench.box()
    for name, family, kind in (("packet", 17, 3), ("vsock", 40, 1), ("raw", 2, 3), ("alg", 38, 5)):
        result = await python(box, f"import socket; socket.socket({family}, {kind}); print('opened')")
        assert b"opened" not in result.stdout, name


@escape("no file of this machine: not by its path, not in anybody's home, not the password file")
async def host_files(bench: Bench) -> None:
    box = await bench.box()
    token = secrets.token_hex(8)
    with _host_file(token) as paths:
        for path in paths:
            assert token not in (await run(box, ["cat", str(path)])).text, f"{path} can be read"
            assert token not in (await run(box, ["cat", f"/proc/1/root{path}"])).text
    for name in ("/etc/shadow", "/root/.ssh/id_rsa", f"{Path.home()}/.bash_history", f"{Path.cwd()}/pyproject.toml"):
        seen = (await run(box, ["cat", name])).stdout
        assert not seen or not _same_as_here(name, seen), f"{name} can be read"


@escape("what lies outside the folders of the box can't be written")
async def read_only_system(bench: Bench) -> None:
    box = await bench.box()
    for folder in FOLDERS:
        result = await run(box, f"touch {folder}/agentrl-probe && echo written; rm -f {folder}/agentrl-probe")
        assert b"written" not in result.stdout, folder
    for path in (
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/etc/passwd",
    ):
        result = await run(box, f"(echo x > {path}) 2>/dev/null && echo written")
        assert b"written" not in result.stdout, path


@escape("links lead to the box's own files, also when the host reads and writes through them")
async def links_out(bench: Bench) -> None:
    box = await bench.box()
    token = secrets.token_hex(8)
    with _host_file(token) as paths:
        for number, path in enumerate(paths):
            target = "/".join([".."] * 12) + str(path)
            await says(box, ["ln", "-sfn", target, f"link{number}"])
            await says(box, ["ln", "-sfn", str(path.parent), f"folder{number}"])
            for name in (f"link{number}", f"folder{number}/{path.name}"):
                assert token.encode() not in await _read(box, name), f"{path} through a link"
            with suppress(OSError):
                await box.write(f"link{number}", b"changed")
            assert path.read_text() == token, f"{path} was changed through a link"
        assert token.encode() not in await box.read_tree(".")


@escape("boxes don't see one another's files, processes or sockets")
async def other_boxes(bench: Bench) -> None:
    token = secrets.token_hex(8)
    listen = f"import socket; s = socket.socket(1); s.bind(chr(0) + '{token}'); s.listen(); s.accept(); print('heard')"
    knock = f"import socket; s = socket.socket(1); s.connect(chr(0) + '{token}'); print('reached')"
    async with bench.own_box() as one, bench.own_box() as other:
        for path in ("/tmp/note", "note", "/dev/shm/note"):
            await run(one, f"echo {token} > {path}")
            assert token not in (await run(other, f"cat {path}")).text, path
        listening = asyncio.create_task(one.exec(["python3", "-c", listen], timeout_s=10))
        await asyncio.sleep(1)
        assert "reached" not in (await python(other, knock)).text
        assert not await processes(other, token)
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


@escape("this machine's processes are not in the box's /proc, nor is what they were started with")
async def host_proc(bench: Bench) -> None:
    box = await bench.box()
    token = secrets.token_hex(8)
    sleep = shutil.which("sleep")  # its first argument is a name that anybody may see who sees the process
    host = subprocess.Popen([token, "60"], executable=sleep, env={"PATH": os.defpath, "TOKEN": token})
    try:
        # The shell counts: a process that it found may be over before another command looks at it.
        seen = await run(
            box, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; echo; set -- /proc/[0-9]*; echo $#"
        )
        assert token not in seen.text
        assert int(seen.text.split()[-1]) < 80, "so many processes aren't the box's"
    finally:
        host.kill()
        host.wait()
    for path in ("/proc/kcore", "/proc/kmsg", "/dev/mem", "/dev/kmsg"):
        assert not (await run(box, ["head", "-c", "10", path])).stdout, path


@escape("the process that speaks with the host can't be traced, read or written to")
async def ptrace(bench: Bench) -> None:
    box = await bench.box()
    for call in ("libc.ptrace(16, 1, 0, 0)", "libc.ptrace(0x4206, 1, 0, 0)"):
        said = (await python(box, SYSTEM_CALL.format(call=call))).text
        assert "done" not in said, f"{call}: {said}"
    for name in ("mem", "environ", "maps", "fd/0", "fd/3", "root/etc/hostname"):
        result = await run(box, f"head -c 1 /proc/1/{name}; (: > /proc/1/{name}) 2>/dev/null && echo opened")
        assert not result.stdout, f"/proc/1/{name}: {result.stdout!r}"


@escape("nothing can be mounted, made a root, or turned into a device")
async def mounts(bench: Bench) -> None:
    box = await bench.box()
    await says(box, "mkdir -p mnt")
    calls = (
        "libc.mount(b'none', b'mnt', b'tmpfs', 0, None)",
        "libc.mount(b'/usr', b'mnt', None, 4096, None)",
        "libc.mount(b'none', b'/usr', None, 32 | 4096, None)",
        "libc.umount2(b'/proc', 2)",
        "libc.chroot(b'mnt')",
        "libc.mknod(b'disk', 0o60666, os.makedev(254, 0))",
        "libc.mknod(b'memory', 0o20666, os.makedev(1, 1))",
        "libc.syscall(428, -100, b'/usr', 1)",
    )
    for call in calls:
        said = (await python(box, SYSTEM_CALL.format(call=call))).text
        assert said.startswith("no:"), f"{call}: {said}"


@escape("no new user namespace, in which the box would be root, and no other namespace")
async def user_namespaces(bench: Bench) -> None:
    box = await bench.box()
    for flag in (0x10000000, 0x10020000, 0x00020000, 0x40000000, 0x20000000):
        said = (await python(box, SYSTEM_CALL.format(call=f"libc.unshare({flag:#x})"))).text
        assert said.startswith("no:"), f"unshare({flag:#x}): {said}"
    # 56 and 220 are clone on x86_64 and on others; the child, should there be one, says so.
    clone = "libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000000 | 17, 0, 0, 0, 0)"
    said = (await python(box, SYSTEM_CALL.format(call=clone))).text
    assert "done" not in said, said
    for name in ("net", "mnt", "user", "pid"):
        result = await run(box, f"nsenter --{name}=/proc/1/ns/{name} true 2>&1 && echo entered")
        assert b"entered" not in result.stdout, name


@escape("the user isn't root, has no capability, and can't become root by a setuid program")
async def setuid(bench: Bench) -> None:
    box = await bench.box()
    state = dict(line.split(":", 1) for line in (await says(box, "cat /proc/self/status")).splitlines() if ":" in line)
    assert state["NoNewPrivs"].strip() == "1", "no_new_privs isn't set"
    held = {name: int(state[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert not any(held.values()), held
    assert 0 not in [int(number) for number in state["Uid"].split()], state["Uid"]
    assert "0" not in (await says(box, "id -G")).split(), "it is in root's group"
    for call in ("libc.setuid(0)", "libc.setgid(0)", "libc.setgroups(1, (ctypes.c_uint * 1)(0))"):
        said = (await python(box, SYSTEM_CALL.format(call=call))).text
        assert said.startswith("no:"), f"{call}: {said}"
    for program in ("su -c id", "sudo -n id"):
        assert b"uid=0" not in (await run(box, program)).stdout, program


@escape("variables of this process, where keys tend to be, are nowhere in the box")
async def environment_secrets(bench: Bench) -> None:
    token = secrets.token_hex(8)
    os.environ["AGENTRL_CHECK_API_KEY"] = token
    try:
        async with bench.own_box() as box:
            look = "env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null"
            seen = (await run(box, look)).text
            session = await box.session()
            seen += (await session.run("set; env", timeout_s=5)).text
    finally:
        del os.environ["AGENTRL_CHECK_API_KEY"]
    assert token not in seen and "AGENTRL_CHECK" not in seen


@escape("no socket of a container engine or of the system")
async def engine_sockets(bench: Bench) -> None:
    box = await bench.box()
    for folder in ("/var/run", "/run", f"/run/user/{os.getuid()}"):
        for name in SOCKETS:
            assert (await run(box, ["test", "-e", f"{folder}/{name}"])).exit_code != 0, f"{folder}/{name}"
    listed = await run(box, "find / -xdev -type s 2>/dev/null")
    assert not listed.stdout.strip(), listed.text


@escape("terminal escapes stay data: no error message carries them on to a log")
async def terminal_escapes(bench: Bench) -> None:
    box = await bench.box()
    evil = "\x1b]0;owned\x07\x1b[2J"
    result = await run(box, ["printf", "%s", evil])
    assert result.text == evil, "output is data, and comes as it is"
    messages = []
    for attempt in (box.read(f"{evil}"), box.read_tree(f"{evil}"), box.write(f"/proc/{evil}", b"")):
        try:
            await attempt
        except Exception as error:
            messages.append(str(error))
    assert len(messages) == 3 and all(message.isprintable() for message in messages), messages


@contextmanager
def _host_file(token: str) -> Iterator[list[Path]]:
    """Files with a token in several places of this machine."""
    with tempfile.TemporaryDirectory() as temporary, tempfile.TemporaryDirectory(dir=_writable_home()) as home:
        paths = [Path(temporary, "secret"), Path(home, "secret")]
        for path in paths:
            path.write_text(token)
            path.chmod(0o644)
            path.parent.chmod(0o755)
        yield paths


def _writable_home() -> str | None:
    return str(Path.home()) if os.access(Path.home(), os.W_OK) else None


def _own_address() -> str:
    """Of this machine in its network, where it has one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _same_as_here(path: str, content: bytes) -> bool:
    try:
        return Path(path).read_bytes()[: len(content)] == content
    except OSError:
        return False


async def _read(box: Sandbox, path: str) -> bytes:
    try:
        return await box.read(path)
    except OSError:
        return b""
