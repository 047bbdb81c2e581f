"""Boxes in containers of a real engine."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import docker
import pytest

from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandbox import SandboxSpec
from agentrl.sandboxes.docker import leftovers
from agentrl.sandboxes.docker.backend import DockerBackend
from agentrl.sandboxes.docker.engine import Engine
from agentrl.testing.sandbox import check, says, verify
from tests.docker_engine import IMAGE, real_engine

SPEC = SandboxSpec(image=IMAGE, memory_bytes=512 * 1024**2)
RUN = f"test-{os.getpid()}"


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.APIClient]:
    """The engine; every image that a test made is removed again."""
    with real_engine() as client:
        yield client
        for image in client.images("agentrl-made"):
            client.remove_image(image["Id"], force=True)


@pytest.fixture
async def backend(engine: docker.APIClient) -> AsyncIterator[DockerBackend]:
    """Of this test; what it leaves is a failure."""
    made = DockerBackend(DockerBackend.Options(), run=RUN)
    yield made
    await made.close()
    assert containers(engine) == []


def containers(engine: docker.APIClient, run: str = RUN) -> list[dict[str, object]]:
    return engine.containers(all=True, filters={"label": f"{leftovers.RUN}={run}"})  # type: ignore[no-any-return]


def make_image(engine: docker.APIClient, name: str, *lines: str) -> str:
    text = "\n".join([f"FROM {IMAGE}", *lines])
    tag = f"agentrl-made:{name}"
    for message in engine.build(fileobj=io.BytesIO(text.encode()), tag=tag, rm=True, network_mode="none", decode=True):
        assert "error" not in message, message
    return tag


async def test_the_suite(engine: docker.APIClient) -> None:
    """The contract and every attack; E07 F07 G02 G03 G08 G09 G12 are among its checks."""
    results = await check(DockerBackend(DockerBackend.Options(), run=RUN), image=IMAGE)
    verify(results)
    assert [result.check.name for result in results if result.verdict != "passed"] == []
    assert containers(engine) == []


async def test_what_the_engine_was_told(engine: docker.APIClient, backend: DockerBackend) -> None:
    await backend.start(SPEC)
    (found,) = containers(engine)
    inspected = engine.inspect_container(found["Id"])
    host = inspected["HostConfig"]
    assert host["NetworkMode"] == "none" and list(inspected["NetworkSettings"]["Networks"]) == ["none"]
    assert host["CapDrop"] == ["ALL"] and sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETPCAP", "SETUID"]
    assert host["SecurityOpt"] == ["no-new-privileges"] and not host["Privileged"]
    assert host["ReadonlyRootfs"] and not host["Binds"] and not inspected["Mounts"]
    assert host["Memory"] == host["MemorySwap"] == SPEC.memory_bytes
    assert (host["PidsLimit"], host["NanoCpus"]) == (SPEC.max_processes, 10**9)
    assert host["AutoRemove"] and host["LogConfig"]["Type"] == "none"
    labels = inspected["Config"]["Labels"]
    assert labels[leftovers.RUN] == RUN
    assert 0 < int(labels[leftovers.EXPIRES]) - time.time() <= SPEC.lifetime_s


async def test_whatever_fills_up_the_box_goes_on(backend: DockerBackend) -> None:
    """All that a command can leave behind in memory, together, and a thousand processes besides."""
    box = await backend.start(SPEC)
    fill = """
    for folder in /tmp . /dev/shm; do
        python3 -c "for n in range(10**6): open('$folder/%d' % n, 'x').close()"
        dd if=/dev/zero of=$folder/0 bs=1M
    done
    python3 -c "import ctypes, itertools; c = ctypes.CDLL(None); [c.shmget(n, 1 << 24, 0o1600) for n in range(1, 99)]"
    python3 -c "import ctypes; c = ctypes.CDLL(None); [c.semget(n, 200, 0o1600) for n in range(1, 9999)]"
    python3 -c "x = bytearray(10**9)"
    :(){ :|:& };:
    sleep 1
    """
    await box.exec(["bash", "-c", fill], timeout_s=60)
    assert await says(box, "python3 -c 'x = bytearray(20 * 2**20); print(len(x))'") == str(20 * 2**20)


async def test_a_box_that_never_gets_ready_g05(engine: docker.APIClient, backend: DockerBackend) -> None:
    """G05: it fails after its own limit, with the end of what it said; three others start meanwhile."""
    script = "yes still loading | head -c 1000000 >&2; exec sleep 1000"
    image = make_image(
        engine, "noisy", f"RUN echo '{script}' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3"
    )
    impatient = DockerBackend(DockerBackend.Options(ready_timeout_s=8), run=RUN)
    bad = asyncio.create_task(impatient.start(SandboxSpec(image=image)))
    others = await asyncio.gather(*(backend.start(SPEC) for _ in range(3)))
    assert not bad.done()
    for box in others:
        assert await says(box, "echo ready") == "ready"
    with pytest.raises(SandboxError, match=r"agentrl-made:noisy wasn't ready within 8 s .*still lo; ") as raised:
        await bad
    assert raised.value.kind is SandboxFault.START
    assert len(containers(engine)) == 3
    await impatient.close()


async def test_a_box_that_says_what_no_box_says(engine: docker.APIClient, backend: DockerBackend) -> None:
    """Its first words are no message of the channel: refused at once, without a wait for more."""
    image = make_image(
        engine, "chatty", "RUN echo 'exec yes' > /usr/local/bin/python3; chmod +x /usr/local/bin/python3"
    )
    with pytest.raises(SandboxError, match="says what no box says") as raised:
        await backend.start(SandboxSpec(image=image))
    assert raised.value.kind is SandboxFault.START


async def test_an_image_without_python(engine: docker.APIClient, backend: DockerBackend) -> None:
    image = make_image(engine, "bare", "RUN rm /usr/bin/python3*")
    with pytest.raises(SandboxError, match=r"agentrl-made:bare ended at once.*needs /bin/sh, and Python 3.7") as raised:
        await backend.start(SandboxSpec(image=image))
    assert raised.value.kind is SandboxFault.START


async def test_code_that_lies_in_the_image(engine: docker.APIClient, backend: DockerBackend) -> None:
    """writable_root: as the image has it, but the user's; another box has its own, and the image's variables hold."""
    commands = "mkdir -p /testbed/src && cd /testbed && git init -q && echo one > src/a.py && git add ."
    image = make_image(engine, "repository", f"RUN {commands}", "ENV PATH=/opt/conda/bin:/usr/bin:/bin MODE=fast")
    spec = SandboxSpec(image=image, workdir="/testbed", writable_root=True)
    one, two = await asyncio.gather(backend.start(spec), backend.start(spec))
    assert await says(one, "echo two > src/a.py && git -c core.fileMode=false diff --stat | tail -1; id -u") == (
        "1 file changed, 1 insertion(+), 1 deletion(-)\n1000"
    )
    assert await says(two, "cat src/a.py; echo $MODE $PATH") == "one\nfast /opt/conda/bin:/usr/bin:/bin"
    assert (await one.exec("touch /usr/x", timeout_s=10)).exit_code != 0


async def test_the_volumes_of_an_image_lie_in_memory(engine: docker.APIClient, backend: DockerBackend) -> None:
    """The engine would make each on its disk, without a bound."""
    before = engine.volumes()["Volumes"]
    image = make_image(engine, "volumes", 'VOLUME ["/data", "/cache/", "/workspace", "/tmp"]')
    box = await backend.start(replace(SPEC, image=image, disk_bytes=48 * 1024**2))
    assert engine.volumes()["Volumes"] == before
    fill = (
        "for folder in /data /cache; do dd if=/dev/zero of=$folder/big bs=1M; stat -c %s $folder/big; done 2>/dev/null"
    )
    assert await says(box, fill) == "4194304\n4194304"  # /tmp's quarter, in three


async def test_a_volume_that_holds_what_the_image_has_goes_with_its_box(
    engine: docker.APIClient, backend: DockerBackend
) -> None:
    """Where folders of the image may be written to, its volumes keep their content; they end with the box."""
    before = engine.volumes()["Volumes"] or []
    image = make_image(engine, "full-volume", "RUN mkdir /data && echo kept > /data/file", "VOLUME /data")
    boxes = [await backend.start(SandboxSpec(image=image, workdir="/data", writable_root=True)) for _ in range(2)]
    assert await says(boxes[0], "cat file") == "kept"
    assert len(engine.volumes()["Volumes"]) == len(before) + 2
    await boxes[0].stop()
    engine.kill(boxes[1].container)
    await _until(lambda: len(engine.volumes()["Volumes"] or []) == len(before))


async def test_no_network_is_made_for_a_box_g07(engine: docker.APIClient, backend: DockerBackend) -> None:
    """G07: networks can't run out, for there are none."""
    before = {network["Id"] for network in engine.networks()}
    boxes = await asyncio.gather(*(backend.start(SPEC) for _ in range(4)))
    assert {network["Id"] for network in engine.networks()} == before
    await asyncio.gather(*(box.stop() for box in boxes))


