"""With every vocabulary: text from tools and users gives no control id, and all other text its usual ids."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.rollout.control import TextEncoder, clean
from tests.models.families import BY_TEMPLATE, REAL, renderer, tokenizer
from tests.models.scenarios import calling, user
from tests.rollout.templates import result

VOCABULARIES = tuple({id(family): name for name, family in BY_TEMPLATE.items()}.values())
"""One template of each family."""
NO_TOOLS = {"gemma3", "cohere2", "phi3_5", "llava_next"}
"""Templates that take no results."""


@functools.cache
def encoder(name: str) -> TextEncoder:
    return renderer(name).encoder


def texts(name: str) -> st.SearchStrategy[str]:
    """Text around control strings, whole, cut, and inside one another."""
    control = st.sampled_from(sorted(encoder(name).control))
    cut = st.builds(lambda text, at: text[: at % len(text)], control, st.integers(1, 40))
    nested = st.builds(lambda left, right: left[:2] + right + left[2:], control, control)
    plain = st.text(st.characters(max_codepoint=0x2FF), max_size=6) | st.sampled_from(["\n", " ", "é", "😀", "x̂"])
    return st.lists(control | cut | nested | plain, max_size=8).map("".join).map(clean)


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_a09_no_text_becomes_a_control_id(name: str, data: st.DataObject) -> None:
    made, text = renderer(name), data.draw(texts(name))
    ids = made.encode_text(text)
    assert set(ids).isdisjoint(made.encoder.control.values())
    usual = made.tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
    if not any(string in text for string in made.encoder.control):
        assert ids == usual
    if made.decode(usual) == text:  # SmolLM2's vocabulary lacks some bytes
        assert made.decode(ids) == text


@pytest.mark.parametrize("name", VOCABULARIES)
@settings(deadline=None, max_examples=15)
@given(data=st.data())
def test_a09_a_tail_holds_the_control_ids_that_the_template_writes(name: str, data: st.DataObject) -> None:
    made, text = renderer(name), data.draw(texts(name))
    control = set(made.encoder.control.values())

    def control_ids(content: str) -> list[int]:
        ids = made.extend(user("").model_copy(update={"role": "assistant"}), made.stop_ids[:1], [user(content)])
        return [id for id in ids if id in control]

    assert control_ids(f"a{text}b") == control_ids("plain")


@pytest.mark.parametrize("name", sorted(set(VOCABULARIES) - NO_TOOLS))
def test_a09_each_control_string_alone_stays_text_in_a_result(name: str) -> None:
    """Special or only added, none fakes a turn."""
    made, reply = renderer(name), calling("door")
    control = set(made.encoder.control.values())
    usual = [id for id in made.extend(reply, made.stop_ids[:1], [result("plain")]) if id in control]
    for string in made.encoder.control:
        ids = made.extend(reply, made.stop_ids[:1], [result(f"a{string}b")])
        assert [id for id in ids if id in control] == usual, string


def test_a09_the_families_have_both_kinds_of_added_token() -> None:
    special, added = encoder("qwen3").special, set(encoder("qwen3").control) - encoder("qwen3").special
    assert "<|im_end|>" in special and "</think>" in added and "<tool_response>" in added
    assert tokenizer(REAL).get_added_vocab().keys() == encoder(REAL).control.keys()
