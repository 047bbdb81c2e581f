"""`agentrl doctor`: what it prints of a model that can be trained, and how it refuses one that can't."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.rollout.renderer import Renderer
from agentrl.train import tiny
from tests.models import families
from tests.rollout.templates import smollm2, tokenizer


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def qwen3(tmp_path: Path) -> Path:
    tokenizer("qwen3").save_pretrained(tmp_path / "qwen3")
    return tmp_path / "qwen3"


def row(out: str, name: str) -> str:
    (line,) = [line for line in out.splitlines() if line.strip().startswith(f"{name}  ")]
    return line.strip().removeprefix(name).strip()


def error(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.strip().splitlines()) == 1
    return captured.err


def test_a04_the_table_of_a_model_that_drops_thinking(qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", str(qwen3)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{qwen3}  template {Renderer(tokenizer('qwen3')).template_hash[:12]}  stop ids 2 <|im_end|>")
    assert row(out, "end of a reply") == r"<|im_end|>, which the model samples; the template adds '\n'"
    assert row(out, "thinking") == "reasoning_content: kept at the next result, dropped at the next user"
    assert row(out, "results of one reply") == "merged"
    assert row(out, "thinking and call, result").split() == ["✓", "✓"]
    assert row(out, "reply with thinking, user").split()[:2] == ["✓", "branch"]
    assert "append: can be trained\nrerender: can be trained; " in out


def test_a_tiny_model_needs_none_of_its_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "tiny", "--env", "calculator"]) == 0
    out = capsys.readouterr().out
    assert row(out, "tools") == "shown" and row(out, "two calls, two results").startswith("✓")


def test_smollm2_is_as_the_page_shows_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    page = (Path(__file__).parents[2] / "docs" / "chat-templates.md").read_text(encoding="utf-8")
    assert "```console\n$ agentrl doctor --model smollm2\n```" in page
    assert main(["doctor", "--model", "smollm2"]) == 0
    out = "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())
    template_hash = re.compile(
        "template [0-9a-f]{12}"
    )  # any change of what the renderer writes by itself gives another
    assert f"```\n{template_hash.sub('', out)}```" in template_hash.sub("", page)
    assert row(out, "tools") == "ignored; the system message describes them"
    assert "You are a helpful AI assistant named SmolLM" in row(out, "without system message")


def test_a18_json_holds_the_facts_and_the_templates_hash(qwen3: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", str(qwen3), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["template_hash"] == Renderer.from_pretrained(str(qwen3)).template_hash
    assert found["is_trainable"] is True and found["stop_ids"] == [2]
    facts = found["template"]
    assert (facts["stop"], facts["thinking_at_user"], facts["history"]) == ("<|im_end|>", "dropped", "rewritten")
    assert {one["append"] for one in facts["scenarios"]} == {"ok"}


def test_a_template_from_a_file_is_tried(qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "another.jinja"
    file.write_text(tiny.TEMPLATE, encoding="utf-8")
    assert main(["doctor", "--model", str(qwen3), "--template", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["template"]["thinking_at_user"] == "kept"


def test_a07_a_template_that_drops_results_does_without_tools_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: Any = families.tokenizer("phi3")
    stops = made.convert_tokens_to_ids(list(families.BY_TEMPLATE["phi3"].stops))
    monkeypatch.setattr("agentrl.rollout.tokenizer.load_tokenizer", lambda path: (made, stops))
    assert main(["doctor", "--model", "phi3"]) == 0
    out = capsys.readouterr().out
    assert "append: can be trained without tools only; with tools refused: self-check, a call and its result: " in out
    assert out.count("the chat template of phi3 drops tool messages") > 1 and "rerender: refused: " in out
    assert main(["doctor", "--model", "phi3", "--env", "calculator"]) == 2  # it can't do without its tool


def test_a07_a_template_that_ends_no_reply_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "endless.jinja"
    file.write_text("{% for message in messages %}<|{{ message.role }}|>{{ message.content }}\n{% endfor %}")
    assert main(["doctor", "--model", "tiny", "--template", str(file)]) == 2
    out = capsys.readouterr().out
    assert row(out, "end of a reply") == "not marked"
    assert row(out, "not in the vocabulary").startswith("<|assistant|>, <|user|>: ")
    assert row(out, "reply, user").startswith("refused")
    assert "append: refused: self-check, a reply and a user message: the chat template of endless.jinja " in out
    assert "rerender: refused: the template writes no token that the tokenizer knows" in out


# ---- one line, exit code 2 ----


def test_a_folder_without_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert main(["doctor", "--model", str(tmp_path)]) == 2
    assert f"{tmp_path} has no tokenizer: copy the model's tokenizer.json" in error(capsys)


def test_a_tokenizer_without_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    smollm2().save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    assert main(["doctor", "--model", str(tmp_path)]) == 2
    assert "has no chat template" in error(capsys)


def test_a_template_with_a_syntax_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "broken.jinja"
    file.write_text("{% for message in messages %}\n{{ message.content }\n{% endfor %}")
    assert main(["doctor", "--model", "tiny", "--template", str(file)]) == 2
    assert "the chat template of broken.jinja has a syntax error in line 2: unexpected '}'" in error(capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--model", "/no/such/folder"], "--model /no/such/folder: no folder there"),
        (["--model", "tiny", "--template", "/no/such.jinja"], "--template /no/such.jinja: can't be read: No such file"),
        (["--model", "tiny", "--env", "nope"], "unknown env 'nope'"),
    ],
)
def test_what_is_not_there(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *arguments]) == 2
    assert says in error(capsys)
