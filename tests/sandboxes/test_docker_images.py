"""Images, pulled by a real engine from a registry on this machine."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import docker
import pytest

from agentrl.cli import main
from agentrl.errors import SandboxError, SandboxFault
from agentrl.sandboxes.docker import cache
from agentrl.sandboxes.docker import images as module
from agentrl.sandboxes.docker.engine import Engine
from agentrl.sandboxes.docker.images import Images, mirrored
from agentrl.sandboxes.docker.options import DockerOptions
from tests.docker_engine import need_docker, real_engine
from tests.sandboxes.registry import Registry, registry

PASSWORD = "correct-horse-battery"


@pytest.fixture
def engine() -> Iterator[docker.APIClient]:
    with real_engine() as client:
        yield client


@pytest.fixture
def served(engine: docker.APIClient) -> Iterator[Registry]:
    """A registry; what was pulled from it is removed again."""
    with registry() as found:
        yield found
    for image in engine.images():
        for name in image["RepoTags"] or []:
            if name.startswith((found.address, "agentrl-mirrored/")):
                engine.remove_image(name, force=True)


@pytest.fixture
async def connection() -> AsyncIterator[Engine]:
    found = Engine(None, timeout_s=60)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.02)


async def test_pulls_refused_as_too_many_come_again_g11(served: Registry, connection: Engine) -> None:
    """G11: four of ten answers are 429; every image is here in the end, and each wait was told."""
    chance = random.Random(3)
    served.is_too_often = lambda: chance.random() < 0.4
    images, lines = Images(connection, DockerOptions()), []
    for number in range(5):
        await images.pull(f"{served.address}/task{number}:1", lines.append)
    assert served.num_refused > 0
    assert sum("toomanyrequests" in line and "try 2 in" in line for line in lines) > 0


async def test_a_registry_that_always_refuses_is_no_image_with_advice_g11(served: Registry, connection: Engine) -> None:
    """G11: an infrastructure fault of its own kind, after as many tries as were allowed."""
    served.is_too_often = lambda: True
    image = f"{served.address}/never:1"
    with pytest.raises(SandboxError, match=r"toomanyrequests.*docker login.*mirror.*agentrl sandbox pull") as raised:
        await Images(connection, DockerOptions(max_pull_tries=3)).ensure(image)
    assert raised.value.kind is SandboxFault.IMAGE
    assert f"the image {image}" in str(raised.value)


async def test_an_image_that_nobody_has_is_not_tried_again(connection: Engine, served: Registry) -> None:
    served.manifest = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
    with pytest.raises(SandboxError, match=r"can't be pulled.*check its name") as raised:
        await Images(connection, DockerOptions()).ensure(f"{served.address}/wrong:1")
    assert raised.value.kind is SandboxFault.IMAGE
    assert served.num_manifests <= 3  # of one try


async def test_boxes_that_wait_for_one_image_share_its_pull(served: Registry, connection: Engine) -> None:
    images = Images(connection, DockerOptions())
    found = await asyncio.gather(*(images.ensure(f"{served.address}/shared:1") for _ in range(5)))
    assert {image.name for image in found} == {f"{served.address}/shared:1"}
    assert sum("/blobs/" in path for path in served.paths) == 2  # its layer and its config, once


async def test_a_mirror_stands_in_for_docker_hub(
    served: Registry, connection: Engine, engine: docker.APIClient
) -> None:
    images = Images(connection, DockerOptions(mirror=served.address))
    assert (await images.ensure("agentrl-mirrored/image:2")).name == "agentrl-mirrored/image:2"
    assert any(path == "/v2/agentrl-mirrored/image/manifests/2" for path in served.paths)
    assert engine.inspect_image("agentrl-mirrored/image:2")["RepoTags"] == ["agentrl-mirrored/image:2"]


@pytest.mark.parametrize(
    ("image", "source"),
    [
        ("debian:12", "m:5000/library/debian:12"),
        ("swebench/x:latest", "m:5000/swebench/x:latest"),
        ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
        ("localhost/a:1", "localhost/a:1"),
        ("host:80/a", "host:80/a"),
    ],
)
def test_only_images_without_a_registry_come_from_the_mirror(image: str, source: str) -> None:
    assert mirrored(image, "m:5000") == source
    assert mirrored(image, None) == image


async def test_a_login_is_read_where_docker_left_it_and_shown_nowhere(
    served: Registry,
    connection: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.login = ("user", PASSWORD)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    image = f"{served.address}/private:1"
    with pytest.raises(SandboxError, match="docker login"):
        await Images(connection, DockerOptions()).ensure(image)
    secret = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {served.address: {"auth": secret}}}))
    caplog.set_level("DEBUG")
    lines: list[str] = []
    fresh = Engine(None, timeout_s=60)
    await Images(fresh, DockerOptions()).pull(image, lines.append)
    fresh.close()
    shown = caplog.text + "".join(lines)
    assert PASSWORD not in shown and secret not in shown


async def test_without_pulls_an_image_must_be_here(connection: Engine, served: Registry) -> None:
    with pytest.raises(SandboxError, match=r"isn't here.*pull=false") as raised:
        await Images(connection, DockerOptions(pull=False)).ensure(f"{served.address}/absent:1")
    assert raised.value.kind is SandboxFault.IMAGE
    assert served.paths == []


async def test_a_long_pull_tells_how_far_it_is(
    served: Registry, connection: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REPORT_S", 0.0)
    lines: list[str] = []
    await Images(connection, DockerOptions()).pull(f"{served.address}/slow:1", lines.append)
    assert any("of 1 layers" in line for line in lines)


def test_pull_on_the_command_line_g11(served: Registry, capsys: pytest.CaptureFixture[str]) -> None:
    """G11: images are had before a run; one that isn't there is told, and the exit code says so."""
    served.is_too_often = iter([True, True, *[False] * 99]).__next__
    images = [f"{served.address}/ahead:1", f"{served.address}/ahead:2", "127.0.0.1:1/gone:1"]
    assert main(["sandbox", "pull", "docker", *images, "sandbox.options.max_pull_tries=2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "toomanyrequests" in lines[0] and "try 2 in" in lines[0]
    assert lines[1:3] == [f"{image}: here" for image in images[:2]]
    assert "127.0.0.1:1/gone:1 can't be pulled" in lines[-2]
    assert lines[-1] == "2 of 3 images are here"
    assert main(["sandbox", "pull", "docker", images[0]]) == 0


def test_who_gives_up_on_a_pull_need_not_wait_for_it(served: Registry) -> None:
    """The engine's answer may take an hour; Ctrl-C and SIGTERM take seconds."""
    asked, let_go = threading.Event(), threading.Event()

    def wait() -> bool:
        asked.set()
        return not let_go.wait(60)

    served.is_too_often = wait
    code = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "sandbox", "pull", "docker", f"{served.address}/slow:1"]
    with subprocess.Popen(command) as pulling:
        try:
            assert asked.wait(60)
            pulling.terminate()
            assert pulling.wait(20) != 0
        finally:
            let_go.set()
            pulling.kill()


async def test_what_pulls_brought_is_bounded_g10(
    engine: docker.APIClient, connection: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G10: the least recently used goes; never what is used, was used lately, or didn't come by a pull of ours."""
    monkeypatch.setattr(cache, "KEEP_S", 0.0)
    monkeypatch.setattr(cache, "TOUCH_S", 0.0)
    images = Images(connection, DockerOptions(max_image_bytes=2_500_000))
    foreign = "agentrl-mirrored/foreign:1"
    engine.import_image_from_data(_tar(b"f" * 3_000_000), repository="agentrl-mirrored/foreign", tag="1")
    with ExitStack() as stack:
        registries = [stack.enter_context(registry(content=bytes([n]) * 1_000_000)) for n in range(5)]
        names = [f"{served.address}/image:1" for served in registries]
        try:
            await images.ensure(foreign)
            for name in names[:2]:
                await images.ensure(name)
            container = engine.create_container(names[0], ["/file"])["Id"]
            await images.ensure(names[2])  # the first is used by a container, the second isn't
            assert _here(engine, names) == [names[0], names[2]]
            engine.remove_container(container)
            await images.ensure(names[0])
            await images.ensure(names[3])  # the first was used after the third
            assert _here(engine, names) == [names[0], names[3]]
            engine.tag(names[0], "agentrl-mirrored/somebodys")
            monkeypatch.setattr(cache, "KEEP_S", 600.0)
            for name in (names[4], names[1], names[2]):  # all were used a moment ago
                await images.ensure(name)
            assert _here(engine, names) == names
            monkeypatch.setattr(cache, "KEEP_S", 0.0)
            await Images(connection, DockerOptions(max_image_bytes=1)).pull(names[2], print)  # another run
            assert _here(engine, [*names, foreign]) == [names[0], foreign]  # what has somebody's name stays
        finally:
            for one in engine.images():
                for name in one["RepoTags"] or []:
                    if name.startswith((cache.MARK, "agentrl-mirrored/", *(served.address for served in registries))):
                        engine.remove_image(name, force=True)


def _here(engine: docker.APIClient, names: list[str]) -> list[str]:
    tags = {name for one in engine.images() for name in one["RepoTags"] or []}
    return [name for name in names if name in tags]


def _tar(content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.fixture
def full_engine() -> Iterator[str]:
    """The socket of an engine of its own, whose disk holds 40 MB."""
    need_docker()
    if os.geteuid() != 0:
        pytest.skip("only root may start an engine")
    with tempfile.TemporaryDirectory(prefix="agentrl-") as name:  # a short name: sockets can't have a long one
        folder = Path(name)
        (folder / "data").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", folder / "data"], check=True)
        try:
            yield from _engine_in(folder)
        finally:
            subprocess.run(["umount", folder / "data"], check=True)


def _engine_in(folder: Path) -> Iterator[str]:
    socket = f"unix://{folder}/socket"
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/run", f"--pidfile={folder}/pid", f"--host={socket}"]
    command = ["dockerd", *places, "--bridge=none", "--iptables=false"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as engine:
        for _ in range(200):
            if b"API listen on" in (folder / "log").read_bytes():
                break
            time.sleep(0.1)
        yield socket
        engine.terminate()


async def test_an_engine_whose_disk_is_full_g10(full_engine: str) -> None:
    """G10: no fault of the image or the agent, and another kind than a missing image; what to do is said."""
    connection = Engine(full_engine, timeout_s=60)
    with (
        registry(content=random.Random(0).randbytes(60_000_000)) as served,
        pytest.raises(SandboxError, match=r"no space left.*docker image prune") as raised,
    ):
        await Images(connection, DockerOptions()).ensure(f"{served.address}/large:1")
    assert raised.value.kind is SandboxFault.HOST_FULL
    connection.close()


async def test_an_engine_that_is_not_there(tmp_path: Path) -> None:
    gone = Engine(str(tmp_path / "none.sock"), timeout_s=5)
    with pytest.raises(SandboxError, match=r"there is no .*none.sock") as raised:
        await Images(gone, DockerOptions()).ensure("x:1")
    assert raised.value.kind is SandboxFault.UNAVAILABLE
    gone.close()
