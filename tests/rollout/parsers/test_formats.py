"""What holds for every format: calls that are written are read back, and nothing else becomes a call."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.parsers import PARSERS, ParsedReply, ToolCallParser, make_parser
from agentrl.rollout.parsers.checking import bad_call_observation
from agentrl.rollout.parsers.tagged import TaggedParser
from agentrl.types import CallStatus, Message
from tests.rollout.parsers.builders import (
    NAMES,
    ONE_TOOL,
    TOOLS,
    arguments_of,
    as_call,
    by_id,
    calling,
    encoder,
    written,
)

ONE_CALL = ("llama3", "pythonic", "bash", "action")
"""A bad call goes on to the end of the reply, or there is none, since all text is an argument."""
EXAMPLES = {
    "hermes": '<tool_call>\n{"name": "probe", "arguments": {"string": "5", "integer": 5}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=probe>\n<parameter=string>\n5\n</parameter>\n<parameter=integer>\n5\n"
    "</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "probe", "parameters": {"string": "5", "integer": 5}}',
    "mistral": '[TOOL_CALLS] [{"name": "probe", "arguments": {"string": "5", "integer": 5}, "id": "VvvODy9mT"}]',
    "mistral_args": '[TOOL_CALLS]probe[CALL_ID]VvvODy9mT[ARGS]{"string": "5", "integer": 5}',
    "glm": "<tool_call>probe\n<arg_key>string</arg_key>\n<arg_value>5</arg_value>\n<arg_key>integer</arg_key>\n"
    "<arg_value>5</arg_value>\n</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>probe\n```json\n"
    '{"string": "5", "integer": 5}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "gemma4": '<|tool_call>call:probe{string:<|"|>5<|"|>,integer:5}<tool_call|>',
    "harmony": "<|channel|>commentary to=functions.probe <|constrain|>json<|message|>"
    '{"string": "5", "integer": 5}<|call|>',
    "lfm2": "<|tool_call_start|>[probe(string='5', integer=5)]<|tool_call_end|>",
    "pythonic": '[probe(string="5", integer=5)]',
    "muse": ' to=probe<|message|><atem:function_calls>\n<atem:invoke name="probe">\n<atem:parameter name="string">5'
    '</atem:parameter>\n<atem:parameter name="integer">5</atem:parameter>\n</atem:invoke>\n</atem:function_calls>'
    "<|eot|>",
    "bash": "```bash\n5\n```",
    "action": "<action>5</action>",
}
"""One call as models of the families write it."""


def parse(parser: ToolCallParser, text: str, truncated: bool = False) -> ParsedReply:
    return parser.parse_text(text, tools=TOOLS, truncated=truncated)


def statuses(reply: ParsedReply) -> list[CallStatus]:
    return [call.status for call in reply.calls]


def as_json(value: Any) -> str:
    """1, 1.0 and True are equal in Python, not in JSON."""
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("name", NAMES)
def test_b07_a_call_as_the_family_writes_it_is_read_with_its_types(name: str) -> None:
    (call,) = parse(make_parser(name), EXAMPLES[name]).calls
    expected = {ONE_TOOL[name][1]: "5"} if name in ONE_TOOL else {"string": "5", "integer": 5}
    assert (call.status, call.arguments) == (CallStatus.OK, expected)
    assert json.loads(call.call.arguments) == expected
    carried = name in ("mistral", "mistral_args")
    assert call.call.id == ("VvvODy9mT" if carried else "call_0")


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_b09_a_written_call_is_read_back_or_refused(name: str, data: st.DataObject) -> None:
    parser = make_parser(name)
    tool = ONE_TOOL.get(name, ("probe",))[0]
    calls = [as_call(data.draw(arguments_of(name)), name=tool) for _ in range(data.draw(st.integers(1, 3)))]
    content = data.draw(st.sampled_from(["", "Let me see."]))
    try:
        text = parser.write(calling(*calls, content=content))
    except ValueError as error:
        assert name not in ("hermes", "llama3", "mistral", "mistral_args"), "JSON expresses everything"
        assert tool in str(error) or "beside calls" in str(error)
        return
    reply = parse(parser, text)
    assert reply.message.content == content
    assert [call.status for call in reply.calls] == [CallStatus.OK] * len(calls)
    assert [call.call.name for call in reply.calls] == [tool] * len(calls)
    for read, call in zip(reply.calls, calls, strict=True):
        assert (
            as_json(read.arguments) == as_json(json.loads(call.arguments)) == as_json(json.loads(read.call.arguments))
        )
    assert len({call.call.id for call in reply.calls}) == len(calls)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a02_a_written_call_is_read_back_from_any_split_into_ids(name: str, data: st.DataObject) -> None:
    parser, tokenizer = by_id(name), encoder(name)
    calls = [as_call(data.draw(arguments_of(name)), name=ONE_TOOL.get(name, ("probe",))[0]) for _ in range(2)]
    try:
        text = parser.write(calling(*calls))
    except ValueError:
        return
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids) != text:
        return  # SmolLM2's vocabulary lacks some bytes
    size = data.draw(st.integers(1, 4))
    split = [again for id in ids for again in _split(name, id, size)]
    for each in (ids, split):
        reply = parser.parse(each, tokenizer.decode, tools=TOOLS, stop_ids=())
        assert [as_json(call.arguments) for call in reply.calls] == [as_json(json.loads(c.arguments)) for c in calls]
        for call in reply.calls:
            start, end = call.span
            assert 0 <= start < end <= len(each)


def _split(name: str, id: int, size: int) -> list[int]:
    """An id as smaller ones, where it is no control id and its text allows."""
    tokenizer = encoder(name)
    text = tokenizer.decode([id])
    if id in tokenizer.control.values() or "\ufffd" in text:
        return [id]
    return [each for i in range(0, len(text), size) for each in tokenizer.encode(text[i : i + size])]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_CALL])
def test_b08_one_bad_call_does_not_lose_the_good_ones(name: str) -> None:
    parser = make_parser(name)
    good = EXAMPLES[name]
    broken = {
        "hermes": "<tool_call>{oops</tool_call>",
        "qwen3_coder": "<tool_call><function=probe><parameter=string>x</function></tool_call>",
        "mistral": '[TOOL_CALLS][{"name": "probe", "arguments": {oops}}]',
        "mistral_args": "[TOOL_CALLS]probe[ARGS]{oops}",
        "glm": "<tool_call>probe<arg_key>string</arg_key><arg_value>x</tool_call>",
        "deepseek": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>probe\n```json\n{oops}\n```<｜tool▁call▁end｜>",
        "gemma4": "<|tool_call>call:probe{string:oops}<tool_call|>",
        "harmony": "<|channel|>commentary to=functions.probe<|message|>{oops<|call|>",
        "lfm2": "<|tool_call_start|>[probe(string=oops)]<|tool_call_end|>",
        "muse": " to=probe<|message|><atem:function_calls>oops</atem:function_calls><|eot|>",
    }
    again = "<|start|>assistant" if name in ("harmony", "muse") else "\n"
    reply = parse(parser, again.join([good, broken[name], good]))
    assert statuses(reply) == [CallStatus.OK, CallStatus.INVALID_JSON, CallStatus.OK]
    assert len({call.call.id for call in reply.calls}) == 3
    assert [call.call for call in reply.calls] == reply.message.tool_calls
    assert parser.form in bad_call_observation(reply.calls[1], TOOLS, 200, parser.form)


@pytest.mark.parametrize("name", NAMES)
def test_a_cut_call_is_truncated_and_never_runs(name: str) -> None:
    parser = make_parser(name)
    text = written(parser, "some text")
    whole = parse(parser, text).calls[0]
    for end in range(len(text)):
        for call in parse(parser, text[:end], truncated=True).calls:
            assert call.status is CallStatus.TRUNCATED or as_json(call.arguments) == as_json(whole.arguments)
        for call in parse(parser, text[:end]).calls:
            assert call.status is CallStatus.INVALID_JSON or as_json(call.arguments) == as_json(whole.arguments)
    assert statuses(parse(parser, text[: len(text) * 3 // 4], truncated=True)) == [CallStatus.TRUNCATED]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_thinking_or_in_an_echoed_observation_is_a_call(name: str) -> None:
    parser = make_parser(name)
    call = EXAMPLES[name]
    if isinstance(parser, TaggedParser):
        think, result = (parser.think_open, parser.think_close), parser.result_tags
        quoted = [f"{think[0]}{call}{think[1]}done", f"{think[0]}{call}", f"{call}{think[1]}done"]
        quoted += [f"It said {result[0]}\n{call}\n{result[1]} ok", f"{result[0]}{call}"]
    elif name == "harmony":
        quoted = [f"<|channel|>analysis<|message|>{call.replace('<|', '< |')}<|end|>"]
        quoted += [f"<|start|>functions.x to=assistant{call}", f"<|start|>user to=functions.probe{call}"]
    else:
        quoted = [f" to=self<|message|>{call.partition('<|message|>')[2]}", f"<|start|>tool probe{call}"]
    for text in quoted:
        reply = parse(parser, text)
        assert reply.calls == [], text
    assert statuses(parse(parser, call)) == [CallStatus.OK]


@pytest.mark.parametrize("name", [name for name in NAMES if PARSERS[name].tags and name not in ("bash", "pythonic")])
def test_b08_a_tag_counts_only_where_its_id_was_sampled(name: str) -> None:
    parser, tokenizer = by_id(name), encoder(name)
    text = f"<|python_tag|>{EXAMPLES[name]}" if name == "llama3" else EXAMPLES[name]
    real = tokenizer.encode(text)
    spelled = tokenizer.encode(tokenizer.mark(text))
    assert tokenizer.decode(spelled) == tokenizer.decode(real) == text and real != spelled

    def read(ids: list[int]) -> ParsedReply:
        return parser.parse(ids, tokenizer.decode, tools=TOOLS, stop_ids=())

    assert statuses(read(real)) == [CallStatus.OK]
    assert read(spelled).calls == [] and read(spelled).message.content == text
    if name not in ("llama3", "harmony", "muse"):
        both = read([*spelled, *real])
        assert statuses(both) == [CallStatus.OK] and both.calls[0].span == (len(spelled), len(spelled) + len(real))
        assert both.message.content == text


@pytest.mark.parametrize("name", NAMES)
def test_b09_text_that_spells_a_tag_inside_an_argument_is_text(name: str) -> None:
    parser, tokenizer = by_id(name), encoder(name)
    tags = [tag for tag in parser.tags if "think" not in tag.lower()]
    value = f"see {''.join(tags)}"
    mark = "tagtext"
    text = written(parser, mark)
    before, _, after = text.partition(mark)
    ids = [*tokenizer.encode(before), *tokenizer.encode(tokenizer.mark(value)), *tokenizer.encode(after)]
    (call,) = parser.parse(ids, tokenizer.decode, tools=TOOLS, stop_ids=()).calls
    assert call.status is CallStatus.OK
    expected = value.replace('"', '\\"') if name in ("hermes",) else value
    assert list((call.arguments or {}).values()) in ([expected], [value])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ONE_TOOL])
def test_a_broken_call_is_written_as_its_text_and_stays_broken(name: str) -> None:
    parser = make_parser(name)
    call = as_call({})
    call.arguments = '{"string": "a'
    text = parser.write(calling(call))
    assert call.arguments in text
    assert all(each.arguments is None for each in parse(parser, text).calls)


def test_mistral_ids_that_the_model_repeats_are_not_used() -> None:
    one = '{"name": "probe", "arguments": {}, "id": "VvvODy9mT"}'
    reply = parse(make_parser("mistral"), f"[TOOL_CALLS][{one}, {one}]")
    assert [call.call.id for call in reply.calls] == ["call_0", "call_1"]
    (call,) = parse(make_parser("mistral"), f"[TOOL_CALLS][{one.replace('VvvODy9mT', '../x')}]").calls
    assert call.call.id == "call_0"


@pytest.mark.parametrize("name", NAMES)
def test_a_reply_without_calls_is_its_text_exactly(name: str) -> None:
    parser = make_parser(name)
    text = "  The answer is {'a': 1} or [1, 2](x).\n```python\nprint(1)\n```\n"
    assert parse(parser, text).message == Message(role="assistant", content=text)
    message = Message(role="assistant", content="four", reasoning="2+2" if parser.is_whole else None)
    assert parse(parser, parser.write(message)).message == message


def test_llama3_answers_in_json_and_several_calls() -> None:
    parser = make_parser("llama3")
    assert parse(parser, '{"answer": 5}').calls == []
    one = EXAMPLES["llama3"]
    assert statuses(parse(parser, f"{one}; {one}")) == [CallStatus.OK] * 2
    assert statuses(parse(parser, f"Sure.<|python_tag|>{one}")) == [CallStatus.OK]
    assert statuses(parse(parser, one.replace('{"name"', '{"type": "function", "name"'))) == [CallStatus.OK]
    for bad in (f"{one}{one}", f"{one}\n{one}", f"{one} and so on", one.replace('"', "'"), one[:-1]):
        assert statuses(parse(parser, bad)) == [CallStatus.INVALID_JSON], bad


def test_harmony_calls_are_for_functions_in_the_commentary_channel() -> None:
    parser = make_parser("harmony")
    body = '<|message|>{"string": "x"}<|call|>'
    other = "<|channel|>commentary to=functions.probe json"
    assert statuses(parse(parser, f" to=functions.probe<|channel|>commentary json{body}")) == [CallStatus.OK]
    assert statuses(parse(parser, f"{other}{body}")) == [CallStatus.OK]
    for header in (
        "<|channel|>analysis to=functions.probe code",
        "<|channel|>commentary to=probe json",
        "<|channel|>commentary to=browser.search",
        " to=functions.probe",
    ):
        (call,) = parse(parser, f"{header}{body}").calls
        assert call.status is CallStatus.INVALID_JSON and call.arguments is None
    whole = parse(
        parser,
        "<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        f"<|start|>assistant{other}{body}",
    )
    assert (whole.message.reasoning, whole.message.content, len(whole.calls)) == ("think", "I look.", 1)


def test_pythonic_values_are_literals_and_nothing_else() -> None:
    parser = make_parser("pythonic")
    (call,) = parse(parser, "[probe(array=[1, -2.5, {'a': None, \"b\": true}], null=null, string='\\d')]").calls
    assert call.arguments == {"array": [1, -2.5, {"a": None, "b": True}], "null": None, "string": "\\d"}
    for bad in (
        "probe(1)", "probe(a=b)", "probe(a=1+1)", "probe(a=(1,))", "probe(a={1})", "probe(a=b'x')", "probe(a=1j)",
        "probe(a=__import__('os'))", "probe(**{'a': 1})", "probe(a=1e999)", "probe(a={1: 2})", "probe(a=1, a=2)",
        "probe(a=f'{1}')", "probe(a=[x for x in y])", "probe(a=...)", "probe(a='''x)", "probe(a=" + "[" * 5000,
        "probe(a=" + "-" * 50_000 + "1)", "probe()()", "probe(a=1", "probe(a=not 1)", "probe(a=1 if 1 else 2)",
    ):  # fmt: skip
        assert statuses(parse(parser, f"[{bad}]")) == [CallStatus.INVALID_JSON], bad


def test_an_example_quoted_in_a_call_that_cannot_be_read_is_not_run() -> None:
    example = EXAMPLES["qwen3_coder"]
    head, tail = "<tool_call>\n<function=probe>\n<parameter=string>\n", "\n</parameter>\n</function>\n</tool_call>"
    text = f"{head}{example}\n{example}{tail}"
    assert statuses(parse(make_parser("qwen3_coder"), f"{text}\n{example}")) == [CallStatus.INVALID_JSON, CallStatus.OK]
    example = EXAMPLES["hermes"]
    text = f'<tool_call>{{"name": "probe", "arguments": {{"string": "a "quoted" {example} {example}"}}}}</tool_call>'
    assert statuses(parse(make_parser("hermes"), f"{text}{example}")) == [CallStatus.INVALID_JSON, CallStatus.OK]


@pytest.mark.parametrize("name", NAMES)
def test_a_degenerate_reply_costs_no_quadratic_time(name: str) -> None:
    parser, example = make_parser(name), EXAMPLES[name]
    for piece in (
        *parser.tags,
        *(f"\n{tag}" for tag in parser.tags),
        f"\n{example[:30]}",
        f"\n{example[:-2]}",
        '{"',
        "[",
    ):
        started = time.process_time()
        parse(parser, piece * 3000)
        assert time.process_time() - started < 2, piece
