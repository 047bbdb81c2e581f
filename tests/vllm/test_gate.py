"""Running servers: what they must have been started with, and what they must serve."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from agentrl import plugins
from agentrl.config import RunConfig
from agentrl.engine.vllm.attached import (
    AttachedEngine,
    ServerFacts,
    check_dtype,
    check_key,
    read_facts,
    start_command,
)
from agentrl.engine.vllm.engine import VllmEngine
from agentrl.engine.vllm.process import VllmOptions, VllmProcess
from agentrl.errors import ConfigError, ContextOverflow, EngineError, PublishError
from agentrl.gate import check_devices, check_logprob_mode, check_positions, check_vocabulary_size
from agentrl.progress import Silent, Summary
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.fleet import Fleet
from agentrl.rollout.http_client import HttpClient, ReplyGate
from agentrl.run import evaluate_model, resume, sent_tensors, train
from agentrl.store import Store
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from agentrl.train import tiny
from agentrl.train.policy import Policy
from agentrl.types import EngineCall, Sampler
from tests.small import EvenIds, small_config
from tests.vllm.conftest import PROMPT, Pair

TOLERANCE = 1e-3
DEFAULTS = {"do_sample": True, "top_k": 5, "temperature": 0.2, "repetition_penalty": 3.0, "eos_token_id": 2}
"""A model's own, as many ship with one."""


class BareOptions(VllmOptions):
    """A server as somebody starts it who doesn't know of us."""

    def training_flags(self) -> list[str]:
        return []

    def environment(self, key: str) -> dict[str, str]:
        environment = VllmOptions.environment(self, key)
        return {
            name: value for name, value in environment.items() if name not in ("VLLM_SERVER_DEV_MODE", "VLLM_API_KEY")
        }


