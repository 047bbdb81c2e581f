"""A trajectory as text. What models and tools wrote is shown with its control characters made visible."""

from __future__ import annotations

from agentrl.figures import number
from agentrl.types import Message, ParsedCall, Sample, Trajectory, Turn
from agentrl.visible import visible


def transcript(sample: Sample) -> str:
    """The conversation, and how it ended."""
    trajectory = sample.trajectory
    lines = [f"── {trajectory.task.id}  trajectory {trajectory.id}"]
    for turn in trajectory.turns:
        if turn.agent != "main":
            lines.append(chat_line(turn))
            continue
        lines += [_message_line(message) for message in turn.prompt_messages]
        lines += _reply_lines(turn)
    lines.append(ending_line(trajectory) + f"  {reward_text(sample)}")
    return visible("\n".join(lines)) + "\n"


def chat_line(turn: Turn) -> str:
    """What another agent was asked last (a user simulator, a judge), and its reply."""
    asked = visible(turn.prompt_messages[-1].text) if turn.prompt_messages else ""
    return f"  ({visible(turn.agent)} was asked: {asked} → {visible(turn.message.text)})"


def ending_line(trajectory: Trajectory) -> str:
    """The stop reason and the error, if there is one."""
    error = f": {visible(trajectory.error)}" if trajectory.error else ""
    return f"  [{trajectory.stop_reason}{error}]"


def reward_text(sample: Sample) -> str:
    """The reward, or why there is none."""
    if sample.grade is None:
        return "not graded"
    if sample.grade.reward is None:
        return f"unmeasured: {visible(sample.grade.unmeasured or '')}"
    return f"reward {number(sample.grade.reward)}"


def _message_line(message: Message) -> str:
    return f"  {message.role:9} {visible(message.text)}"


def _reply_lines(turn: Turn) -> list[str]:
    text = visible(turn.message.text)
    lines = [f"  assistant {text}"] if text or not turn.tool_calls else []
    return lines + [_call_line(call) for call in turn.tool_calls]


def _call_line(call: ParsedCall) -> str:
    return f"  assistant → {visible(call.call.name)}({visible(call.call.arguments)})  {call.status}"