DRIVER = """
import asyncio
from agentrl.sandboxes.docker.backend import DockerBackend
from agentrl.sandbox import SandboxSpec

async def main():
    backend = DockerBackend(DockerBackend.Options(), run={run!r})
    boxes = await asyncio.gather(*(backend.start(SandboxSpec(image={image!r})) for _ in range(4)))
    print("ready", flush=True)
    await asyncio.gather(*(box.exec("sleep 600", timeout_s=600) for box in boxes))

asyncio.run(main())
"""


async def test_a_killed_driver_leaves_no_container_g06(engine: docker.APIClient, backend: DockerBackend) -> None:
    """G06: four boxes of a driver that is killed end by themselves, without anybody's help; others live on."""
    own = await backend.start(SPEC)
    dead = f"{RUN}-dead"
    text = DRIVER.format(run=dead, image=IMAGE)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"ready\n"
        assert len(containers(engine, dead)) == 4
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    await _until(lambda: not containers(engine, dead))
    assert await own.is_alive()


async def test_a_sweep_takes_what_dead_runs_left_and_no_more_g06(
    engine: docker.APIClient, backend: DockerBackend
) -> None:
    """G06: by process, and by expiry where the process is another machine's. Removed ones are counted."""
    own = await backend.start(SPEC)
    of_ours = leftovers.labels(RUN, 100)
    owner = of_ours[leftovers.OWNER]
    boot, space, pid, start = owner.removeprefix("agentrl-box-").rstrip("-").split("-")
    dead = subprocess.Popen(["true"])
    dead.wait()
    owners = {
        "process that ended": f"agentrl-box-{boot}-{space}-{dead.pid}-1-",
        "its id is another's": f"agentrl-box-{boot}-{space}-{pid}-1-",
        "another machine's": f"agentrl-box-00000000-{space}-{dead.pid}-{start}-",
        "another container's": f"agentrl-box-{boot}-1-{dead.pid}-{start}-",
    }
    made = {
        name: _container(engine, {**of_ours, leftovers.OWNER: found}, is_running=name.startswith("another"))
        for name, found in owners.items()
    }
    made["expired"] = _container(
        engine,
        {**of_ours, leftovers.OWNER: owners["another machine's"], leftovers.EXPIRES: str(int(time.time()) - 3600)},
    )
    made["a stranger's"] = _container(engine, {"somebody": "else"})
    assert not leftovers.remove(engine, "listed-but-gone")  # isn't counted
    try:
        assert await backend.sweep() == 3
        left = {one["Id"] for one in engine.containers(all=True)}
        assert {name for name, one in made.items() if one in left} == {
            "another machine's", "another container's", "a stranger's",
        }  # fmt: skip
        assert await own.is_alive()
        assert await backend.sweep() == 0
    finally:
        for one in made.values():
            _remove(engine, one)


