"""The anchored tail: what the template writes between a sampled reply and the next one.

Rendering the history again would change it (templates drop thinking, trim, merge). So a short conversation is
rendered instead: a dummy user message, a skeleton of the reply that holds a sentinel, and all new messages. The
first end token after the sentinel is the anchor; what follows it is the tail. Nothing that was sampled takes part.

    render   <user>hi<end> <assistant>[sentinel]<end> \\n <tool>42<end> \\n <assistant>
    anchor                                      <end>
    tail                                              \\n <tool>42<end> \\n <assistant>

Role pattern by role pattern it is probed once, with marker contents, where the anchor is and that the template
shows every new message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.errors import TemplateError
from agentrl.rollout.control import SENTINEL, ControlString
from agentrl.rollout.template import USER, ChatTemplate, Json, call_dict

CallNames = tuple[tuple[str, str], ...]
"""(id, name) of each call of a reply."""
_TEXT: Json = {"role": "assistant", "content": SENTINEL}
_AS_TEXT = json.dumps({"x": SENTINEL}, ensure_ascii=False)
_OPENERS = frozenset({"<|user|>", "<|observation|>", "<|tool_response>"})
"""Tokens that end a reply by opening the next message, and whose templates don't show it: GLM-4.5, Gemma 4."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What follows a reply, as text."""

    anchor: str
    """The control string that ends the reply."""
    text: str
    """What the template writes after the anchor."""
    opens: bool
    """The anchor also opens the next message (GLM): it must be there whichever stop id was sampled."""


@dataclass(frozen=True, slots=True)
class _Join:
    skeleton: int
    """Index of the first skeleton in which the sentinel survives."""
    closing: str
    """From behind the sentinel through the anchor."""
    anchor: str
    needs_tools: bool
    """What follows the sentinel depends on the tools; else they are left out, so that a turn costs its new text."""


