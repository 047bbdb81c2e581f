"""What a chat template does, and whether a model that speaks it can be trained (`agentrl doctor`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

from agentrl.errors import TemplateError
from agentrl.rollout.probe.ask import NEXT_USER, REPLY, TOOL, USER, Ask, fate, result
from agentrl.rollout.probe.calls import THINKING_FIELDS, Calls
from agentrl.rollout.probe.ends import Ends
from agentrl.rollout.probe.facts import Fate, TemplateFacts, Tools
from agentrl.rollout.probe.scenarios import try_scenarios
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.template import ChatTemplate, Json

__all__ = ["TOOL", "TemplateFacts", "probe_template"]

_OPEN_THINKING = re.compile(r"(<think>|<\|channel\|?>\s*(thought|analysis)\S*)\s*$")
_LIKE_CONTROL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|<\w+_of_\w+>")
_DATES = (datetime(2001, 2, 3), datetime(2022, 12, 31))


def probe_template(renderer: Renderer, tools: Sequence[Json]) -> TemplateFacts:
    """Ask the template of a renderer; `tools` are the specs of those that it will be trained with."""
    ask = Ask(renderer.template)
    ends, calls = Ends(ask, renderer.model_stop_ids), Calls(ask)
    bos = _bos(renderer.template)
    opens_thinking = _OPEN_THINKING.search(ask.text(USER, prompt=True) or "") is not None
    thinks = opens_thinking or calls.thinking in THINKING_FIELDS
    scenarios = try_scenarios(renderer, tools, thinks=thinks, opens_next=ends.owner() == "next message")
    return TemplateFacts(
        stop=ends.stop,
        stop_owner=ends.owner(),
        stop_in_history=ends.stop_in_history,
        stop_after_call=calls.stop(ends),
        after_stop=ends.after_stop(),
        default_system=ends.default_system(),
        content=_contents(ask, calls),
        lone_tool=ask.fate(result(0)["content"], result(0)),
        consecutive_tools=calls.consecutive(ends),
        arguments=calls.arguments,
        several_calls=calls.several(),
        text_beside_call=calls.text_beside(),
        thinking=calls.thinking,
        thinking_at_result=calls.thinking_at_result(),
        thinking_at_user=calls.thinking_at_user(),
        opens_thinking=opens_thinking,
        bos=bos,
        double_bos=bos is not None and (ask.text(USER) or "").startswith(bos),
        unknown_control=_unknown_control(ask),
        prints_date=_prints_date(renderer.template),
        tools=_tools(ask),
        history="rewritten" if any(one.rewrites for one in scenarios) else "kept",
        append_refused=_refusal(renderer, tools),
        append_refused_without_tools=_refusal(renderer, ()),
        scenarios=scenarios,
    )


def _contents(ask: Ask, calls: Calls) -> dict[str, Fate]:
    """By role, what becomes of a content with white space around it and quotes in it."""
    content = '  "content0marker" \n'
    made = {role: {"role": role, "content": content} for role in ("system", "user", "assistant")}
    return {
        "system": fate(content, ask.text(made["system"], USER)),
        "user": fate(content, ask.text(made["user"], REPLY, NEXT_USER)),
        "assistant": fate(content, ask.text(USER, made["assistant"], NEXT_USER)),
        "tool": fate(content, calls.with_results(result(0, content))),
    }


def _tools(ask: Ask) -> Tools:
    rendered = ask.text(USER, tools=[TOOL])
    return "refused" if rendered is None else "shown" if TOOL["function"]["name"] in rendered else "ignored"


def _bos(template: ChatTemplate) -> str | None:
    """The control string that the tokenizer puts in front of any text."""
    backend = template.tokenizer.backend_tokenizer
    plain, ids = (backend.encode("x", add_special_tokens=added).ids for added in (False, True))
    return template.encoder.decode(ids[:1]) if ids[:1] != plain[:1] else None


def _unknown_control(ask: Ask) -> tuple[str, ...]:
    found = _LIKE_CONTROL.findall(ask.text(USER, REPLY, NEXT_USER, prompt=True) or "")
    return tuple(sorted(set(found) - ask.template.encoder.control.keys()))


def _prints_date(template: ChatTemplate) -> bool:
    """Templates learn the date from one function only, which an argument of the same name replaces."""

    def on(day: datetime) -> str:
        kwargs = template.kwargs | {"strftime_now": day.strftime}
        return ChatTemplate(template.tokenizer, template.encoder, kwargs).render([USER])

    return on(_DATES[0]) != on(_DATES[1])


def _refusal(renderer: Renderer, tools: Sequence[Json]) -> str | None:
    try:
        renderer.check(tools)
    except TemplateError as error:
        return str(error)
    return None
