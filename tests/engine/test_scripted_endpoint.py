"""The scripted endpoint of agentrl.testing and the real engine answer in the same form."""

from __future__ import annotations

from typing import Any

import httpx

from agentrl.engine.embedded import EmbeddedEngine
from agentrl.testing.endpoint import Reply, ScriptedEndpoint


def form(value: Any) -> Any:
    """The keys and types of a JSON value, without its contents."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return type(value).__name__


async def ask(url: str, key: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as client:
        answer = await client.post(url + "/inference/v1/generate", json=body)
    return answer.status_code, answer.json()


async def test_the_fake_and_the_real_engine_answer_alike(engine: EmbeddedEngine) -> None:
    body = {
        "token_ids": [5, 6, 7],
        "sampling_params": {"max_tokens": 3, "temperature": 1.0, "seed": 1, "ignore_eos": True},
        "request_id": "r1",
    }
    real_status, real = await ask(engine.url, engine.key, body)
    script = Reply(ids=real["choices"][0]["token_ids"], finish_reason="length")
    async with ScriptedEndpoint(lambda seen: script) as endpoint:
        status, fake = await ask(endpoint.url, "none", body)
        refused_status, _ = await ask(endpoint.url, "none", {})
    choice, real_choice = fake["choices"][0], real["choices"][0]
    assert (status, real_status) == (200, 200)
    # Whatever the fake says, the real engine says too, in the same types.
    for key in set(choice) - {"logprobs"}:
        assert form(choice[key]) == form(real_choice[key]), key
    assert form(choice["logprobs"]["content"][0]).items() <= form(real_choice["logprobs"]["content"][0]).items()
    assert choice["token_ids"] == real_choice["token_ids"] and choice["finish_reason"] == real_choice["finish_reason"]
    assert refused_status == (await ask(engine.url, engine.key, {}))[0] == 400
