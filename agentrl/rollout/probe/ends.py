"""How replies end, who writes the end, and what a conversation without system message begins with."""

from __future__ import annotations

from collections.abc import Collection

from agentrl.rollout.probe.ask import NEXT_USER, REPLY, USER, Ask, between, common_prefix
from agentrl.rollout.probe.facts import StopOwner


class Ends:
    """Learnt from a reply that nothing follows, and from the same one in front of a user message."""

    def __init__(self, ask: Ask, model_stop_ids: Collection[int]) -> None:
        """`model_stop_ids`: where the tokenizer and the generation config stop."""
        self._ask = ask
        self._model_stop_ids = model_stop_ids
        before, found, _ = (ask.text(USER) or "").partition(USER["content"])
        self._before_first_user = before if found else ""
        self._last = (ask.text(USER, REPLY) or "").partition(REPLY["content"])[2]
        history = ask.text(USER, REPLY, NEXT_USER) or ""
        self._between = between(history, REPLY["content"], NEXT_USER["content"])
        self.stop_in_history = self.first_stop(self._between)
        self.stop = self.first_stop(self._last) or self.stop_in_history

    def first_stop(self, text: str) -> str | None:
        """The first control string at which the model stops, else the first that is special, else the first."""
        encoder = self._ask.template.encoder
        written = self._ask.control_strings(text)
        stops = [one for one in written if encoder.control[one] in self._model_stop_ids]
        special = [one for one in written if one in encoder.special]
        return next(iter(stops + special + written), None)

    def owner(self) -> StopOwner:
        """Who writes the stop."""
        if self.stop is None:
            return "nobody"
        if self._opens_next():
            return "next message"
        return "model" if self._ask.template.encoder.control[self.stop] in self._model_stop_ids else "template"

    def _opens_next(self) -> bool:
        """What stands between a reply and the next message is one control string, which begins conversations too."""
        is_alone = len(self._ask.control_strings(self._between)) == 1
        return is_alone and self._before_first_user.endswith(self._between[self._between.find(self.stop or "") :])

    def after_stop(self) -> str:
        """The plain text that is written behind the stop whether or not something follows."""
        in_history = self._plain_after(self._between, self.stop_in_history)
        stop = self.first_stop(self._last)
        return in_history if stop is None else common_prefix(in_history, self._plain_after(self._last, stop))

    def _plain_after(self, text: str, stop: str | None) -> str:
        after = text.partition(stop)[2] if stop else ""
        return after.partition(next(iter(self._ask.control_strings(after)), "\0"))[0]

    def default_system(self) -> str | None:
        """What stands in front of a first user message and not of a second one, without control strings."""
        before = self._before_first_user
        place = len(before) - len(common_prefix(before[::-1], self._between[::-1]))
        text, end = "", 0
        for found in self._ask.template.encoder.written_by_template(before):
            if found.start < place:
                text, end = f"{text}{before[end : found.start]} ", found.end
        return (text + before[end:place]).strip() or None