class Scaffold:
    """Tails of one template. Raises TemplateError where the template doesn't mark where a reply ends."""

    def __init__(self, template: ChatTemplate, stop_ids: Iterable[int]) -> None:
        self._template = template
        self._encoder = template.encoder
        self._joins: dict[tuple[int, tuple[str, ...]], _Join] = {}
        self.stop_ids = set(stop_ids)
        """The ids given, and the one with which the template ends a last reply where it uses none of those."""
        self._learn_closer()
        self._learn_last_reply()

    def is_opener(self, id: int) -> bool:
        """Does the id open the next message rather than end the reply?"""
        return any(self._encoder.control.get(text) == id for text in _OPENERS)

    def tail(self, calls: CallNames, new: Sequence[Json], tools: Sequence[Json]) -> Tail:
        """What follows a reply with these calls (id, name); `new` are marked messages. O(new text)."""
        roles = tuple(message["role"] for message in new)
        key = (len(calls), roles)
        if key not in self._joins:
            self._joins[key] = self._probe(tuple((f"call_{i}", "tool") for i in range(len(calls))), roles, tools)
        tail = self._cut(self._joins[key], calls, new, tools)
        if tail is None:  # the closing depends on the calls themselves: probe with these, and don't remember
            tail = self._cut(self._probe(calls, roles, tools), calls, new, tools)
        if tail is None:
            raise TemplateError(f"the chat template of {self._template.name} ends a reply differently each time")
        return tail

    def _cut(self, join: _Join, calls: CallNames, new: Sequence[Json], tools: Sequence[Json]) -> Tail | None:
        skeleton = _skeletons(calls)[join.skeleton]
        after = _after_sentinel(self._template.render([USER, skeleton, *new], tools if join.needs_tools else ()))
        if after is None or not after.startswith(join.closing):
            return None
        return Tail(join.anchor, after[len(join.closing) :], self.opens_next or join.anchor in _OPENERS)

    def _probe(self, calls: CallNames, roles: tuple[str, ...], tools: Sequence[Json]) -> _Join:
        """Where the anchor is for a role pattern. Raises TemplateError where a new message would vanish."""
        new = [_marker_message(i, role, calls) for i, role in enumerate(roles)]
        index, after = self._first_that_renders(calls, new, tools)
        places = [after.find(message["content"]) for message in new]
        if dropped := sorted({role for role, place in zip(roles, places, strict=True) if place < 0}):
            raise TemplateError(
                f"the chat template of {self._template.name} drops {' and '.join(dropped)} messages: the model would "
                f"not see them. Use a chat template that renders the role, or an environment that does without it"
            )
        before_new = after[: min(places)] if places else after
        anchor = self.anchor(before_new)
        if anchor is None:
            raise TemplateError(
                f"the chat template of {self._template.name} writes no end token between a reply and the next "
                f"{roles[0] if roles else 'reply'} message (found {before_new!r}). Add the model's end-of-turn token "
                f"to the template, or pass its id in stop_ids"
            )
        needs_tools = self._without_tools([USER, _skeletons(calls)[index], *new]) != after
        return _Join(index, after[: anchor.end], anchor.text, needs_tools)

    def _without_tools(self, messages: list[Json]) -> str | None:
        """What follows the sentinel; None where the template refuses."""
        try:
            return _after_sentinel(self._template.render(messages))
        except TemplateError:
            return None

    def _first_that_renders(self, calls: CallNames, new: list[Json], tools: Sequence[Json]) -> tuple[int, str]:
        error: TemplateError | None = None
        for index, skeleton in enumerate(_skeletons(calls)):
            try:
                after = _after_sentinel(self._template.render([USER, skeleton, *new], tools))
            except TemplateError as raised:
                error = raised
                continue
            if after is not None:
                return index, after
        raise error or TemplateError(f"the chat template of {self._template.name} drops the assistant's text")

    def anchor(self, text: str) -> ControlString | None:
        """The first stop token, else the closer learnt from plain replies (gpt-oss ends history in another one)."""
        written = list(self._encoder.written_by_template(text))
        stops = [found for found in written if self._encoder.control[found.text] in self.stop_ids]
        return next((found for found in stops or written if stops or found.text == self.closer), None)

    def _learn_closer(self) -> None:
        """How a plain reply ends in front of a user message."""
        self.closer: str | None = None
        marker = _marker_message(0, "user", ())
        after = _after_sentinel(self._template.render([USER, _TEXT, marker])) or ""
        before_new = after.partition(marker["content"])[0]
        end = self.anchor(before_new) or self._first_special(before_new)
        if end is not None:
            self.closer = end.text
        self.closer_prefix = before_new[: end.start] if end else ""
        """Written between a reply and its closer (nemotron: a newline)."""

    def _learn_last_reply(self) -> None:
        """How a reply ends that nothing follows: that is what a model learns to sample."""
        after = _after_sentinel(self._template.render([USER, _TEXT], prompt=False)) or ""
        written = list(self._encoder.written_by_template(after))
        self.opens_next = not written
        """The template ends no reply: the model stops by sampling the next message's opening token."""
        stops = [f for f in written if f.text == self.closer or self._encoder.control[f.text] in self.stop_ids]
        end = stops[0] if stops else self._first_special(after)
        if end is not None:
            self.stop_ids.add(self._encoder.control[end.text])
        self.last_closing = after
        """What the template writes after a last reply."""
        self.reply_end = after[: end.end] if end else None
        """The part of it that is sampled, through the stop token; None: the template writes none."""
        ends = self._encoder.written_by_template(self.reply_end or "")
        self.closing_ids = frozenset(self.stop_ids | {self._encoder.control[found.text] for found in ends})
        """Those of the stop tokens and of `reply_end`: Cohere's models end the response, then the turn."""

    def _first_special(self, text: str) -> ControlString | None:
        written = self._encoder.written_by_template(text)
        return next((found for found in written if found.text in self._encoder.special), None)


def _after_sentinel(rendered: str) -> str | None:
    _, found, after = rendered.rpartition(SENTINEL)
    return after if found else None


def _skeletons(calls: CallNames) -> list[Json]:
    """Stand-ins for a reply, to be tried in order: templates differ in what they take and in what they show.

    The reply's own text never takes part: some templates print it after the results.
    """
    if not calls:
        return [_TEXT]
    return [
        _with_calls(calls, {}, {"x": SENTINEL}),
        _with_calls(calls, "{}", _AS_TEXT),
        _with_calls(calls[:1], {}, {"x": SENTINEL}),
        _TEXT,
    ]


def _with_calls(calls: CallNames, empty: Json | str, sentinel: Json | str) -> Json:
    """The sentinel is in the last call, so that the first end token after it ends the reply."""
    dicts = [call_dict(id, name, empty) for id, name in calls]
    dicts[-1]["function"]["arguments"] = sentinel
    return {"role": "assistant", "content": "", "tool_calls": dicts}


def _marker_message(index: int, role: str, calls: CallNames) -> Json:
    message: Json = {"role": role, "content": f"probe{index}content"}
    if role == "tool" and calls:
        id, name = calls[min(index, len(calls) - 1)]
        message |= {"tool_call_id": id, "name": name}
    return message
