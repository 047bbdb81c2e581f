"""A real vLLM server: what it samples, what it is sent, and how it ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentrl import plugins
from agentrl.config import EngineConfig, ModelConfig
from agentrl.engine.vllm import process
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions, VllmProcess
from agentrl.errors import ConfigError, EngineError, PublishError
from agentrl.progress import Silent
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.run import evaluate_model, sent_tensors, train
from agentrl.store import Store
from agentrl.sync.file import FileSync
from agentrl.train.policy import Policy
from tests.small import EvenIds, small_config
from tests.vllm.conftest import FORCED, PROMPT, Pair

SHARED = list(range(100, 164))
"""Two blocks of the prefix cache."""


Sampled = list[tuple[list[int], Generation]]
"""Prompts, each with what was sampled after it."""


async def sampled(pair: Pair, num: int, max_tokens: int, temperature: float = 1.0) -> Sampled:
    prompts = [[*SHARED, 300 + i] for i in range(num)]
    params = [SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=i) for i in range(num)]
    calls = (pair.client.generate(ids, params[i], f"r-{i}") for i, ids in enumerate(prompts))
    return list(zip(prompts, await asyncio.gather(*calls), strict=True))


def max_difference(pair: Pair, samples: Sampled, temperature: float = 1.0) -> float:
    """max |trainer - engine| over all sampled ids."""
    worst = 0.0
    for prompt, generation in samples:
        places = range(len(prompt), len(prompt) + len(generation.ids))
        expected = pair.policy.logprobs(prompt + generation.ids, places, temperature=temperature)
        worst = max(worst, *(abs(a - b) for a, b in zip(expected, generation.logprobs, strict=True)))
    return worst


async def test_trainer_and_engine_agree_before_and_after_publishes(pair: Pair) -> None:
    num = 0
    for version in range(3):
        if version:
            report = await pair.sync.publish(
                version, sent_tensors(pair.policy), pair.update(0.01, version), pair.client
            )
            assert report.proof == "canary" and report.canary_delta < 1e-4
        samples = await sampled(pair, 16, 48)
        assert max_difference(pair, samples) < 1e-4
        assert {span.version for _, generation in samples for span in generation.spans} == {version}
        num += sum(len(generation.ids) for _, generation in samples)
    assert num > 500


async def test_logprobs_are_of_the_distribution_that_is_sampled_from(pair: Pair) -> None:
    samples = await sampled(pair, 4, 16, temperature=0.5)
    assert max_difference(pair, samples, temperature=0.5) < 1e-4
    assert max_difference(pair, samples) > 1e-2


async def test_an_update_in_flight_shows_both_versions_and_both_are_exact(pair: Pair) -> None:
    old = pair.policy.logprobs
    running = asyncio.create_task(sampled(pair, 8, 400))
    while not await running_requests(pair.engine):
        await asyncio.sleep(0.02)
    before = {name: tensor.clone() for name, tensor in pair.local().items()}
    await pair.sync.publish(1, sent_tensors(pair.policy), pair.update(0.02), pair.client)
    samples = await running
    spans = [generation.spans for _, generation in samples if len(generation.spans) == 2]
    assert spans and all([span.version for span in two] == [0, 1] for two in spans)
    new = {name: tensor.clone() for name, tensor in pair.local().items()}
    for version, weights in ((0, before), (1, new)):
        put(pair, weights)
        for prompt, generation in samples:
            for span in generation.spans:
                if span.version == version:
                    places = range(len(prompt) + span.start, len(prompt) + span.end)
                    expected = old(prompt + generation.ids, places)
                    got = generation.logprobs[span.start : span.end]
                    assert max(abs(a - b) for a, b in zip(expected, got, strict=True)) < 1e-4


async def running_requests(engine: VllmEngine) -> float:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {engine.key}"}) as http,
        http.get(engine.url + "/metrics") as response,
    ):
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{"))


@torch.no_grad()
def put(pair: Pair, weights: dict[str, torch.Tensor]) -> None:
    for name, tensor in pair.local().items():
        tensor.copy_(weights[name])


async def test_an_update_that_is_torn_partial_or_renamed_is_named_and_can_be_repeated(
    pair: Pair, tmp_path: Path
) -> None:
    whole = {name: tensor.detach().clone().contiguous() for name, tensor in sent_tensors(pair.policy)}
    lacking = dict(list(whole.items())[1:])
    renamed = {name.replace("layers.0", "layers.7"): tensor for name, tensor in whole.items()}
    await pair.engine.pause()
    for tensors, says in ((lacking, "missing: model.embed_tokens.weight"), (renamed, "unexpected: model.layers.7")):
        save_file(tensors, tmp_path / "wrong.safetensors")
        await pair.engine.begin_update()
        with pytest.raises(EngineError, match=says):
            await pair.engine.take_file(tmp_path / "wrong.safetensors")
    (tmp_path / "torn.safetensors").write_bytes((tmp_path / "wrong.safetensors").read_bytes()[:-1000])
    await pair.engine.begin_update()
    with pytest.raises(EngineError, match="HTTP 500"):
        await pair.engine.take_file(tmp_path / "torn.safetensors")
    save_file(whole, tmp_path / "right.safetensors")
    await pair.engine.begin_update()
    assert len(await pair.engine.take_file(tmp_path / "right.safetensors")) == len(whole)
    await pair.engine.end_update(0)
    await pair.engine.resume()
    logprobs, versions = await pair.engine.score(PROMPT, FORCED)
    assert logprobs == pytest.approx(pair.logprobs(), abs=1e-4) and set(versions) == {0}


async def test_other_bytes_than_were_sent_end_the_engines(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    class Lying:
        """The real engine, which says that it received something else; it isn't ended, for others need it."""

        name = "liar"

        def __getattr__(self, method: str) -> object:
            return getattr(pair.engine, method)

        async def take_file(self, path: Path) -> dict[str, str]:
            return await pair.engine.take_file(path) | {"model.norm.weight": "0"}

        async def stop(self) -> None:
            stopped.append(self.name)

    pair.sync.connect(pair.policy.model, [Lying()])
    with pytest.raises(PublishError, match=r"engine 'liar'.*model\.norm\.weight"):
        await pair.sync.publish(1, sent_tensors(pair.policy), pair.update(0.01), pair.client)
    assert stopped == ["liar"]
    await pair.engine.end_update(1)  # for those who come after
    await pair.engine.resume()


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


