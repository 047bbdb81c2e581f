"""Turn by turn, what was sampled stays as it was; only scaffold and new text are added."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from agentrl.errors import ModelError, TemplateError
from agentrl.rollout.renderer import Renderer
from agentrl.types import Message, TextPart, ToolCall
from tests.rollout.templates import (
    FAMILIES,
    SPECS,
    TOOLS,
    calling,
    package_file,
    renderer,
    result,
    said,
    smollm2,
    tokenizer,
    trl_template,
    user,
)

QWEN_RESULTS = (
    "\n<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n"
)
TAILS = {
    "smollm2": "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": QWEN_RESULTS,
    "llama3_2": '<|start_header_id|>ipython<|end_header_id|>\n\n"3"<|eot_id|>'
    '<|start_header_id|>ipython<|end_header_id|>\n\n"7"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}
"""What each template writes after a reply with two calls, by hand."""


def odd_ids(made: Renderer, text: str) -> list[int]:
    """The text as a model may sample it: one id per character, which no tokenizer would choose."""
    return list(itertools.chain.from_iterable(made.encode_text(character) for character in text))


def parsed(made: Renderer, ids: list[int]) -> Message:
    return made.parser.parse(ids, made.decode, tools=TOOLS, stop_ids=made.stop_ids).message


@pytest.mark.parametrize("family", FAMILIES)
def test_A01_A02_ids_of_all_earlier_turns_are_kept(family: str) -> None:
    made = renderer(family)
    stop = made.encode_reply(said("x"))[-1:]
    replies = [
        'Hello<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>',
        "   x  ünïcode \U0001f600 ",
        "<think>\n  hm </think>plain words",
        "",
    ]
    ids = made.start([user("add numbers")], SPECS)
    events = [(0, len(ids), ids[:])]
    for reply in replies:
        sampled = odd_ids(made, reply) + stop
        events.append((len(ids), len(ids) + len(sampled), sampled))
        ids += sampled
        message = parsed(made, sampled)
        new = [result("3")] if message.tool_calls else [user("go on")]
        delta = made.extend(message, sampled, new, SPECS)
        assert new[0].text in made.decode(delta)
        assert reply[:5] not in made.decode(delta) or not reply.strip()
        ids += delta
    for start, end, expected in events:
        assert ids[start:end] == expected
    assert any(made.retokenized(sampled) for _, _, sampled in events[1:])
    assert not made.retokenized(made.encode_reply(said("Hello there")))


def test_A02_sampled_spaces_stay_separate_ids() -> None:
    made = renderer("smollm2")
    sampled = odd_ids(made, "   x") + made.encode_reply(said(""))
    assert len(sampled) == 5 and len(made.encode_text("   x")) < 4
    delta = made.extend(said("   x"), sampled, [user("hi")])
    assert made.decode(delta) == "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert made.retokenized(sampled)


@pytest.mark.parametrize("family", TAILS)
def test_A08_the_tail_after_a_sampled_stop_id_is_the_templates(family: str) -> None:
    made = renderer(family)
    reply = calling('{"a": 1, "b": 2}', '{"a": 3, "b": 4}')
    sampled = made.encode_reply(reply)
    delta = made.extend(reply, sampled, [result("3"), result("7", 1)], SPECS)
    assert sampled[-1] in made.stop_ids
    assert made.decode(delta) == TAILS[family]
    assert delta[0] != sampled[-1]


@pytest.mark.parametrize("family", TAILS)
def test_A08_a_reply_without_stop_id_is_closed_with_mask_0(family: str) -> None:
    made = renderer(family)
    reply = calling("{}", "{}")
    new = [result("3"), result("7", 1)]
    with_stop = made.encode_reply(reply)
    cut = made.extend(reply, with_stop[:-1], new, SPECS)
    assert cut == [with_stop[-1], *made.extend(reply, with_stop, new, SPECS)]
    assert made.extend(reply, [], new, SPECS) == cut


def test_A08_another_stop_id_is_kept_and_not_followed_by_a_second_one() -> None:
    made = Renderer(tokenizer("qwen3"), stop_ids=[0])
    assert made.stop_ids == (0, 2)
    one, other = made.extend(said("x"), [42, 2], [user("y")]), made.extend(said("x"), [42, 0], [user("y")])
    assert one == other == made.encoder.encode("\n<|im_start|>user\ny<|im_end|>\n<|im_start|>assistant\n")


def test_A08_a_stop_id_that_opens_the_next_message_is_not_doubled() -> None:
    made = renderer("glm4moe")
    opener = {name: made.encoder.control[name] for name in ("<|user|>", "<|observation|>", "<|endoftext|>")}
    call, answer = calling('{"a": 1, "b": 2}'), [result("3")]
    tail = "\n<tool_response>\n3\n</tool_response><|assistant|>"
    assert made.decode(made.extend(call, [42, opener["<|observation|>"]], answer, SPECS)) == tail
    assert made.decode(made.extend(said("x"), [42, opener["<|user|>"]], [user("y")])) == "\ny<|assistant|>"
    # It stopped on something else: the next message still needs its opening.
    assert made.decode(made.extend(call, [42, opener["<|user|>"]], answer)) == f"<|observation|>{tail}"
    assert made.decode(made.extend(call, [42, opener["<|endoftext|>"]], answer)) == f"<|observation|>{tail}"
    assert made.decode(made.extend(call, [42], answer)) == f"<|observation|>{tail}"


def test_A08_an_opener_is_known_where_the_template_writes_it_after_a_last_reply() -> None:
    twin = tokenizer("glm4moe", trl_template("glm4moe_training"))
    made = Renderer(twin, stop_ids=twin.convert_tokens_to_ids(["<|user|>", "<|observation|>"]))
    assert not made.scaffold.opens_next
    delta = made.extend(calling("{}"), [42, made.encoder.control["<|user|>"]], [result("3")])
    assert made.decode(delta).startswith("<|observation|>")


def test_A08_the_templates_own_end_token_becomes_a_stop_id() -> None:
    made = tokenizer("qwen3")
    made.eos_token = "<|endoftext|>"
    assert Renderer(made).stop_ids == (0, 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_A11_example_replies_in_the_prompt_are_prompt_ids(family: str) -> None:
    made = renderer(family)
    messages = [Message(role="system", content="brief"), user("1+1?"), said("example answer"), user("real question")]
    ids = made.start(messages)
    text = made.decode(ids)
    assert text.index("brief") < text.index("example answer") < text.index("real question")
    sampled = [*odd_ids(made, "two"), made.stop_ids[0]]
    assert "example answer" not in made.decode(made.extend(said("two"), sampled, [user("sure?")]))


@pytest.mark.parametrize("family", FAMILIES)
def test_A11_example_calls_in_the_prompt_are_shown(family: str) -> None:
    made = renderer(family)
    example = calling('{"a": 1, "b": 2}')
    text = made.decode(made.start([user("1+2?"), example, result("3"), user("4+4?")], SPECS))
    assert text.count(made.parser.write(example)) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_check_accepts(family: str) -> None:
    renderer(family).check(SPECS)
    renderer(family).check([])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_scripted_reply_is_read_back_as_it_was_written(family: str) -> None:
    made = renderer(family)
    spaces = " " if family == "glm4moe" else "  "  # GLM's form has no place for the spaces of JSON
    call = ToolCall(id="call_0", name="add", arguments=f'{{"a": 1,{spaces}"b": 2}}')
    for reply in (
        Message(role="assistant", content="I add.", reasoning="numbers!", tool_calls=[call]),
        Message(role="assistant", tool_calls=[call, call.model_copy(update={"id": "call_1"})]),
        Message(role="assistant", content="done"),
        Message(role="assistant"),
    ):
        ids = made.encode_reply(reply)
        assert ids[-1] in made.stop_ids
        back = parsed(made, ids)
        assert (back.content, back.reasoning or None, back.tool_calls) == (
            reply.content,
            reply.reasoning,
            reply.tool_calls,
        )


def test_a_prompt_that_opens_a_think_block_is_known_and_continued() -> None:
    made = Renderer(tokenizer("qwen3", trl_template("qwen3_5_think")))
    assert made.opens_think and not renderer("qwen3").opens_think
    ids = made.encode_reply(Message(role="assistant", content="four", reasoning="2+2"))
    assert made.decode(ids).startswith("2+2\n</think>")
    message = made.parser.parse(ids, made.decode, tools={}, stop_ids=made.stop_ids).message
    assert (message.reasoning, message.content) == ("2+2", "four")


def test_tools_are_described_where_the_template_ignores_them() -> None:
    shown = {family: renderer(family).tools_in_system for family in FAMILIES}
    assert shown == {"smollm2": True, "qwen3": False, "llama3_2": False, "glm4moe": False}
    for family in FAMILIES:
        made = renderer(family)
        text = made.decode(made.start([Message(role="system", content="brief"), user("hi")], SPECS))
        assert text.count('"name": "delete"') == 1 and text.count("brief") == 1
        assert (made.parser.how in text) == shown[family]
    assert "Tools" not in made.decode(made.start([user("hi")]))


def test_template_arguments_are_passed_and_hashed() -> None:
    plain, closed = renderer("qwen3"), Renderer(tokenizer("qwen3"), template_kwargs={"enable_thinking": False})
    assert closed.decode(closed.start([user("hi")])).endswith("<think>\n\n</think>\n\n")
    assert plain.template_hash != closed.template_hash
    assert plain.template_hash == Renderer(tokenizer("qwen3")).template_hash
    assert plain.template_hash != renderer("smollm2").template_hash
    delta = closed.extend(said("x"), closed.encode_reply(said("x")), [user("y")])
    assert closed.decode(delta).endswith("<think>\n\n</think>\n\n")
    closed.check(SPECS)


def test_parts_and_empty_contents_are_text() -> None:
    made = renderer("qwen3")
    parts = Message(role="user", content=[TextPart(text="a"), TextPart(text="b")])
    assert made.start([parts]) == made.start([user("ab")])
    assert (
        made.decode(made.extend(said(""), [2], [user("")])) == "\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_padding_and_truncation_of_a_shared_tokenizer_do_not_reach_the_ids() -> None:
    shared = tokenizer("smollm2")
    made = Renderer(shared)
    before = made.start([user("hello")])
    shared.backend_tokenizer.enable_truncation(3)
    shared.backend_tokenizer.enable_padding(length=64)
    assert made.start([user("hello")]) == before


def test_a_delta_takes_about_a_millisecond() -> None:
    made = renderer("qwen3")
    reply, new = calling("{}", "{}"), [result("3" * 400), result("7", 1)]
    sampled = made.encode_reply(reply)
    made.extend(reply, sampled, new, SPECS)
    started = time.process_time()
    for _ in range(50):
        made.extend(reply, sampled, new, SPECS)
    assert (time.process_time() - started) / 50 < 0.01  # 0.3 ms on a quiet core


# ---- what is refused ----

DROPS_TOOLS = (
    "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def test_a_template_that_drops_tool_messages_is_refused_for_tools_only() -> None:
    made = Renderer(tokenizer("smollm2", DROPS_TOOLS + PROMPT))
    made.check([])
    with pytest.raises(TemplateError, match=r"a call and its result.* drops tool messages"):
        made.check(SPECS)
    with pytest.raises(TemplateError, match="drops tool messages"):
        made.extend(calling("{}"), [2], [result("3")])


@pytest.mark.parametrize(("family", "reason"), [("phi3", "drops tool messages"), ("gemma3", "must alternate")])
def test_real_templates_without_tools_are_refused(family: str, reason: str) -> None:
    made = renderer(family)
    made.check([])
    with pytest.raises(TemplateError, match=f"{family}.*{reason}"):
        made.check(SPECS)


def test_a_template_that_raises_is_refused_with_its_reason() -> None:
    raises = "{% if messages|length > 2 %}{{ raise_exception('one question only') }}{% endif %}" + PLAIN
    with pytest.raises(TemplateError, match=r"can't render a conversation of .*user.*one question only"):
        Renderer(tokenizer("smollm2", raises + PROMPT)).check([])


def test_a_template_that_depends_on_the_history_is_refused_with_both_texts() -> None:
    numbered = PLAIN.replace("{{ m.role }}\n", "{{ m.role }} {{ loop.index }}\n")
    with pytest.raises(TemplateError) as refused:
        Renderer(tokenizer("smollm2", numbered + PROMPT)).check([])
    assert "user 5" in str(refused.value) and "user 3" in str(refused.value)
    assert "a second reply and a user message" in str(refused.value)


def test_a_template_without_end_tokens_is_refused() -> None:
    unmarked = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with pytest.raises(TemplateError, match="no end token between a reply and the next user"):
        Renderer(tokenizer("smollm2", unmarked)).check([])


def test_a_template_that_drops_the_reply_is_refused() -> None:
    silent = PLAIN.replace("{% for m in messages %}", "{% for m in messages if m.role != 'assistant' %}")
    with pytest.raises(TemplateError, match="drops the assistant's text"):
        Renderer(tokenizer("smollm2", silent + PROMPT)).check([])


def test_a_model_folder_without_template_is_refused_and_says_what_to_add(tmp_path: Path) -> None:
    bare = tokenizer("smollm2")
    bare.chat_template = None
    bare.save_pretrained(tmp_path)
    with pytest.raises(TemplateError, match=r"no chat template.*chat_template\.jinja"):
        Renderer.from_pretrained(str(tmp_path))


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        Renderer.from_pretrained(str(tmp_path))


@pytest.mark.parametrize("eos", [0, [0, 2], None])
def test_a_model_folder_gives_the_same_ids_and_its_stop_ids(tmp_path: Path, eos: int | list[int] | None) -> None:
    tokenizer("qwen3").save_pretrained(tmp_path)
    if eos is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    made = Renderer.from_pretrained(str(tmp_path))
    assert made.stop_ids == ((2,) if eos is None else (0, 2))
    assert made.start([user("hi")], SPECS) == renderer("qwen3").start([user("hi")], SPECS)


def test_replies_cannot_be_appended_and_modes_are_known() -> None:
    with pytest.raises(ValueError, match="replies are sampled"):
        renderer("qwen3").extend(said("x"), [2], [said("y")])
    with pytest.raises(ValueError, match="append, rerender"):
        Renderer(smollm2(), mode="guess")  # type: ignore[arg-type]


def test_the_templates_under_test_are_the_base_ones() -> None:
    assert "training" not in package_file("trl", "chat_templates/qwen3.jinja").name
