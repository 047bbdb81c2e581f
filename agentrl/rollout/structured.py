"""Replies whose server has read the tool calls itself: the same checks, and the same endings, as for calls in ids."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.rollout.parsers import ParsedReply
from agentrl.rollout.parsers.checking import check_call
from agentrl.rollout.parsers.strict_json import read_whole_object
from agentrl.tool import Tool
from agentrl.types import CallStatus, Message, ParsedCall, ToolCall

NO_SPAN = (0, 0)
"""No sampled id is known to belong to the call."""


def check_reply(message: Message, *, tools: Mapping[str, Tool], truncated: bool, call_prefix: str) -> ParsedReply:
    """The reply with its calls checked. `truncated`: it was cut, so that its last call may be TRUNCATED.

    A call without an id, or with that of an earlier one, gets `call_prefix` and its position: its result must find it.
    """
    known: set[str] = set()
    calls = []
    for place, call in enumerate(message.tool_calls):
        if not call.id or call.id in known:
            call = call.model_copy(update={"id": f"{call_prefix}{place}"})
        known.add(call.id)
        calls.append(_check(call, tools, truncated and place == len(message.tool_calls) - 1))
    message = message.model_copy(update={"tool_calls": [parsed.call for parsed in calls]})
    return ParsedReply(message=message, calls=calls)


def _check(call: ToolCall, tools: Mapping[str, Tool], may_be_cut: bool) -> ParsedCall:
    try:
        arguments = read_whole_object(call.arguments)
        if not call.name:
            raise ValueError("it has no name")
    except ValueError as error:
        status = CallStatus.TRUNCATED if may_be_cut else CallStatus.INVALID_JSON
        return ParsedCall(call=call, status=status, span=NO_SPAN, error=str(error))
    return check_call(call, arguments, NO_SPAN, tools)
