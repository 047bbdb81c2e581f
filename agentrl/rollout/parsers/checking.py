"""From a call in a text to a call that may run, or to what the model is told about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentrl.rollout.parsers.coercion import typed
from agentrl.rollout.parsers.sampled import plain
from agentrl.tool import Tool
from agentrl.types import CallStatus, ParsedCall, ToolCall

if TYPE_CHECKING:
    from agentrl.rollout.parsers.base import FoundCall


def checked(found: FoundCall, tools: Mapping[str, Tool], id: str, truncated: bool) -> ParsedCall:
    """The call with its status; `arguments` is set only where it may run."""
    span = (found.start, found.end)
    name = plain(found.name)
    if found.arguments is None:
        status = CallStatus.TRUNCATED if truncated and found.is_open else CallStatus.INVALID_JSON
        call = ToolCall(id=id, name=name, arguments=plain(found.raw).strip())
        return ParsedCall(call=call, status=status, span=span, error=found.problem)
    tool = tools.get(name)
    arguments, problems = found.arguments, ""
    if found.as_text:
        arguments, problems = typed(arguments, tool.schema if tool else {})
    call = ToolCall(id=id, name=name, arguments=found.raw or json.dumps(arguments, ensure_ascii=False))
    if problems:
        return ParsedCall(call=call, status=CallStatus.INVALID_ARGUMENTS, span=span, error=problems)
    return check_call(call, arguments, span, tools)


def check_call(
    call: ToolCall, arguments: dict[str, Any], span: tuple[int, int], tools: Mapping[str, Tool]
) -> ParsedCall:
    """A call whose arguments could be read, held against its tool's schema."""
    tool = tools.get(call.name)
    if tool is None:
        return ParsedCall(call=call, status=CallStatus.UNKNOWN_TOOL, span=span)
    try:
        fitting = tool.validate(arguments)
    except ValueError as error:
        return ParsedCall(call=call, status=CallStatus.INVALID_ARGUMENTS, span=span, error=_describe(error))
    return ParsedCall(call=call, status=CallStatus.OK, span=span, arguments=fitting)


def bad_call_observation(parsed: ParsedCall, tools: Mapping[str, Tool], max_chars: int, form: str) -> str:
    """What the model is told about a call that wasn't run; at most `max_chars` characters are its own.

    The problem, then the tool's schema where the tool is known, else the known names. `form`: as calls should look.
    """
    tool = tools.get(parsed.call.name)
    # Errors of a schema may quote names and values that the model chose, so they count as its own text.
    detail = parsed.error or ""
    foreign = detail[:max_chars] if parsed.status is CallStatus.INVALID_ARGUMENTS else ""
    own = (parsed.call.name if tool is None else "", parsed.call.arguments)
    quoted = " ".join(part for part in own if part)[: max_chars - len(foreign)]
    problem = _PROBLEMS[parsed.status].format(form=form)
    lines = [f"Error: the call was not run: {problem}{': ' if detail else ''}{foreign or detail}."]
    if tool is not None:
        lines.append(f"Schema of the arguments of {tool.name}: {json.dumps(tool.schema, ensure_ascii=False)}")
    else:
        lines.append(f"Known tools: {', '.join(sorted(tools)) or 'none'}")
    if quoted:
        lines.append(f"Your text: {quoted}")
    return "\n".join(lines)


_PROBLEMS = {
    CallStatus.INVALID_JSON: "it is not of the form {form}",
    CallStatus.TRUNCATED: "the reply was cut inside it",
    CallStatus.UNKNOWN_TOOL: "there is no tool of that name",
    CallStatus.INVALID_ARGUMENTS: "the arguments don't fit the schema",
}


def _describe(error: ValueError) -> str:
    """The fields that don't fit, without the values: the model knows what it wrote."""
    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in problems)
