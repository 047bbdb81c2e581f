"""What a chat template does with calls, their results, and thinking."""

from __future__ import annotations

from agentrl.rollout.probe.ask import NEXT_USER, REPLY, USER, Ask, between, calling, result
from agentrl.rollout.probe.ends import Ends
from agentrl.rollout.probe.facts import Arguments, ConsecutiveTools, Fate, SeveralCalls, TextBesideCall
from agentrl.rollout.template import Json

_THINKING = "thinking0marker"
THINKING_FIELDS = ("reasoning_content", "thinking", "reasoning")
INLINE = "inline"


class Calls:
    """Conversations with calls, whose arguments have the form that the template takes."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.arguments = self._arguments()
        self.thinking = self._thinking()

    def _arguments(self) -> Arguments:
        marker = "value0marker"
        as_object = self._ask.text(USER, calling({"x": marker}))
        as_string = self._ask.text(USER, calling(f'{{"x": "{marker}"}}'))
        if as_string and f'\\"{marker}' in as_string:
            return "object, a string is quoted twice"
        takes_object, takes_string = (marker in (text or "") for text in (as_object, as_string))
        if takes_object:
            return "object or string" if takes_string else "object"
        if takes_string:
            return "string"
        return "refused" if as_object is None and as_string is None else "dropped"

    def _reply(self, num_calls: int, content: str = "") -> Json:
        """A reply whose calls have the values value0marker, value1marker, ..."""
        values = [f"value{i}marker" for i in range(num_calls)]
        if self.arguments == "string":
            return calling(*(f'{{"x": "{value}"}}' for value in values), content=content)
        return calling(*({"x": value} for value in values), content=content)

    def with_results(self, *results: Json) -> str | None:
        """After as many calls; after one, or a text, where the template refuses that."""
        replies = (self._reply(len(results)), self._reply(1), REPLY)
        rendered = (self._ask.text(USER, reply, *results) for reply in replies)
        return next((text for text in rendered if text is not None), None)

    def consecutive(self, ends: Ends) -> ConsecutiveTools:
        """One by one: the second result is opened as the first is."""
        first, second = result(0), result(1)
        rendered = self.with_results(first, second)
        if rendered is None:
            return "refused"
        if first["content"] not in rendered or second["content"] not in rendered:
            return "dropped"
        closing = _behind_reply(rendered.partition(first["content"])[0])
        stop = ends.first_stop(closing)
        apart = closing.partition(stop)[2] if stop and ends.owner() != "next message" else ""
        opening = self._ask.control_strings(apart)
        is_opened = (opening or [stop or closing])[0] in between(rendered, first["content"], second["content"])
        return "one by one" if is_opened else "merged"

    def stop(self, ends: Ends) -> str | None:
        """What ends a reply with a call."""
        before_result = (self.with_results(result(0)) or "").partition(result(0)["content"])[0]
        return ends.first_stop(_behind_reply(before_result)) if "value0marker" in before_result else None

    def several(self) -> SeveralCalls:
        """Two calls in one reply."""
        rendered = self._ask.text(USER, self._reply(2))
        if rendered is None:
            return "refused"
        if "value0marker" not in rendered:
            return "dropped"
        return "kept" if "value1marker" in rendered else "first only"

    def text_beside(self) -> TextBesideCall:
        """A text in the content of a reply with a call."""
        reply = self._reply(1, content="beside0marker")
        rendered = self._ask.text(USER, reply, result(0)) or self._ask.text(USER, reply)
        if rendered is None:
            return "refused"
        place = rendered.find("beside0marker")
        if place < 0:
            return "dropped"
        return "moved behind the result" if 0 <= rendered.find(result(0)["content"]) < place else "kept"

    def _thinking(self) -> str | None:
        """The first form in which thinking is shown in a last reply."""
        for form in (*THINKING_FIELDS, INLINE):
            replies = (_with_thinking(form, REPLY), _with_thinking(form, self._reply(1)))
            if any(self._ask.fate(_THINKING, USER, reply) == "kept" for reply in replies):
                return form
        return None

    def thinking_at_result(self) -> Fate:
        """Thinking beside a call, once its result has come."""
        reply = _with_thinking(self.thinking or INLINE, self._reply(1))
        return self._ask.fate(_THINKING, USER, reply, result(0))

    def thinking_at_user(self) -> Fate:
        """Thinking of a reply, once a user message has come."""
        return self._ask.fate(_THINKING, USER, _with_thinking(self.thinking or INLINE, REPLY), NEXT_USER)


def _with_thinking(form: str, reply: Json) -> Json:
    if form == INLINE:
        return reply | {"content": f"<think>\n{_THINKING}\n</think>\n\n{reply['content']}"}
    return reply | {form: _THINKING}


def _behind_reply(before_result: str) -> str:
    """Behind the last thing of a reply that is shown."""
    markers = [m for m in ("value1marker", "value0marker", REPLY["content"], USER["content"]) if m in before_result]
    return before_result.rpartition(markers[0])[2] if markers else before_result
