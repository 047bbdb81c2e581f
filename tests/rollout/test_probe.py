"""What is found out about real chat templates: expected facts were written by hand, from the templates' own text."""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from agentrl.errors import TemplateError
from agentrl.rollout.probe import TOOL, TemplateFacts, probe_template
from agentrl.rollout.probe.ask import common_prefix, fate
from agentrl.rollout.renderer import Renderer
from tests.models import families
from tests.rollout.templates import renderer as family_renderer
from tests.rollout.templates import tokenizer, trl_template

KEPT = {"system": "kept", "user": "kept", "assistant": "kept", "tool": "kept"}
TRIMMED = dict.fromkeys(KEPT, "trimmed")
CHATML: dict[str, Any] = {
    "stop": "<|im_end|>",
    "stop_owner": "model",
    "stop_in_history": "<|im_end|>",
    "stop_after_call": "<|im_end|>",
    "after_stop": "\n",
    "default_system": None,
    "content": KEPT,
    "lone_tool": "kept",
    "consecutive_tools": "merged",
    "arguments": "object or string",
    "several_calls": "kept",
    "text_beside_call": "kept",
    "thinking": "inline",
    "thinking_at_result": "kept",
    "thinking_at_user": "kept",
    "opens_thinking": False,
    "prints_date": False,
    "tools": "shown",
}
NO_CALLS = {"stop_after_call": None, "arguments": "dropped", "several_calls": "dropped"}
NO_TOOL_ROLE = {"lone_tool": "refused", "consecutive_tools": "refused", "thinking_at_result": "refused"}
THINKS = {"thinking": "reasoning_content", "thinking_at_user": "dropped"}
LLAMA = {"stop": "<|eot_id|>", "stop_in_history": "<|eot_id|>", "after_stop": "", "consecutive_tools": "one by one"}
LLAMA_3_1 = CHATML | LLAMA | {
    "stop_after_call": "<|eot_id|>",
    "default_system": "system \n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024",
    "content": TRIMMED | {"tool": "quoted"},
    "arguments": "object, a string is quoted twice",
    "several_calls": "refused",
    "text_beside_call": "dropped",
    "thinking_at_result": "dropped",
}  # fmt: skip
GEMMA = CHATML | NO_CALLS | NO_TOOL_ROLE | {
    "stop": "<end_of_turn>",
    "stop_in_history": "<end_of_turn>",
    "content": {"system": "refused", "user": "trimmed", "assistant": "trimmed", "tool": "refused"},
    "tools": "ignored",
}  # fmt: skip
GEMMA_4 = CHATML | THINKS | {
    "stop": "<turn|>",
    "stop_in_history": "<turn|>",
    "stop_after_call": "<|tool_response>",
    "content": TRIMMED | {"tool": "kept"},
    "lone_tool": "dropped",
    "consecutive_tools": "one by one",
    "text_beside_call": "moved behind the result",
}  # fmt: skip
EXPECTED: dict[str, dict[str, Any]] = {
    "qwen2_5": CHATML | {
        "default_system": "system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        "arguments": "object, a string is quoted twice",
    },
    "qwen2_5_vl": CHATML | NO_CALLS | {
        "default_system": "system\nYou are a helpful assistant.",
        "consecutive_tools": "one by one",
        "tools": "ignored",
    },
    "qwen3": CHATML | THINKS,
    "qwen3_instruct_2507": CHATML,
    "qwen3_6": CHATML | THINKS | {
        "arguments": "object", "content": TRIMMED, "lone_tool": "refused", "opens_thinking": True,
    },
    "qwen3_5_nothink": CHATML | THINKS | {"arguments": "object", "content": TRIMMED, "lone_tool": "refused"},
    "nemotron_3_nano": CHATML | THINKS | {
        "default_system": "system",  # a turn without content
        "arguments": "object",
        "content": KEPT | {"assistant": "trimmed"},
        "opens_thinking": True,
    },
    "lfm2": CHATML | NO_CALLS | {"consecutive_tools": "one by one"},
    "lfm2_v2": CHATML | {"arguments": "object", "consecutive_tools": "one by one"},
    "lfm2_2_5": CHATML | {
        "arguments": "object", "consecutive_tools": "one by one", "thinking": "thinking", "thinking_at_user": "dropped",
    },
    "llama3": CHATML | LLAMA | NO_CALLS | {"content": TRIMMED, "tools": "ignored"},
    "llama3_1": LLAMA_3_1,
    "glm4moe": CHATML | THINKS | {
        "stop": "<|user|>",
        "stop_owner": "next message",
        "stop_in_history": "<|user|>",
        "stop_after_call": "<|observation|>",
        "content": KEPT | {"assistant": "trimmed"},
        "arguments": "object",
    },
    "muse_glimmer": CHATML | THINKS | {
        "stop": "<|eot|>",
        "stop_in_history": "<|eot|>",
        "stop_after_call": "<|eot|>",
        "after_stop": "",
        "default_system": "system You are a helpful AI assistant.\nKnowledge cutoff: 2026-01-04.\n"
        'Current date: {today}.\n\nReasoning strength: high.\n\n# Valid recipients: "self", "user".',
        "consecutive_tools": "one by one",
        "arguments": "object",
        "text_beside_call": "dropped",
        "thinking_at_user": "kept",
        "prints_date": True,
    },
    "gemma": GEMMA,
    "gemma3": GEMMA | {"content": GEMMA["content"] | {"system": "kept"}},
    "gemma4": GEMMA_4,
    "gemma4_v5": GEMMA_4 | {"arguments": "object"},
    "deepseekv3": CHATML | {
        "stop": "<｜end▁of▁sentence｜>",
        "stop_in_history": "<｜end▁of▁sentence｜>",
        "stop_after_call": "<｜end▁of▁sentence｜>",
        "after_stop": "",
        "arguments": "string",
        "thinking_at_user": "dropped",
        "opens_thinking": True,
        "tools": "ignored",
    },
    "cohere": CHATML | NO_CALLS | NO_TOOL_ROLE | {
        "stop": "<|END_OF_TURN_TOKEN|>",
        "stop_in_history": "<|END_OF_TURN_TOKEN|>",
        "after_stop": "",
        "content": {"system": "kept", "user": "trimmed", "assistant": "trimmed", "tool": "refused"},
        "tools": "ignored",
    },
    "phi3": CHATML | NO_CALLS | {
        "stop": "<|end|>",
        "stop_in_history": "<|end|>",
        "content": KEPT | {"tool": "dropped"},
        "lone_tool": "dropped",
        "consecutive_tools": "dropped",
        "tools": "ignored",
    },
}  # fmt: skip


