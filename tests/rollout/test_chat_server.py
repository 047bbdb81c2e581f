"""The scripted chat endpoint and a real one, `transformers serve`, take the same requests and answer in one form."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.config_servers import EngineConfig
from agentrl.rollout.chat_client import ChatClient
from agentrl.rollout.chat_messages import read_completion
from agentrl.rollout.samplers import ChatSampler
from agentrl.rollout.unrendered import Unrendered
from agentrl.testing.chat import ChatSays, Json, ScriptedChat, calling
from agentrl.testing.toy import Toy
from agentrl.train import tiny
from agentrl.types import Sampler, StopReason
from tests.rollout.loops import make_loop, play

pytest.importorskip("fastapi", reason="transformers serve needs fastapi, uvicorn and openai")
TOOLS = [tool.spec() for tool in Toy.tools]
ASKED: Json = {"role": "user", "content": "Say red."}
CALLED: Json = {"role": "assistant", **calling(("repeat", '{"text": "red"}'), content="").message}
RESULT: Json = {"role": "tool", "content": "red", "tool_call_id": "call_0_repeat"}
BROKEN: Json = {"role": "assistant", **calling(("repeat", "{broken"), content="").message}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """(URL, model) of a real server with an untrained model."""
    folder = tmp_path_factory.mktemp("served")
    model = str(tiny.make(folder / "model", ["Say red for task 0."], 0))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", model, "--device", "cpu"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            stdout=log,
            stderr=log,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    try:
        _wait(server, f"http://127.0.0.1:{port}/health", folder / "log")
        yield f"http://127.0.0.1:{port}/v1", model
    finally:
        server.terminate()
        server.wait(20)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    for _ in range(600):
        assert server.poll() is None, log.read_text()
        try:
            httpx.get(url, timeout=5)
            return
        except httpx.TransportError:
            time.sleep(0.1)
    raise AssertionError(log.read_text())


async def ask(url: str, model: str, messages: list[Json], **more: Any) -> httpx.Response:
    body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0.0, "seed": 1, **more}
    async with httpx.AsyncClient(timeout=60) as http:
        return await http.post(f"{url}/chat/completions", json=body)


@pytest.mark.parametrize(
    ("messages", "more", "is_taken"),
    [
        ([ASKED], {}, True),
        ([ASKED], {"tools": TOOLS}, True),
        ([ASKED, CALLED, RESULT], {"tools": TOOLS}, True),
        ([ASKED], {"top_k": 3}, False),
        ([ASKED, BROKEN, RESULT], {"tools": TOOLS}, False),
    ],
)
async def test_both_take_the_same_requests_and_answer_in_one_form(
    served: tuple[str, str], messages: list[Json], more: Json, is_taken: bool
) -> None:
    said = ChatSays(message={"content": "red"}, finish_reason="length", num_tokens=4)
    async with ScriptedChat(lambda _: said, unknown=["top_k"]) as fake:
        answers = [await ask(*served, messages, **more), await ask(fake.url, served[1], messages, **more)]
    assert [answer.status_code == 200 for answer in answers] == [is_taken] * 2
    if is_taken:
        real, scripted = (read_completion(answer.json()) for answer in answers)
        assert (real.finish_reason, real.num_tokens) == (scripted.finish_reason, scripted.num_tokens)
        assert real.message.role == scripted.message.role and not real.message.tool_calls
        assert _keys(answers[1].json()) <= _keys(answers[0].json())  # the fake invents nothing


def _keys(value: Any, prefix: str = "") -> set[str]:
    """Paths of all keys."""
    if isinstance(value, list):
        return set().union(*(_keys(item, f"{prefix}[]") for item in value))
    if isinstance(value, dict):
        return set().union(*(_keys(item, f"{prefix}.{name}") for name, item in value.items()))
    return {prefix}


async def test_an_episode_is_played_on_it(served: tuple[str, str]) -> None:
    url, model = served
    async with ChatClient(EngineConfig(api="chat", urls=[url], model=model)) as client:
        loop = make_loop(
            Unrendered(),
            None,
            sampler=lambda env, trajectory: ChatSampler(client, Unrendered(), env),
            max_turn_tokens=6,
        )
        trajectory = (await play(loop)).trajectory
    assert trajectory.stop_reason is StopReason.TURN_LENGTH, trajectory.error
    (turn,) = trajectory.turns
    assert turn.sampler is Sampler.TEXT and turn.message.text
