"""The first difference between a recorded trajectory and the same actions played again, in the order of time.

Compared is what the environment did: messages, results of tool calls, rewards, ending, artifacts. Not what follows from
the clock, nor ids of requests. What was never recorded (the answer to a reply that was cut) is no difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, zip_longest
from operator import ne

from agentrl.types import Artifacts, Message, ParsedCall, Trajectory

NUM_AROUND = 40
"""Characters shown on either side of the first that differs."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Difference:
    """One thing that came out otherwise. None: there is nothing on that side."""

    where: str
    recorded: str | None
    now: str | None

    def lines(self) -> list[str]:
        """What a person reads."""
        recorded, now = self.recorded or "", self.now or ""
        at = next(compress(count(), map(ne, recorded, now)), min(len(recorded), len(now)))
        return [
            f"first difference: {self.where}, character {at}",
            f"  recorded  {_around(self.recorded, at)}",
            f"  now       {_around(self.now, at)}",
        ]


def messages_differ(where: str, recorded: Sequence[Message], now: Sequence[Message]) -> Difference | None:
    """The first message that differs."""
    for number, (was, came) in enumerate(zip_longest(recorded, now)):
        if was == came:
            continue
        role = (was or came).role
        place = f"{where}, {role} message {number + 1} of {len(recorded)}"
        if was is not None and came is not None and was.text != came.text:
            return Difference(where=place, recorded=was.text, now=came.text)
        return Difference(where=place, recorded=_as_json(was), now=_as_json(came))
    return None


def turns_differ(recorded: Trajectory, now: Trajectory) -> Iterator[Difference]:
    """What the environment made of the replies that both have."""
    for was, came in zip(recorded.turns_of(), now.turns_of(), strict=False):
        place = f"turn {was.index}"
        if was.message != came.message:
            where = f"{place}, how the reply is read"
            yield Difference(where=where, recorded=_as_json(was.message), now=_as_json(came.message))
        if "env" not in was.timings:  # nothing was recorded of how it was answered
            continue
        for one, other in zip(was.tool_calls, came.tool_calls, strict=False):
            name = f"{place}, call {one.call.name}({one.call.arguments})"
            if _outcome(one) != _outcome(other):
                yield Difference(where=name, recorded=_outcome(one), now=_outcome(other))
        if was.reward != came.reward:
            yield Difference(where=f"{place}, reward", recorded=str(was.reward), now=str(came.reward))


def endings_differ(recorded: Trajectory, now: Trajectory) -> Iterator[Difference]:
    """How the episode ended, and what it left for grading."""
    if (recorded.stop_reason, len(recorded.turns_of())) != (now.stop_reason, len(now.turns_of())):
        yield Difference(where="the ending", recorded=_ending(recorded), now=_ending(now))
    yield from _artifacts_differ(recorded.artifacts, now.artifacts)


def _artifacts_differ(recorded: Artifacts, now: Artifacts) -> Iterator[Difference]:
    for name in sorted(recorded.data.keys() | now.data.keys()):
        was, came = (_dumped(its.data, name) for its in (recorded, now))
        if was != came:
            yield Difference(where=f"artifact {name!r}", recorded=was, now=came)
    for name in sorted(recorded.files.keys() | now.files.keys()):
        contents = [its.files.get(name) for its in (recorded, now)]
        if contents[0] != contents[1]:
            # One character per byte, so that the place of the first that differs is right.
            was, came = (None if content is None else content.decode("latin-1") for content in contents)
            yield Difference(where=f"artifact file {name!r}", recorded=was, now=came)


def _dumped(data: Mapping[str, object], name: str) -> str | None:
    return json.dumps(data[name], sort_keys=True, ensure_ascii=False) if name in data else None


def _outcome(call: ParsedCall) -> str:
    return f"{call.status}: {call.result or call.error or ''}"


def _ending(trajectory: Trajectory) -> str:
    text = f"{trajectory.stop_reason} after {len(trajectory.turns_of())} replies"
    return f"{text}: {trajectory.error}" if trajectory.error else text


def _as_json(message: Message | None) -> str | None:
    return None if message is None else message.model_dump_json(exclude_defaults=True)


def _around(text: str | None, at: int) -> str:
    """The text around a place, on one line."""
    if text is None:
        return "nothing"
    start, end = max(0, at - NUM_AROUND), at + NUM_AROUND
    return ("…" if start else "") + repr(text[start:end]) + ("…" if end < len(text) else "")