@functools.cache
def facts(name: str) -> TemplateFacts:
    return probe_template(families.renderer(name), [TOOL])


@pytest.mark.parametrize("name", EXPECTED)
def test_a07_a12_the_facts_of_a_real_template(name: str) -> None:
    found = facts(name).as_json()
    today = datetime.now().strftime("%Y-%m-%d")
    expected = {key: value.format(today=today) if key == "default_system" and value else value
                for key, value in EXPECTED[name].items()}  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(found, default=str))  # plain values only


def test_gpt_oss_ends_a_reply_in_three_ways_and_prints_the_date() -> None:
    found = facts("gptoss")
    assert (found.stop, found.stop_in_history, found.stop_after_call) == ("<|return|>", "<|end|>", "<|call|>")
    assert found.prints_date and "Current date" in (found.default_system or "")
    assert (found.several_calls, found.lone_tool, found.content["tool"]) == ("first only", "refused", "quoted")
    assert (found.thinking, found.thinking_at_result, found.thinking_at_user) == ("thinking", "kept", "dropped")


def test_a_long_default_system_text_and_a_silently_dropped_tool_role_are_seen() -> None:
    found = facts("cohere2")
    assert (found.default_system or "").startswith("# System Preamble\nYou are in contextual safety mode.")
    assert (found.content["tool"], found.lone_tool, found.consecutive_tools) == ("dropped",) * 3


def test_the_date_is_named_where_it_is_todays_and_not_where_it_is_fixed() -> None:
    assert facts("llama3_2").prints_date and not facts("llama3_1").prints_date
    assert datetime.now().strftime("%d %b %Y") in (facts("llama3_2").default_system or "")


def test_a_stop_that_only_the_template_names_is_the_templates() -> None:
    dressed = tokenizer("qwen3")
    dressed.eos_token = "<|endoftext|>"
    found = probe_template(Renderer(dressed), [TOOL])
    assert (found.stop, found.stop_owner) == ("<|im_end|>", "template")
    assert probe_template(Renderer(dressed, stop_ids=[2]), [TOOL]).stop_owner == "model"


def test_an_opener_is_known_where_the_template_writes_it_after_a_last_reply() -> None:
    twin = families.tokenizer("glm4moe")
    twin.chat_template = trl_template("glm4moe_training")
    stops = twin.convert_tokens_to_ids(list(families.BY_TEMPLATE["glm4moe"].stops))
    assert probe_template(Renderer(twin, stop_ids=stops), [TOOL]).stop_owner == "next message"


@pytest.mark.parametrize(("family", "is_double"), [("llama3", True), ("qwen3", False)])
def test_a_double_bos_is_seen(family: str, is_double: bool) -> None:
    dressed = families.tokenizer(family)
    bos = dressed.bos_token or "<|endoftext|>"
    place = dressed.convert_tokens_to_ids(bos)
    dressed.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, place)])
    found = probe_template(Renderer(dressed), [])
    assert (found.bos, found.double_bos) == (bos, is_double)
    assert facts("llama3").bos is None and not facts("llama3").double_bos


def outcomes(name: str) -> dict[str, tuple[str, str]]:
    return {one.name: (one.append, one.rerender) for one in facts(name).scenarios}


