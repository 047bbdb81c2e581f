"""Running servers whose URL holds a password, or whose model was named by an id. The real ones: tests/vllm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from agentrl.config import RunConfig
from agentrl.engine.vllm.attached import AttachedEngine
from agentrl.engine.vllm.process import VllmOptions
from agentrl.errors import EngineError
from agentrl.rollout.http_client import HttpClient
from agentrl.transfer import local_folder


def attached(url: str) -> AttachedEngine:
    options = VllmOptions(model=Path("model"), name="theirs", log=Path("no.log"))
    return AttachedEngine(options, url=url, key=None, model=None)


async def test_a_password_in_the_url_is_in_no_error() -> None:
    engine = attached("http://me:hush-hush@127.0.0.1:9")
    with pytest.raises(EngineError, match=r"http://me:\*\*\*@127\.0\.0\.1:9/resume") as caught:
        await engine.resume()
    assert "hush" not in str(caught.value)


async def test_a_password_in_the_url_goes_without_a_key() -> None:
    """Two kinds of authorization in one request are refused by the HTTP library."""
    engine = attached("http://me:hush-hush@127.0.0.1:9")
    client = HttpClient(engine.url, key=engine.key)
    with pytest.raises(EngineError, match="the connection failed"):
        await client.open()
    await client.close()


@pytest.mark.parametrize(
    "section", [{"engine": {"urls": "http://me:hush@h/v1"}}, {"chat": {"url": "http://me@h/v1", "model": "m"}}]
)
def test_a_key_and_a_user_in_the_url_are_refused(section: dict[str, dict[str, str]]) -> None:
    ((name, keys),) = section.items()
    config = {"env": {"name": "calculator"}, name: keys}
    RunConfig.model_validate(config)
    with pytest.raises(ValidationError, match=rf"{name}\.key_env=THE_KEY: {name}\.urls? names a user as well"):
        RunConfig.model_validate({**config, name: {**keys, "key_env": "THE_KEY"}})


def test_an_empty_password_hides_nothing_else() -> None:
    """A token as the user, without a password: the server of the run still gets its environment."""
    config = RunConfig.model_validate(
        {"env": {"name": "calculator"}, "chat": {"url": "https://token:@h/v1", "model": "m"}}
    )
    assert config.secrets() == []
    options = VllmOptions(model=Path("model"), name="vllm", log=Path("no.log"), secrets=tuple(config.secrets()))
    assert options.environment("key")["PATH"] == os.environ["PATH"]


def test_a_served_model_id_is_found_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the weights of some/model are in no folder here"):
        local_folder("some/model", revision=None, cache=str(tmp_path))
    snapshot = tmp_path / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "models--some--model" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    assert local_folder("some/model", revision=None, cache=str(tmp_path)) == snapshot
    assert local_folder(str(snapshot), revision=None, cache=None) == snapshot