async def test_who_stops_waiting_leaves_no_container(engine: docker.APIClient, backend: DockerBackend) -> None:
    for wait_s in (0.02, 0.2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.start(SPEC), wait_s)
    await backend.close()
    assert containers(engine) == []


async def test_a_container_that_somebody_removes_is_a_box_that_died(
    engine: docker.APIClient, backend: DockerBackend
) -> None:
    box = await backend.start(SPEC)
    command = asyncio.create_task(box.exec("sleep 60", timeout_s=60))
    await asyncio.sleep(0.5)
    (found,) = containers(engine)
    engine.remove_container(found["Id"], force=True)
    with pytest.raises(SandboxError, match="ended while it was in use") as raised:
        await command
    assert raised.value.kind is SandboxFault.DIED
    assert not await box.is_alive()


async def test_what_the_client_is_configured_with_stays_outside(
    backend: DockerBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK would put the proxies of docker's own configuration into each container."""
    proxy = "http" + "://user:secret-word@proxy:1"
    (tmp_path / "config.json").write_text(json.dumps({"proxies": {"default": {"httpProxy": proxy}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    box = await backend.start(SPEC)
    assert "secret-word" not in await says(box, "env; cat /proc/1/environ || true")


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"image": None}, SandboxFault.IMAGE, r"sandbox.options.image"),
        ({"network": True}, SandboxFault.UNAVAILABLE, r"sandbox.options.allow_network=true"),
        ({"image": "Wrong Name"}, SandboxFault.IMAGE, r"Wrong Name"),
        ({"cpus": 1000.0}, SandboxFault.START, r"CPUs"),
    ],
)
async def test_what_cannot_be_had(
    backend: DockerBackend, changes: dict[str, object], kind: SandboxFault, words: str
) -> None:
    with pytest.raises(SandboxError, match=words) as raised:
        await backend.start(SandboxSpec(**{"image": IMAGE, **changes}))  # type: ignore[arg-type]
    assert raised.value.kind is kind


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"socket": "/nowhere/docker.sock"}, r"there is no /nowhere/docker.sock: start the engine, or"),
        ({"socket": "tcp" + "://10.0.0.1:2375"}, r"no socket of this machine: forward it by `ssh -L`"),
        ({"runtime": "no-such"}, r"no runtime 'no-such'; it has: .*runc"),
    ],
)
async def test_the_preflight_says_what_is_missing(
    engine: docker.APIClient, options: dict[str, str], words: str
) -> None:
    backend = DockerBackend(DockerBackend.Options(**options), run=RUN)
    (line,) = (await backend.preflight()).missing
    await backend.close()
    assert re.search(words, line)


def _container(engine: docker.APIClient, labels: dict[str, str], *, is_running: bool = False) -> str:
    host = engine.create_host_config(network_mode="none", init=True)
    made = engine.create_container(IMAGE, ["sleep", "100"], labels=labels, host_config=host)["Id"]
    if is_running:
        engine.start(made)
    return str(made)


def _remove(engine: docker.APIClient, container: str) -> None:
    with suppress(docker.errors.NotFound):
        engine.remove_container(container, force=True)


async def _until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    ends_at = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < ends_at, "too late"
        await asyncio.sleep(0.1)


async def test_an_engine_that_hangs_is_given_up(tmp_path: Path) -> None:
    """It takes a connection, and never says a word."""
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _, writer: accepted.append(writer), tmp_path / "socket")
    engine = Engine(str(tmp_path / "socket"), timeout_s=0.2)
    with pytest.raises(SandboxError, match="doesn't answer") as raised:
        async with asyncio.timeout(20):
            await engine.attach("box")
    assert raised.value.kind is SandboxFault.UNAVAILABLE
    for writer in accepted:
        writer.close()
    server.close()
    await server.wait_closed()
