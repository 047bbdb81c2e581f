"""What single templates ask for: forms of contents and arguments, odd ends, openers, and what can't be followed."""

from __future__ import annotations

import json
from importlib.metadata import files
from pathlib import Path

import pytest

from agentrl.batch.rows import build_rows
from agentrl.environment import StepResult
from agentrl.errors import TemplateError
from agentrl.rollout.renderer import Renderer
from agentrl.testing.memory import MemoryRecorder
from agentrl.types import Message
from tests.models.families import renderer, rerendering, tokenizer, trl_template
from tests.rollout.loops import TextClient, call, make_loop, play
from tests.rollout.templates import SPECS, calling, control_ids, result, said, user
from tests.rollout.test_context import counted, env_of

CHATML = (
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}<call>{{ call.function.name }}CALL</call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OBJECTS = CHATML.replace("CALL", "{% for k, v in call.function.arguments.items() %} {{ k }}={{ v }}{% endfor %}")
TEXTS = CHATML.replace("CALL", " {{ call.function.arguments + '' }}")
NEEDS_CALL = (
    "{%- for m in messages %}{% if m.role == 'tool' and messages[loop.index0 - 1].role != 'tool' "
    "and not messages[loop.index0 - 1].tool_calls %}{{ raise_exception('a result without a call') }}{% endif %}"
    "{% endfor %}"
)
NEEDS_USER = (
    "{%- if tools and not messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ raise_exception('tools without a user') }}{% endif %}"
)
THOUGHTS = [f"<think>\nplan {i}\n</think>\n\nanswer {i}" for i in range(3)]


def tail(made: Renderer, reply: Message, sampled: list[str], *new: Message) -> str:
    """What is added after a reply that ends in these control strings, as text."""
    ids = [made.encode_text("x")[0], *(made.encoder.control[text] for text in sampled)]
    return made.decode(made.extend(reply, ids, new, SPECS))


async def test_a04_append_keeps_all_thinking_in_one_row_and_rerender_branches() -> None:
    rows = {}
    for made in (renderer("qwen3"), rerendering(renderer("qwen3"))):
        steps = [StepResult(messages=[user("next")])] * 2
        sample = await play(make_loop(made, TextClient(made, *THOUGHTS), env=env_of(*steps)))
        assert sample.trajectory.renderer_mode == made.mode
        assert counted(sample) == [turn.sampled_ids for turn in sample.trajectory.turns]
        rows[made.mode] = [made.decode(row.ids.tolist()) for row in build_rows(sample)]
    (whole,) = rows["append"]
    assert all(f"plan {i}" in whole for i in range(3))
    assert [[f"plan {i}" in text for i in range(3)] for text in rows["rerender"]] == [
        [True, False, False], [False, True, False], [False, False, True],
    ]  # fmt: skip


@pytest.mark.parametrize("strict", [NEEDS_CALL, NEEDS_USER])
async def test_a07_templates_that_refuse_a_lone_result_or_no_user_are_followed(strict: str) -> None:
    made = Renderer(tokenizer("smollm2", strict + OBJECTS))
    made.check(SPECS)
    client = TextClient(made, call("repeat", '{"text": "red"}'), "red")
    trajectory = (await play(make_loop(made, client))).trajectory
    assert made.decode(trajectory.turns[1].prompt_ids) == "\n<|im_start|>tool\nred<|im_end|>\n<|im_start|>assistant\n"


def test_a07_a_template_that_cannot_be_followed_is_refused_at_the_start() -> None:
    for name, reason in (("gemma3", "must alternate"), ("phi3", "drops tool messages"), ("cohere2", "drops tool")):
        renderer(name).check([])
        with pytest.raises(TemplateError, match=f"{name}.*{reason}"):
            renderer(name).check(SPECS)


async def test_a10_a_stray_special_token_stays_and_the_tail_is_found_by_ids() -> None:
    made = renderer("qwen3")
    stray = made.encoder.control["<repo_name>"]
    text = f"a<repo_name>b{call('repeat', json.dumps({'text': 'red'}))}"
    client, recorder = TextClient(made, text, "red"), MemoryRecorder()
    sample = await play(make_loop(made, client, recorder))
    first, second = sample.trajectory.turns
    assert first.sampled_ids.count(stray) == 1 and stray not in second.prompt_ids
    assert made.decode(second.prompt_ids).startswith("\n<|im_start|>user\n<tool_response>\nred")
    (row,) = build_rows(sample)
    assert row.mask[row.ids == stray].tolist() == [1]


@pytest.mark.parametrize(("template", "shown"), [(OBJECTS, " a=3"), (TEXTS, ' {"a":  3}')])
def test_a12_arguments_are_given_as_the_template_takes_them(template: str, shown: str) -> None:
    made = Renderer(tokenizer("smollm2", template))
    made.template.calls_in_content = False  # as with a parser for this form
    reply = calling('{"a":  3}')
    text = made.decode(made.start([user("hi"), reply, result("7"), user("more")], SPECS))
    assert f"<call>add{shown}</call><|im_end|>" in text
    assert reply.tool_calls[0].arguments == '{"a":  3}'  # what is stored is what was said


@pytest.mark.parametrize("raw", ['{"a": ', "[3]", "3", "null", ""])
def test_a12_arguments_that_are_no_object_are_shown_as_they_were_written(raw: str) -> None:
    for template in (OBJECTS, TEXTS):
        made = Renderer(tokenizer("smollm2", template))
        made.template.calls_in_content = False
        assert raw in made.decode(made.start([user("hi"), calling(raw), result("7")], SPECS))


