"""Every chat template that writes calls has exactly one parser, and that one reads what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentrl.config import ModelConfig
from agentrl.errors import ConfigError, TemplateError
from agentrl.rollout.parsers import PARSERS, choose, make_parser
from agentrl.rollout.renderer import Renderer
from agentrl.types import CallStatus, Message, ToolCall
from tests.rollout.parsers.builders import Recording
from tests.rollout.templates import SPECS, TOOLS, calling, package_file, renderer, tokenizer, trl_template, user

CHOSEN = {
    "hermes": ("qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"),
    "qwen3_coder": (
        *("qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8", "nemotron_3_nano", "nemotron_3_super"),
        *("nemotron_3_ultra", "nemotron_3_5_lightning"),
    ),
    "llama3": ("llama3_1", "llama3_2"),
    "glm": ("glm4moe",),
    "deepseek": ("deepseekv3",),
    "gemma4": ("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"),
    "harmony": ("gptoss",),
    "lfm2": ("lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl"),
    "muse": ("muse_glimmer",),
}
WITHOUT_CALLS = (
    *("cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "idefics3", "lfm2", "llama3", "llava_next"),
    *("phi3", "phi3_5", "qwen2_5_vl", "smolvlm"),
)
PARSER_OF = {template: name for name, templates in CHOSEN.items() for template in templates}
ONE_CALL = ("llama3_1", "llama3_2", "gptoss")
"""Templates that refuse several calls in one reply, or drop all but the first."""
UNESCAPED = ("lfm2_2_5", "lfm2_2_5_v2")
"""Templates that write strings between quotes as they are, so that not every one can be read."""
STRINGS = ("it's", 'say "hi"', "echo ${x}", "a\\b", "two\nlines", " edges ", "", "None", "007", "é\U0001f600", "<b>&")


def rendering(template: str) -> Callable[..., str]:
    """`ChatTemplate.render` without a tokenizer."""
    from transformers.utils.chat_template_utils import render_jinja_template

    source = trl_template(template)

    def render(messages: Sequence[Any], tools: Sequence[Any] = (), *, prompt: bool = True) -> str:
        try:
            texts, _ = render_jinja_template(
                [list(messages)], tools=list(tools) or None, chat_template=source, add_generation_prompt=prompt,
                bos_token="<bos>", eos_token="<eos>",
            )  # fmt: skip
        except Exception as error:
            raise TemplateError(str(error)) from error
        text: str = texts[0]
        return text

    return render


def chosen(template: str, name: str = "auto") -> choose.Choice:
    return choose.choose_parser(name, rendering(template), control={}, prompt="", model=template)


def test_every_base_template_of_trl_is_named_here() -> None:
    folder = package_file("trl", "chat_templates/qwen3.jinja").parent
    found = {path.stem for path in folder.glob("*.jinja") if not path.stem.endswith("_training")}
    assert found == {*PARSER_OF, *WITHOUT_CALLS}


@pytest.mark.parametrize("template", PARSER_OF)
def test_auto_takes_the_one_parser_that_reads_the_template(template: str) -> None:
    written = list(choose._written(rendering(template)))
    assert [name for name in PARSERS if choose._reads(make_parser(name), written)] == [PARSER_OF[template]]
    choice = chosen(template)
    assert (choice.parser.name, choice.max_calls) == (PARSER_OF[template], 1 if template in ONE_CALL else 2)
    assert choice.shows_tools == (template != "deepseekv3")


@pytest.mark.parametrize("template", WITHOUT_CALLS)
def test_a_template_without_calls_gets_hermes_or_what_is_named(template: str) -> None:
    choice = chosen(template)
    assert (choice.parser.name, choice.shows_tools, choice.max_calls) == ("hermes", False, 0)
    assert chosen(template, "glm").parser.name == "glm"


@pytest.mark.parametrize("template", PARSER_OF)
def test_a12_calls_of_any_arguments_are_read_back_from_the_template(template: str) -> None:
    """Through real templates, each with arguments as it takes them: the values come back, or nothing runs."""
    tool = Recording("probe_tool")
    others = {"integer": -7, "number": 1e-07, "boolean": False, "null": None, "array": [True, None, "x"], "object": {}}
    parser = make_parser(PARSER_OF[template])
    for string in STRINGS:
        arguments = {"string": string, **others}
        text = next(
            text
            for form in (arguments, json.dumps(arguments))
            if (text := choose._reply(rendering(template), [form])) is not None
        )
        (call,) = parser.parse_text(text, tools={tool.name: tool}).calls
        if template in UNESCAPED and call.status is CallStatus.INVALID_JSON:
            assert "'" in string or "\n" in string
            continue
        if template in UNESCAPED and "\\" in string:
            continue  # a backslash that the template didn't escape means what Python says
        assert json.dumps(call.arguments, sort_keys=True) == json.dumps(arguments, sort_keys=True), (string, text)


def test_a_named_parser_that_cannot_read_the_template_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"model.tool_parser=glm can't read .* of qwen3 .*auto, which takes hermes"):
        chosen("qwen3", "glm")
    assert chosen("qwen3", "hermes").max_calls == 2
    bash = chosen("qwen3", "bash:shell.script")
    assert (bash.parser.name, bash.max_calls, bash.shows_tools) == ("bash", 0, False)


def test_an_unknown_name_is_refused_with_the_near_ones() -> None:
    with pytest.raises(ConfigError, match=r"model.tool_parser=qwen3_code: .*choose auto or qwen3_coder"):
        make_parser("qwen3_code")
    with pytest.raises(ConfigError, match=r"TOOL\.ARGUMENT"):
        make_parser("bash:shell")
    with pytest.raises(ConfigError, match="nothing behind a colon"):
        make_parser("hermes:x")
    assert ModelConfig().tool_parser == "auto"


@pytest.mark.parametrize("name", PARSERS)
def test_where_no_tools_are_shown_the_system_message_describes_them_in_the_parsers_form(name: str) -> None:
    made = Renderer(tokenizer("smollm2"), tool_parser=name)
    assert made.parser.name == name and made.tools_in_system and made.template.calls_in_content
    text = made.decode(made.start([user("hi")], SPECS))
    assert '"name": "add"' in text and made.parser.how in text
    assert (
        made.template_hash != Renderer(tokenizer("smollm2"), tool_parser="action:a.b").template_hash or name == "action"
    )


def test_several_calls_are_text_where_the_template_takes_only_one() -> None:
    made = renderer("llama3_2")
    text = made.decode(made.start([user("hi"), calling('{"a": 1}', '{"a": 2}'), user("and?")], SPECS))
    assert '{"name": "add", "parameters": {"a": 1}}; {"name": "add", "parameters": {"a": 2}}' in text


def test_a18_the_template_hash_tells_the_forms_apart() -> None:
    names = ("hermes", "glm", "bash")
    assert len({Renderer(tokenizer("smollm2"), tool_parser=name).template_hash for name in names}) == len(names)


@pytest.mark.parametrize("family", ["qwen3", "llama3_2", "glm4moe", "smollm2"])
def test_an_encoded_reply_is_read_back(family: str) -> None:
    made = renderer(family)
    message = calling('{"a": 1, "b": 2}')
    reply = made.parser.parse(made.encode_reply(message), made.decode, tools=TOOLS, stop_ids=made.stop_ids)
    assert [call.arguments for call in reply.calls] == [{"a": 1, "b": 2}]


def test_an_encoded_harmony_reply_is_whole_and_ends_as_calls_end() -> None:
    tags = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>")
    made_tokenizer = tokenizer("smollm2", trl_template("gptoss"))
    made_tokenizer.add_tokens(list(tags), special_tokens=True)
    made_tokenizer.eos_token = "<|return|>"
    made = Renderer(made_tokenizer, stop_ids=made_tokenizer.convert_tokens_to_ids(["<|call|>"]))
    call = ToolCall(id="call_0", name="add", arguments='{"a": 1, "b": 2}')
    message = Message(role="assistant", content="I add.", reasoning="1+2", tool_calls=[call])
    ids = made.encode_reply(message)
    assert made.decode(ids).startswith("<|channel|>analysis<|message|>1+2<|end|>")
    assert made.decode(ids[-1:]) == "<|call|>" and made.decode(made.encode_reply(user("x"))[-1:]) == "<|return|>"
    assert made.parser.parse(ids, made.decode, tools=TOOLS, stop_ids=made.stop_ids).message == message
