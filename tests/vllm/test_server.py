"""A real vLLM server: what it samples, what it is sent, and how it ends."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from agentrl.config_servers import EngineConfig
from agentrl.engine.vllm import process
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions, VllmProcess
from agentrl.errors import ConfigError, EngineError
from tests.vllm.conftest import Pair


async def test_nothing_but_health_is_answered_without_the_key(engine: VllmEngine) -> None:
    async with aiohttp.ClientSession() as http:
        for path in ("/pause", "/collective_rpc", "/update_weights", "/v1/models", "/metrics", "/tokenize", "/docs"):
            for method in ("GET", "POST"):
                async with http.request(method, engine.url + path) as response:
                    assert response.status == 401, path
        async with http.get(engine.url + "/health") as response:
            assert response.status == 200


def test_the_weights_hash_is_the_trainers(pair: Pair, engine: VllmEngine) -> None:
    assert engine.weights_hash() == pair.policy.weights_hash()


async def test_a_port_that_was_taken_meanwhile_is_left_for_another(
    engine: VllmEngine, engine_log: Path, taken_port: int
) -> None:
    assert engine.url != f"http://127.0.0.1:{taken_port}"
    assert "address already in use" in engine_log.read_text().lower()
    logprobs, _ = await engine.score([5, 6], [7])
    assert len(logprobs) == 1


async def test_a_server_that_dies_at_start_is_told_with_its_log(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = (folder / "config.json").read_text().replace("LlamaForCausalLM", "NoSuchModel")
    (tmp_path / "model" / "config.json").write_text(config)
    server = VllmProcess(options=VllmOptions(model=tmp_path / "model", name="vllm", log=tmp_path / "engine.log"))
    with pytest.raises(EngineError, match=r"it ended with exit code \d+(?s:.*)engine\.log"):
        await server.start(lambda seconds: None)
    assert server.key not in (tmp_path / "engine.log").read_text()


async def test_without_vllm_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"agentrl\[vllm\]"):
        await VllmEngine(VllmOptions(model=tmp_path, name="vllm", log=tmp_path / "log")).start()


ORPHAN = """
import sys, time
from pathlib import Path
from agentrl.engine.vllm.process import VllmOptions, VllmProcess
server = VllmProcess(options=VllmOptions(model=Path(sys.argv[1]), name="vllm", log=Path(sys.argv[2])))
server._spawn()
print(server._process.pid, flush=True)
time.sleep(600)
"""


def test_no_server_outlives_a_parent_that_was_killed(folder: Path, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(folder), str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(8)  # it is on its way: imports, perhaps children
    family = [child, *child.children(recursive=True)]
    os.kill(parent.pid, signal.SIGKILL)
    parent.communicate()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert alive == []


def test_keys_of_another_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="engine=vllm has no cache_tokens"):
        EngineConfig(name="vllm", cache_tokens=4096)
    with pytest.raises(ValueError, match="engine=embedded has no devices"):
        EngineConfig(devices=[0])


def test_the_servers_environment_holds_no_secret(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENAI_API_KEY": "k1", "PGPASSWORD": "k2", "DATABASE_URL": "postgresql://me:k3@db/x", "JUDGE": "a-k4-b",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    options = VllmOptions(model=folder, name="vllm", log=tmp_path / "log", secrets=("k4",))
    environment = options.environment("the key of this server")
    assert not {"OPENAI_API_KEY", "PGPASSWORD", "DATABASE_URL", "JUDGE"} & set(environment)
    assert environment["PATH"] == os.environ["PATH"]


FRESH_PAGES = """
import resource

for _ in range(2):  # blocks below and above those that the allocator asks the kernel for one by one
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for num_mb in (1, 20, 80):
        b"x" * (num_mb << 20)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_a_server_on_a_cpu_keeps_the_memory_that_an_update_frees(folder: Path, tmp_path: Path) -> None:
    environment = VllmOptions(model=folder, name="vllm", log=tmp_path / "log").environment("k")
    done = subprocess.run([sys.executable, "-c", FRESH_PAGES], env=environment, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) < 100  # of 25,856 pages


def test_devices_are_numbered_as_the_trainer_numbers_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = VllmOptions(model=folder, name="vllm", log=tmp_path / "log", devices=(1,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-5a")
    assert options.environment("k")["CUDA_VISIBLE_DEVICES"] == "GPU-5a"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4")
    with pytest.raises(ConfigError, match="shows 1 devices"):
        options.environment("k")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert options.environment("k")["CUDA_VISIBLE_DEVICES"] == "1"