@pytest.fixture(scope="module")
def bare(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. The model has sampling defaults of its own."""
    place = tmp_path_factory.mktemp("bare")
    shutil.copytree(folder, place / "model")
    (place / "model" / "generation_config.json").write_text(json.dumps(DEFAULTS))
    server = VllmProcess(options=BareOptions(model=place / "model", name="bare", log=place / "engine.log"))
    asyncio.run(server.start(lambda seconds: None))
    yield server.url
    asyncio.run(server.stop())


@dataclass
class Attached:
    """A run's config for a running server, and the pair that it belongs to."""

    pair: Pair
    folder: Path
    model: Path

    def config(self, *more: str, url: str | None = None) -> RunConfig:
        return small_config(
            self.folder, self.folder / "cache", f"engine.urls=['{url or self.pair.engine.url}']",
            "engine.key_env=THE_KEY", f"model.path={self.model}", "train.steps=1", "eval.tasks=2", "eval.sampled=false",
            *more,
        )  # fmt: skip

    async def train(self, *more: str, url: str | None = None) -> Summary:
        return await train(self.config("engine=vllm", *more, url=url), Silent())

    async def post(self, path: str) -> None:
        headers = {"Authorization": f"Bearer {self.pair.engine.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as http:
            (await http.post(self.pair.engine.url + path)).raise_for_status()


@pytest_asyncio.fixture
async def attached(
    pair: Pair, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Attached]:
    monkeypatch.setattr(plugins, "environment", lambda name: EvenIds)
    monkeypatch.setenv("THE_KEY", pair.engine.key)
    yield Attached(pair, tmp_path / "runs", folder)


def metrics(summary: Summary) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(summary.paths["metrics"]).read_text().splitlines()]


async def test_training_goes_through_a_running_server_and_leaves_it_running(attached: Attached) -> None:
    """C04: the mode of the logprobs that was found is on record."""
    summary = await attached.train("train.learning_rate=1e-3", "train.steps=2", "eval.sampled=true")
    (gate,) = [record for record in metrics(summary) if record["kind"] == "gate"]
    assert gate["logprob_mode"] == "processed"
    assert gate["mean_difference"] < 1e-4 < 1e-2 < gate["mean_difference_raw"]
    with Store.open(attached.folder / "agentrl.db") as store:
        assert len(store.versions(summary.run)) == 3
        assert all(step.metrics["engine"]["num_generated_tokens"] > 0 for step in store.steps(summary.run))
        calls = calls_of(store, summary.run)
    assert {call.engine for call in calls} == {attached.pair.engine.url}
    assert {call.version for call in calls} == {0, 1, 2}
    await attached.pair.client.generate([5], SamplingParams(max_tokens=1, temperature=1.0, seed=0), "still-there")
    assert not list(Path(summary.paths["folder"]).glob("weights/*"))  # they went by gloo


@pytest.mark.long
async def test_a_server_of_our_own_measures_what_a_running_one_measured(attached: Attached) -> None:
    summary = await attached.train("train.learning_rate=1e-3", "eval.sampled=true")
    checkpoint = f"model.path={summary.paths['checkpoint']}"
    own = small_config(attached.folder, attached.folder / "cache", "engine=vllm", checkpoint, "eval.tasks=2")
    again = await evaluate_model(own, Silent())
    assert again.held_out_before == summary.held_out_after
    with Store.open(attached.folder / "agentrl.db") as store:
        assert {call.engine for call in calls_of(store, again.run)} == {"vllm"}


def calls_of(store: Store, run: str) -> list[EngineCall]:
    found = store.find_trajectories(run=run)
    return [call for t in found for turn in store.load_trajectory(t.id).turns for call in turn.calls]


class Stopping(Silent):
    """Ends the run after its first step."""

    def event(self, kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            raise EngineError("stopped by the test")


async def test_a_resumed_run_takes_the_server_back_whatever_it_holds(attached: Attached) -> None:
    """It holds version 1, which has no checkpoint; the run goes on from its start."""
    config = attached.config("engine=vllm", "train.learning_rate=1e-3", "name=stopped")
    with pytest.raises(EngineError, match="stopped by the test"):
        await train(config, Stopping())
    with Store.open(attached.folder / "agentrl.db") as store:
        run = store.runs()[0].id
    summary = await resume(config, Silent(), run)
    kinds = [record["kind"] for record in metrics(summary) if record["kind"] in ("gate", "step")]
    assert kinds == ["gate", "step", "gate", "step"]


async def test_a_server_without_the_flags_is_told_them(attached: Attached, bare: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await attached.train(url=bare)
    said = str(caught.value)
    training, _, evaluation = said.partition("for evaluation too: ")
    for flag in ("VLLM_SERVER_DEV_MODE=1", "--enable-scale-out", "--weight-transfer-config", "--worker-extension-cls"):
        assert flag in training, flag
    for flag in ("--logprobs-mode processed_logprobs", "--generation-config vllm"):
        assert flag in evaluation and flag not in training, flag
    assert bare in said and f"--model {attached.model}" in said and "api_server.entry" in said


def test_the_command_that_is_told_has_all_that_is_asked_for(folder: Path, tmp_path: Path) -> None:
    command = start_command(VllmOptions(model=folder, name="vllm", log=tmp_path / "log", max_model_len=99))
    for words in (
        "VLLM_SERVER_DEV_MODE=1",
        "--enable-scale-out",
        "--middleware",
        "--max-model-len 99",
        "--dtype float32",
    ):
        assert words in command


async def test_a_server_without_the_flags_can_be_evaluated(attached: Attached, bare: str) -> None:
    summary = await evaluate_model(attached.config(url=bare), Silent())
    with Store.open(attached.folder / "agentrl.db") as store:
        found = store.find_trajectories(run=summary.run)
        turns = [turn for t in found for turn in store.load_trajectory(t.id).turns]
    assert {turn.sampler for turn in turns} == {Sampler.ENGINE}
    assert {call.version for turn in turns for call in turn.calls} == {0}


async def test_c04_raw_logprobs_are_refused(attached: Attached, bare: str) -> None:
    async with HttpClient(bare, version=0) as client:
        with pytest.raises(ConfigError, match=r"raw logprobs.*--logprobs-mode processed_logprobs"):
            await check_logprob_mode(client, attached.pair.policy, PROMPT, TOLERANCE)


async def test_c04_logprobs_that_would_be_the_same_in_both_modes_are_no_reason_to_refuse(folder: Path) -> None:
    with Policy.load(folder, device="cpu", threads=1) as policy:
        num_ids = policy.model.config.vocab_size
        for parameter in policy.named_parameters().values():
            parameter.data.zero_()
        endpoint = ScriptedEndpoint(lambda seen: Reply(ids=[7, 8], logprobs=[-math.log(num_ids)] * 2))
        async with endpoint, HttpClient(endpoint.url) as client:
            found = await check_logprob_mode(client, policy, PROMPT, TOLERANCE)
    assert found["logprob_mode"] == "undecided" and found["mean_difference"] < 1e-5


async def test_c02_the_models_own_sampling_defaults_do_not_leak(attached: Attached, bare: str) -> None:
    """They would: a request that leaves them out is answered otherwise."""
    greedy = SamplingParams(max_tokens=12, temperature=0.0, seed=0)
    async with HttpClient(bare, version=0) as client:
        theirs = await client.generate(PROMPT, greedy, "greedy")
        one = [SamplingParams(max_tokens=1, temperature=1.0, seed=seed) for seed in range(60)]
        sampled = await asyncio.gather(*(client.generate(PROMPT, each, f"s-{each.seed}") for each in one))
    ours = await attached.pair.client.generate(PROMPT, greedy, "greedy")
    assert theirs.ids == ours.ids
    assert len({generation.ids[0] for generation in sampled}) > 2 * DEFAULTS["top_k"]  # type: ignore[operator]
    async with httpx.AsyncClient(timeout=60) as http:
        body = {"model": "bare", "prompt": PROMPT, "max_tokens": 12, "temperature": 0.0, "return_token_ids": True}
        left_out = (await http.post(f"{bare}/v1/completions", json=body)).json()
    assert left_out["choices"][0]["token_ids"] != ours.ids


@pytest.mark.parametrize("sampling", ["sampling.top_p=0.9", "sampling.top_k=20"])
async def test_c02_training_needs_the_whole_distribution(attached: Attached, sampling: str) -> None:
    with pytest.raises(ConfigError, match=r"train with sampling\.top_p=1 sampling\.top_k=0"):
        await attached.train(sampling)


FIELDS = """
import json
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.sampling_params import SamplingParams
print(json.dumps([list(SamplingParams.__struct_fields__), list(CompletionRequest.model_fields)]))
"""


async def test_every_key_that_is_sent_is_one_of_vllms() -> None:
    """vLLM ignores a sampling key that it doesn't know."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FIELDS], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    of_generate, of_completions = (set(names) for names in json.loads(done.stdout.splitlines()[-1]))
    everything = SamplingParams(max_tokens=3, temperature=0.5, top_p=0.9, top_k=7, seed=3, stop_token_ids=(2, 4))
    for only_text, known in ((None, of_generate), (str, of_completions)):
        endpoint = ScriptedEndpoint(lambda seen: Reply(ids=[7, 2]), only_text=only_text)
        async with endpoint, HttpClient(endpoint.url, version=0, encode_text=lambda text: [7]) as client:
            await client.generate([1, 2], everything, "asked")
        assert set(endpoint.seen[0].sampling) <= known


async def test_i02_garbage_weights_are_refused_before_anything_is_sampled(attached: Attached) -> None:
    """As after a sleep of level 2: the server answers, from weights that nobody meant."""
    pair = attached.pair
    await pair.sync.publish(1, sent_tensors(pair.policy), pair.update(0.3), pair.client)
    with pytest.raises(ConfigError, match=r"serves other weights than the trainer has.*Start it anew with the model"):
        await attached.train()
    with Store.open(attached.folder / "agentrl.db") as store:
        assert store.find_trajectories(run=store.runs()[0].id) == []


async def test_a_server_that_is_paused_or_asleep_is_named(attached: Attached) -> None:
    await attached.pair.engine.pause()
    with pytest.raises(ConfigError, match=r"is paused \(/is_paused\)"):
        await attached.train()
    with pytest.raises(ConfigError, match=r"is paused \(/is_paused\)"):
        await evaluate_model(attached.config(), Silent())
    await attached.pair.engine.resume()
    await attached.post("/sleep?level=1")
    with pytest.raises(ConfigError, match=r"is asleep: wake it by POST /wake_up"):
        await attached.train()
    await attached.post("/wake_up")
    facts = await read_facts(attached.pair.engine.url, attached.pair.engine.key)
    assert not facts.is_paused and not facts.is_asleep


async def test_a14_another_models_tokenizer_is_named(attached: Attached, tmp_path: Path) -> None:
    other = tiny.make(tmp_path / "other", ["Quite another text, with words of its own."], seed=0)
    with pytest.raises(EngineError, match="another model or revision is served"):
        await attached.train(f"model.path={other}")


async def test_another_chat_template_is_refused_for_training_and_told_for_evaluation(
    attached: Attached, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    shutil.copytree(attached.model, other)
    template = (other / "chat_template.jinja").read_text()
    (other / "chat_template.jinja").write_text(template.replace("<|im_start|>", "<|im_start|> "))
    with pytest.raises(ConfigError, match=r"where the chat template of model\.path gives"):
        await attached.train(f"model.path={other}")
    with caplog.at_level(logging.WARNING):
        await evaluate_model(attached.config(f"model.path={other}"), Silent())
    assert "where the chat template of model.path gives" in caplog.text


async def test_a_server_with_a_shorter_window_than_the_runs_is_named(attached: Attached) -> None:
    with pytest.raises(ConfigError, match=r"holds 1024 tokens.*start it with --max-model-len 4000"):
        await attached.train("limits.max_context_tokens=4000")


async def test_a_model_with_other_ids_is_named(attached: Attached, tmp_path: Path) -> None:
    await check_vocabulary_size(attached.pair.client, attached.model)
    config = json.loads((attached.model / "config.json").read_text())
    for size, says in ((config["vocab_size"] + 1, "has fewer than"), (config["vocab_size"] - 1, "has more than")):
        (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
        with pytest.raises(ConfigError, match=f"{says} the {size} ids"):
            await check_vocabulary_size(attached.pair.client, tmp_path)


async def test_a_prompt_longer_than_the_window_names_trajectory_turn_and_server(attached: Attached) -> None:
    pair = attached.pair
    conversation = Fleet([pair.client], ReplyGate()).conversation()
    with pytest.raises(ContextOverflow, match="request '0f3c-2' to http://127") as caught:
        await conversation.generate([5] * 1100, SamplingParams(max_tokens=5, temperature=1.0, seed=0), "0f3c-2")
    assert pair.engine.url in str(caught.value)


async def test_a_failed_publish_leaves_the_server_paused_and_says_so(
    attached: Attached, caplog: pytest.LogCaptureFixture
) -> None:
    pair = attached.pair
    options = VllmOptions(model=attached.model, name="theirs", log=attached.model / "no.log")
    async with AttachedEngine(options, url=pair.engine.url, key=pair.engine.key, model=None) as engine:
        pair.sync.connect(pair.policy.model, [engine])
        lacking = (named for named in list(sent_tensors(pair.policy))[1:])
        with pytest.raises(PublishError, match=r"missing: model\.embed_tokens"), caplog.at_level(logging.WARNING):
            await pair.sync.publish(1, lacking, pair.update(0.01), pair.client)
    assert "engine 'theirs' is left paused: start it anew" in caplog.text
    assert (await read_facts(pair.engine.url, pair.engine.key)).is_paused
    pair.sync.connect(pair.policy.model, [engine])
    await pair.sync.publish(1, sent_tensors(pair.policy), pair.update(0.01), pair.client)  # for those who come after


async def test_a_server_that_is_not_there_is_named(attached: Attached) -> None:
    with pytest.raises(EngineError, match=r"no server answers at http://127\.0\.0\.1:9 .*engine\.urls"):
        await attached.train(url="http://127.0.0.1:9")


async def test_a_wrong_key_is_named(attached: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", "another")
    with pytest.raises(ConfigError, match=r"refuses the key.*engine\.key_env"):
        await attached.train()


FACTS = ServerFacts(
    config={"model_config": {"dtype": "torch.float32"}},
    answers_generate=True, wants_other_key=False, is_paused=False, is_asleep=False, is_open=True,
)  # fmt: skip


async def test_an_open_server_may_be_trained_with_on_loopback_only(
    engine: VllmEngine, caplog: pytest.LogCaptureFixture
) -> None:
    assert not (await read_facts(engine.url, engine.key)).is_open
    with pytest.raises(ConfigError, match=r"--middleware agentrl\.engine\.vllm\.inside\.RequireKey"):
        check_key("http://10.0.0.1:8000", FACTS, is_training=True)
    for url, is_training in (("http://localhost:8000", True), ("http://10.0.0.1:8000", False)):
        caplog.clear()
        check_key(url, FACTS, is_training=is_training)
        assert "lets anybody change its weights" in caplog.text


def test_a_type_that_rounds_more_than_the_trainer_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    def facts(dtype: str) -> ServerFacts:
        return replace(FACTS, config={"model_config": {"dtype": f"torch.{dtype}"}})

    check_dtype("http://a", facts("float32"), "float32")
    assert not caplog.records
    with pytest.raises(ConfigError, match=r"--dtype float32, or set train\.dtype=bfloat16"):
        check_dtype("http://a", facts("bfloat16"), "float32")
    with pytest.raises(ConfigError, match="computes in float16"):
        check_dtype("http://a", facts("float16"), "bfloat16")
    check_dtype("http://a", facts("float32"), "bfloat16")
    assert "logprobs will differ" in caplog.text


def test_devices_that_trainer_and_engine_share_need_a_share_of_the_memory(tmp_path: Path) -> None:
    config = small_config(tmp_path, tmp_path, "engine=vllm", "engine.devices=[1,2]")
    with pytest.raises(ConfigError, match=r"cuda:1: both engine\.devices=\[1, 2\].*engine\.gpu_memory_utilization"):
        check_devices(config, ["cuda:0", "cuda:1"])
    check_devices(config, ["cuda:0", "cuda:3"])
    check_devices(config, ["cpu", "cpu"])
    said = small_config(tmp_path, tmp_path, "engine=vllm", "engine.devices=[1]", "engine.gpu_memory_utilization=0.4")
    check_devices(said, ["cuda:1"])


def test_urls_leave_no_room_for_what_starts_servers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replicas: for servers that we start"):
        small_config(tmp_path, tmp_path, "engine=vllm", "engine.urls=['http://a']", "engine.replicas=2")
    with pytest.raises(ConfigError, match="names a server twice"):
        small_config(tmp_path, tmp_path, "engine=vllm", "engine.urls=['http://a','http://a/']")


async def test_a_policy_of_fewer_positions_than_the_window_is_refused(folder: Path, tmp_path: Path) -> None:
    with Policy.load(folder, device="cpu", threads=1) as policy:
        check_positions(small_config(tmp_path, tmp_path, "limits.max_context_tokens=1024"), policy, 4096)
        with pytest.raises(ConfigError, match=r"limits\.max_context_tokens=1024 or less"):
            check_positions(small_config(tmp_path, tmp_path), policy, 4096)