async def test_a_run_trains_on_what_vllm_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    config = small_config(
        tmp_path, tmp_path / "cache", "engine=vllm", "train.steps=2", "eval.tasks=2", "train.learning_rate=1e-3"
    )
    summary = await train(config, Silent())
    with Store.open(tmp_path / "agentrl.db") as store:
        versions = store.versions(summary.run)
        found = store.find_trajectories(run=summary.run)
        engines = {call.engine for t in found for turn in store.load_trajectory(t.id).turns for call in turn.calls}
        recorded = [step.metrics for step in store.steps(summary.run)]
    assert engines == {"vllm"} and len(versions) == 3
    assert all(metrics["engine"]["num_generated_tokens"] > 0 for metrics in recorded)
    assert not list((Path(summary.paths["folder"]) / "weights").iterdir())
    again = await evaluate_model(
        config.model_copy(update={"model": ModelConfig(path=summary.paths["checkpoint"])}), Silent()
    )
    assert again.held_out_before == summary.held_out_after


def test_the_servers_environment_holds_no_secret(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "OPENAI_API_KEY": "k1", "PGPASSWORD": "k2", "DATABASE_URL": "postgresql://me:k3@db/x", "JUDGE": "a-k4-b",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    options = VllmOptions(model=folder, name="vllm", log=tmp_path / "log", secrets=("k4",))
    environment = options.environment("the key of this server")
    assert not {"OPENAI_API_KEY", "PGPASSWORD", "DATABASE_URL", "JUDGE"} & set(environment)
    assert environment["PATH"] == os.environ["PATH"]


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


async def test_no_file_of_weights_is_left(pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("agentrl.sync.file.save_file", full)
        await pair.sync.publish(1, sent_tensors(pair.policy), pair.update(0.01), pair.client)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "version-7.safetensors").write_bytes(b"of a run that was killed")
    pair.sync.connect(pair.policy.model, [pair.engine])
    assert list(tmp_path.iterdir()) == []


async def test_a_tied_head_that_the_file_stores_too_is_renewed(folder: Path, tmp_path: Path) -> None:
    """vLLM unties the head there, so it must be sent under its own name as well."""
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    options = VllmOptions(model=tmp_path / "model", name="vllm", log=tmp_path / "log")
    with Policy.load(tmp_path / "model", device="cpu", threads=1) as policy:
        async with VllmEngine(options) as engine, HttpClient(engine.url, key=engine.key) as client:
            sync = FileSync(tmp_path / "weights")
            sync.connect(policy.model, [engine])
            pair = Pair(policy, engine, client, sync)
            assert policy.tied_names
            report = await sync.publish(1, sent_tensors(policy), pair.update(0.01), client)
    assert report.proof == "canary"