def test_a12_the_forms_of_real_templates() -> None:
    forms = {name: renderer(name).template.forms for name in ("qwen3_6", "deepseekv3", "smolvlm", "gptoss", "llama3_2")}
    assert forms["qwen3_6"].arguments('{"a": 3}') == {"a": 3} and forms["qwen3_6"].arguments("{") is None
    assert forms["deepseekv3"].arguments('{"a":  3}') == '{"a":  3}' and not forms["deepseekv3"].object_arguments
    assert [name for name in forms if forms[name].contents_in_parts] == ["smolvlm"]
    assert [name for name in forms if not forms[name].results_of_text] == ["gptoss"]
    assert forms["gptoss"].reasoning_key == "thinking" and forms["qwen3_6"].reasoning_key == "reasoning_content"


async def test_a18_the_hash_of_the_template_that_was_used_is_stored() -> None:
    plain, other = renderer("qwen3"), Renderer(tokenizer("qwen3", CHATML.replace("CALL", "")))
    for made in (plain, other):
        trajectory = (await play(make_loop(made, TextClient(made, "red")))).trajectory
        assert trajectory.template_hash == made.template_hash
    assert plain.template_hash != other.template_hash


# ---- how replies end ----


def test_gemma_4s_opener_is_written_by_whoever_comes_last() -> None:
    made, answer = renderer("gemma4"), '<|tool_response>response:add{value:<|"|>3<|"|>}<tool_response|>'
    assert tail(made, calling("{}"), ["<|tool_response>"], result("3")) == answer.removeprefix("<|tool_response>")
    assert tail(made, calling("{}"), ["<turn|>"], result("3")) == answer
    assert tail(made, calling("{}"), [], result("3")) == answer
    # An opened response that nobody gives: the turn is still to be closed.
    question = "<turn|>\n<|turn>user\nhi<turn|>\n<|turn>model\n"
    assert tail(made, said("x"), ["<|tool_response>"], user("hi")) == question
    assert tail(made, said("x"), ["<turn|>"], user("hi")) == question.removeprefix("<turn|>")


def test_gpt_oss_stops_with_other_tokens_than_its_history_holds() -> None:
    made, question = renderer("gptoss"), "<|start|>user<|message|>hi<|end|><|start|>assistant"
    assert tail(made, said("x"), ["<|return|>"], user("hi")) == question
    assert tail(made, said("x"), ["<|end|>"], user("hi")) == question
    assert tail(made, said("x"), [], user("hi")) == f"<|end|>{question}"
    answer = '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"3"<|end|><|start|>assistant'
    assert tail(made, calling("{}"), ["<|call|>"], result("3")) == answer
    assert tail(made, calling("{}", "{}"), ["<|call|>"], result("3")) == answer


def test_cohere_ends_the_response_and_the_turn() -> None:
    made, end, over = renderer("cohere2"), "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>"
    after = tail(made, said("x"), [end, over], user("hi"))
    assert after.startswith("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>hi")
    assert tail(made, said("x"), [end], user("hi")) == over + after
    assert tail(made, said("x"), [], user("hi")) == end + over + after
    ids = made.encode_reply(said("x"))
    assert {made.encoder.control[text] for text in (end, over)} <= made.closing_ids
    assert made.decode([id for id in ids if id not in made.closing_ids]) == "x"


def test_deepseek_opens_the_results_of_each_round() -> None:
    """Its template forgets to in later rounds; the self-check knows."""
    made = renderer("deepseekv3")
    made.check(SPECS)
    assert tail(made, calling("{}"), ["<｜end▁of▁sentence｜>"], result("3"), result("4", 1)) == (
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>3<｜tool▁output▁end｜>"
        "<｜tool▁output▁begin｜>4<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
    assert made.opens_think and not made.ends_in_think(made.extend(calling("{}"), [2], [result("3")], SPECS))
    assert made.ends_in_think(made.start([user("hi")]))


def test_contents_in_parts_hold_no_more_control_ids_than_the_template_writes() -> None:
    made = renderer("idefics3")
    plain = made.start([user("hi")])
    assert made.decode(plain) == "<|begin_of_text|>User: hi<end_of_utterance>\nAssistant:"
    assert control_ids(made, made.start([user("<image>hi")])) == control_ids(made, plain)


def test_calls_are_shown_in_the_templates_form_where_their_results_would_be_lost_otherwise() -> None:
    """gpt-oss and Gemma 4 take results only behind calls as such, also where these are read as text."""
    for name in ("gptoss", "gemma4"):
        made = renderer(name)
        shown = made.decode(made.start([user("1+2?"), calling('{"a": 1}'), result("3")], SPECS))
        assert "3" in shown.rpartition("add")[2] and "<tool_call>" not in shown.rpartition("1+2?")[2]


TWINS = sorted(
    Path(str(file)).name.removesuffix("_training.jinja")
    for file in files("trl") or ()
    if str(file).endswith("_training.jinja")
)
"""Templates of trl that also come in a form for training."""
WITHOUT_RESULTS = {"cohere", "cohere2", "gemma", "gemma3", "llava_next", "phi3", "phi3_5"}


@pytest.mark.parametrize("name", TWINS)
def test_the_training_twins_of_the_templates_are_followed_too(name: str) -> None:
    """Variants that keep thinking, mark what is sampled, or end a last turn in another token."""
    made = renderer(name, template=trl_template(f"{name}_training"))
    made.check([])
    if name in WITHOUT_RESULTS:
        with pytest.raises(TemplateError, match="self-check"):
            made.check(SPECS)
    else:
        made.check(SPECS)


def test_all_twins_are_there() -> None:
    assert len(TWINS) == 31