def test_a04_a_template_that_drops_thinking_is_appended_to_or_makes_branches() -> None:
    found = outcomes("qwen3")
    assert found["reply with thinking, user"] == ("ok", "branch")
    assert found["thinking and call, result"] == ("ok", "ok")
    assert facts("qwen3").history == "rewritten"
    reasons = {one.name: one.rerender_reason for one in facts("qwen3").scenarios}
    assert "first idea" in (reasons["reply with thinking, user"] or "")
    assert reasons["thinking and call, result"] is None
    assert outcomes("qwen3_8")["reply with thinking, user"] == ("ok", "ok")  # it keeps thinking


def test_a05_a_history_that_is_kept_makes_no_branch() -> None:
    found = outcomes("muse_glimmer")
    assert found["reply, user"] == found["reply with thinking, user"] == ("ok", "ok")


def test_a_stop_that_opens_the_next_message_makes_no_branch() -> None:
    assert outcomes("glm4moe")["call, result"][1] == outcomes("glm4moe")["reply, user"][1] == "ok"


def test_a_split_into_other_ids_is_a_branch_but_no_rewriting() -> None:
    (one,) = [one for one in probe_template(family_renderer("smollm2"), []).scenarios if one.rerender == "branch"]
    assert one.name == "reply with white space around it, user" and not one.rewrites
    assert "split into other ids" in (one.rerender_reason or "")
    assert probe_template(family_renderer("smollm2"), []).history == "kept"


def test_thinking_is_tried_only_with_templates_that_think() -> None:
    assert not any("thinking" in name for name in outcomes("qwen2_5"))
    assert not any("call" in one.name for one in probe_template(family_renderer("qwen3"), []).scenarios)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("phi3", "drops tool messages"), ("gemma3", "must alternate"), ("gemma", "System role not supported")],
)
def test_a07_a_template_without_tools_can_be_trained_without_them(name: str, reason: str) -> None:
    found = facts(name)
    assert reason in (found.append_refused or "") and found.append_refused_without_tools is None
    assert found.refused("append") == found.append_refused and found.refused("rerender")
    assert found.is_trainable


def test_a_template_of_another_vocabulary_is_refused_in_both_modes() -> None:
    found = probe_template(Renderer(tokenizer("smollm2", trl_template("gemma3"))), [])
    assert found.unknown_control == ("<end_of_turn>", "<start_of_turn>") and found.stop_owner == "nobody"
    assert "no end token" in (found.refused("append") or "")
    assert "belongs to the model" in (found.refused("rerender") or "")
    assert not found.is_trainable and not facts("gemma3").unknown_control


def test_a_history_that_no_turn_can_continue_is_left_to_rerender() -> None:
    numbered = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant {{ messages|length + 1 }}\n{% endif %}"
    )
    found = probe_template(Renderer(tokenizer("smollm2", numbered)), [TOOL])
    assert "can't be followed turn by turn" in (found.append_refused_without_tools or "")
    assert found.refused("rerender") is None and found.is_trainable


FORMS = st.sampled_from(
    [
        "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n",
        "<|im_start|>{{ m.content | trim }}",
        "{{ m.content }}<|endoftext|>",
        "{{ m.content }}",
        "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<|im_end|>",
        "{% for c in m.tool_calls %}{{ c.function.arguments.items() }}{% endfor %}{{ m.reasoning_content }}<|im_end|>",
        "{{ raise_exception('no') }}",
        "",
    ]
)


@settings(max_examples=10, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(KEPT, FORMS)))
def test_any_template_is_probed_or_refused(forms: dict[str, str]) -> None:
    branches = "".join(f"{{% if m.role == '{role}' %}}{form}{{% endif %}}" for role, form in forms.items())
    dressed = tokenizer("smollm2", f"{{% for m in messages %}}{branches}{{% endfor %}}")
    try:
        made = Renderer(dressed)
    except TemplateError:
        return
    found = probe_template(made, [TOOL])
    shown = {role for role, form in forms.items() if "m.content }}" in form}
    assert {role for role, kept in found.content.items() if kept == "kept"} <= shown
    assert found.is_trainable_with_tools <= found.is_trainable
    json.dumps(found.as_json())


@given(st.text(alphabet="ab"), st.text(alphabet="ab"))
def test_a_common_prefix_is_the_longest_one(one: str, other: str) -> None:
    prefix = common_prefix(one, other)
    assert one.startswith(prefix) and other.startswith(prefix)
    assert one[len(prefix) : len(prefix) + 1] != other[len(prefix) : len(prefix) + 1] or one == other == prefix


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        ('<|x|>  "word" \n<|y|>', "kept"),
        ('<|x|>"word"<|y|>', "trimmed"),
        (json.dumps('  "word" \n'), "quoted"),
        ("<|x|>word<|y|>", "changed"),
        ("<|x|><|y|>", "dropped"),
        (None, "refused"),
    ],
)
def test_the_fate_of_a_content(rendered: str | None, expected: str) -> None:
    assert fate('  "word" \n', rendered) == expected
