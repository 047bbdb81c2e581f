"""The mistakes that models make, one by one, with the status that each ends in."""

from __future__ import annotations

import json

import pytest

from agentrl.rollout.parsers import make_parser
from agentrl.types import CallStatus, ParsedCall
from tests.rollout.parsers.builders import NAMES, ONE_TOOL, TOOLS, as_call, calling
from tests.rollout.parsers.test_formats import EXAMPLES

JSON_FORMS = {
    "hermes": '<tool_call>{"name": "probe", "arguments": %s}</tool_call>',
    "llama3": '{"name": "probe", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "probe", "arguments": %s}]',
    "mistral_args": "[TOOL_CALLS]probe[ARGS]%s",
    "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>probe\n```json\n%s\n```<｜tool▁call▁end｜>",
    "harmony": "<|channel|>commentary to=functions.probe<|message|>%s<|call|>",
}
"""Formats whose arguments are JSON."""


def only(name: str, text: str) -> ParsedCall:
    (call,) = make_parser(name).parse_text(text, tools=TOOLS).calls
    assert (call.arguments is None) == (call.status is not CallStatus.OK)
    return call


@pytest.mark.parametrize("name", JSON_FORMS)
@pytest.mark.parametrize(
    "arguments",
    [
        *("{'string': 'ls', 'boolean': True}", '{"boolean": True}', '{"null": None}', '{"string": "a",}', "{,}"),
        *('{"string": "ls"}{"string": "ls"}', '{"string": "ls"} {"string": "ls"}', '{"string": "a", "string": "b"}'),
        *('{"string": "a"', '{"string": "a}', '{"string": a"}', '{"string": "a\nb"}', '{"string": "\x07"}'),
        *('{"number": NaN}', '{"number": 1e999}', '{"number": .5}', '{"integer": 05}', "null", "[]", '"{}"', "3", ""),
        *('{"string": "a"} // done', '{"string": "a" "b"}', '{string: "a"}', '{"string": "\\x41"}', "{" * 100_000),
    ],
)
def test_b10_b11_json_is_read_strictly(name: str, arguments: str) -> None:
    calls = make_parser(name).parse_text(JSON_FORMS[name] % arguments, tools=TOOLS).calls
    assert calls and all(call.status is CallStatus.INVALID_JSON and call.error for call in calls)


@pytest.mark.parametrize("name", JSON_FORMS)
def test_b09_shell_text_is_read_exactly(name: str) -> None:
    for text in ("echo ${x", 'echo "\\"}{"', "\U0001f600\u2028", 'say "it\'s" `x`', "\\", "</tool_call>[TOOL_CALLS]"):
        raw = json.dumps({"string": text}, ensure_ascii=False)
        call = only(name, JSON_FORMS[name] % raw)
        assert (call.status, call.arguments, call.call.arguments) == (CallStatus.OK, {"string": text}, raw)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_TOOL])
@pytest.mark.parametrize("tool", ["probeprobe", "solve_equation", "Probe", "functions.probe.x"])
def test_b10_invented_and_doubled_names_are_unknown_tools(name: str, tool: str) -> None:
    parser = make_parser(name)
    call = only(name, parser.write(calling(as_call({"string": "a"}, name=tool))))
    assert (call.status, call.call.name) == (CallStatus.UNKNOWN_TOOL, tool)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<parameter=string>\na\n</parameter>\n<parameter=string>\nb\n</parameter>\n"),
        ("qwen3_coder", "<parameter=string>\na\n"),
        ("qwen3_coder", "<parameter=string>\na\n</parameter>\nand more\n"),
        ("qwen3_coder", '{"string": "a"}'),
    ],
)
def test_b10_elements_are_read_strictly(name: str, text: str) -> None:
    call = only(name, f"<tool_call>\n<function=probe>\n{text}</function>\n</tool_call>")
    assert call.status is CallStatus.INVALID_JSON and call.call.arguments.startswith("<function=probe>")


def test_b11_a_python_list_may_be_written_in_either_notation() -> None:
    call = only("lfm2", "<|tool_call_start|>[probe(object={\"a\": true, 'b': None},)]<|tool_call_end|>")
    assert call.arguments == {"object": {"a": True, "b": None}}


@pytest.mark.parametrize("name", NAMES)
def test_b08_equal_calls_are_two_calls(name: str) -> None:
    tool, key = ONE_TOOL.get(name, ("probe", "string"))
    parser = make_parser(name)
    text = parser.write(calling(as_call({key: "ls"}, name=tool), as_call({key: "ls"}, name=tool)))
    calls = parser.parse_text(text, tools=TOOLS, call_prefix="call_3_").calls
    assert [(call.call.id, call.status) for call in calls] == [
        ("call_3_0", CallStatus.OK),
        ("call_3_1", CallStatus.OK),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_is_quoted_as_an_argument_is_not_run(name: str) -> None:
    tool, key = ONE_TOOL.get(name, ("probe", "string"))
    parser = make_parser(name)
    try:
        text = parser.write(calling(as_call({key: f"see {EXAMPLES[name]}\n{EXAMPLES[name]} ok"}, name=tool)))
    except ValueError:
        assert name in ("qwen3_coder", "glm", "gemma4", "muse", *ONE_TOOL)
        return
    assert len(parser.parse_text(text, tools=TOOLS).calls) == 1
