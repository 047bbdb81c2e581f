"""The conversations that are played with every template."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from agentrl.types import Message, ToolCall

Ending = Literal["stop", "no stop", "other stop", "cut"]
"""How the last reply but one ends: with the template's stop id, with none, with another one, or cut by its length."""
CONTROL = "CONTROL"
"""In a text: replaced by every control string of the family."""
STRAY = "<repo_name>"
"""A special token of SmolLM2's vocabulary that no template writes."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """First messages; then replies of the model, and what the environment says after each but the last."""

    name: str
    replies: list[Message]
    answers: list[list[Message]] = field(default_factory=list)
    """What the environment adds to the results of the tools."""
    first: list[Message] = field(default_factory=lambda: [user("What is there?")])
    results: list[str] = field(default_factory=list)
    """What the tool returns, call by call."""
    history: list[Message] | None = None
    """What the environment puts in the place of the conversation after the first reply."""
    ending: Ending = "stop"
    as_text: bool = False
    """Calls are written in the form that agentrl describes, not in the template's own."""

    @property
    def uses_tools(self) -> bool:
        return any(reply.tool_calls for reply in self.replies)

    def with_control(self, control: str) -> Scenario:
        """With the control strings of a family in the place of the placeholder."""
        answers = [[put(message, control) for message in answer] for answer in self.answers]
        results = [result.replace(CONTROL, control) for result in self.results]
        changed = {"answers": answers, "results": results, "first": [put(message, control) for message in self.first]}
        return Scenario(**(vars(self) | changed))


def put(message: Message, control: str) -> Message:
    return message.model_copy(update={"content": message.text.replace(CONTROL, control)})


def user(text: str) -> Message:
    return Message(role="user", content=text)


def said(text: str, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=text, reasoning=reasoning)


def calling(*places: str, text: str = "", reasoning: str | None = None) -> Message:
    calls = [ToolCall(id=f"call_{i}", name="look", arguments=json.dumps({"at": at})) for i, at in enumerate(places)]
    return Message(role="assistant", content=text, reasoning=reasoning, tool_calls=calls)


UNICODE = "naïve 😀 é x̂ 日本"
SCENARIOS = (
    Scenario(name="one turn", replies=[said("A door.")]),
    Scenario(
        name="six turns",
        replies=[said(f"Answer {i}, at length.") for i in range(6)],
        answers=[[user(f"Question {i}?")] for i in range(5)],
    ),
    Scenario(name="call", replies=[calling("door"), said("It is open.")], results=["open"]),
    Scenario(name="parallel calls", replies=[calling("door", "roof"), said("Both.")], results=["open", "leaks"]),
    Scenario(
        name="rounds of calls",
        replies=[calling("door"), calling("roof"), calling("cellar"), said("All.")],
        results=["open", "leaks", "dark"],
    ),
    Scenario(
        name="result, then user",
        replies=[calling("door"), said("Yes.")],
        results=["open"],
        answers=[[user("And it is late?")]],
    ),
    Scenario(
        name="call as text",
        replies=[calling("door"), calling("roof"), said("Both.")],
        results=["open", "leaks"],
        as_text=True,
    ),
    Scenario(
        name="thinking, then calls",
        replies=[calling("door", reasoning="A door first."), said("Open.", "So it is.")],
        results=["open"],
    ),
    Scenario(
        name="thinking, user turns",
        replies=[said("A door.", "I see one."), said("Two.", "I count."), said("None.", "No more.")],
        answers=[[user("How many?")], [user("Any more?")]],
    ),
    Scenario(name="truncated call", replies=[calling("door"), said("")], results=["open"], ending="cut"),
    Scenario(
        name="no stop id",
        replies=[said("A door."), said("A roof.")],
        answers=[[user("What else?")]],
        ending="no stop",
    ),
    Scenario(
        name="another stop id",
        replies=[said("A door."), said("A roof.")],
        answers=[[user("What else?")]],
        ending="other stop",
    ),
    Scenario(
        name="control strings, tool",
        replies=[calling("door"), said("Open.")],
        results=[f"a{CONTROL}b\nI am done"],
    ),
    Scenario(
        name="control strings, user",
        first=[user(f"See {CONTROL} here.")],
        replies=[said("A door."), said("A roof.")],
        answers=[[user(f"And {CONTROL} there?")]],
    ),
    Scenario(name="empty contents", replies=[said(""), said("")], answers=[[user("")]]),
    Scenario(name="empty result", replies=[calling("door"), said("Nothing.")], results=[""]),
    Scenario(
        name="emoji, combining",
        first=[user(UNICODE)],
        replies=[said(UNICODE), said("é")],
        answers=[[user(f"{UNICODE} x̂")]],
    ),
    Scenario(
        name="white space at edges",
        replies=[said("  A door. \n"), said("\tx")],
        answers=[[user(" \n What else?  ")]],
    ),
    Scenario(
        name="stray special token",
        replies=[said(f"A {STRAY} door."), said("x")],
        answers=[[user("What else?")]],
    ),
    Scenario(
        name="few-shot replies",
        first=[user("1+1?"), said("2"), user("2+2?")],
        replies=[said("4"), said("8")],
        answers=[[user("4+4?")]],
    ),
    Scenario(
        name="summary turn",
        replies=[said("A door."), said("Yes."), said("No.")],
        history=[user("Until now: there is a door.")],
        answers=[[user("Is it open?")], [user("Is it red?")]],
    ),
    Scenario(
        name="history edit",
        replies=[said("A door, at great length."), said("Yes."), said("No.")],
        history=[user("What is there?"), said("A door.")],
        answers=[[user("Is it open?")], [user("Is it red?")]],
    ),
)
