"""The nouns as database records, one function per table, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.store.codec import decode_ids, decode_logprobs, encode_ids, encode_logprobs
from agentrl.store.records import StepRow
from agentrl.store.sealing import seal, unseal
from agentrl.types import (
    Artifacts,
    CallStatus,
    EngineCall,
    Grade,
    Message,
    ParsedCall,
    Sampler,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)

Record = dict[str, Any]
Answers = Mapping[str, str | None]
"""{id of a tool call: its result}."""
NO_ANSWERS: Answers = {}


def task_identity(task: Task) -> str:
    """Primary key of a task: equal content under two splits or ids is two records."""
    text = "\x1f".join((task.key, task.split, task.id))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def task_record(task: Task) -> Record:
    """A record of `tasks`."""
    messages = [message.model_dump() for message in task.messages]
    own = {"env": task.env, "id": task.id, "split": task.split, "messages": messages, "data": task.data}
    return seal({"identity": task_identity(task), "key": task.key, **own})


def read_task(record: Mapping[Any, Any]) -> Task:
    """The inverse of `task_record`."""
    values = unseal(record)
    return Task(**{name: values[name] for name in ("env", "id", "split", "messages", "data")})


def trajectory_record(trajectory: Trajectory) -> Record:
    """A record of `trajectories`, without what the store counts itself."""
    fork_trajectory, fork_turn = trajectory.forked_from or (None, None)
    return seal(
        {
            "id": trajectory.id,
            "run_id": trajectory.run,
            "task": task_identity(trajectory.task),
            "group_id": trajectory.group,
            "sample": trajectory.sample,
            "attempt": trajectory.attempt,
            "reissue": trajectory.reissue,
            "env_seed": trajectory.env_seed,
            "sampling_seed": trajectory.sampling_seed,
            "env_version": trajectory.env_version,
            "renderer_mode": trajectory.renderer_mode,
            "template_hash": trajectory.template_hash,
            "stop_reason": trajectory.stop_reason and trajectory.stop_reason.value,
            "error": trajectory.error,
            "forked_from_trajectory": fork_trajectory,
            "forked_from_turn": fork_turn,
            "started_at": trajectory.started_at,
            "finished_at": trajectory.finished_at,
            "env": trajectory.task.env,
            "reward": None,
        }
    )


def read_trajectory(record: Mapping[Any, Any], task: Task, turns: list[Turn], artifacts: Artifacts) -> Trajectory:
    """The inverse of `trajectory_record`, put together with what other tables hold."""
    values = unseal(record)
    fork, stop_reason = values["forked_from_trajectory"], values["stop_reason"]
    seeds = ("env_seed", "sampling_seed", "env_version", "renderer_mode", "template_hash")
    names = ("id", "sample", "attempt", "reissue", *seeds, "error", "started_at", "finished_at")
    return Trajectory(
        run=values["run_id"],
        task=task,
        group=values["group_id"],
        turns=turns,
        stop_reason=None if stop_reason is None else StopReason(stop_reason),
        artifacts=artifacts,
        forked_from=None if fork is None else (fork, values["forked_from_turn"]),
        **{name: values[name] for name in names},
    )


def turn_changes(turn: Turn) -> Record:
    """What `turns` gets once the environment has answered; `new_raw`: None where the record's own stays right."""
    sealed = seal({"reward": turn.reward, "timings": turn.timings})
    raw = None if sealed["raw"] is None else turn_record("", turn)["raw"]
    return {"new_reward": sealed["reward"], "new_timings": sealed["timings"], "new_raw": raw}


def turn_record(trajectory_id: str, turn: Turn, answers: Answers = NO_ANSWERS) -> Record:
    """A record of `turns`. `answers`: what the tools gave to the calls of its parent."""
    return seal(
        {
            "trajectory_id": trajectory_id,
            "turn": turn.index,
            "parent": turn.parent,
            "keep": turn.keep,
            "sampler": turn.sampler.value,
            "prompt_ids": encode_ids(turn.prompt_ids),
            "sampled_ids": encode_ids(turn.sampled_ids),
            "logprobs": encode_logprobs(turn.logprobs),
            "started_at": turn.started_at,
            "reward": turn.reward,
            "text": turn.message.text,
            "message": _reply(turn),
            "timings": turn.timings,
            "agent": turn.agent,
            "trained": turn.trained,
            "prompt_messages": [_asked(message, answers) for message in turn.prompt_messages],
            "prompt_ids_hash": None,
            "prompt_messages_hash": None,
        }
    )


def answers_of(calls: Iterable[ParsedCall]) -> Answers:
    """{id of a tool call: its result}."""
    return {call.call.id: call.result for call in calls}


def _reply(turn: Turn) -> Record:
    """The message without what `turns.text` and `tool_calls` hold."""
    reply = turn.message.model_dump(exclude_none=True)
    if isinstance(turn.message.content, str):
        del reply["content"]
    if turn.message.tool_calls == [call.call for call in turn.tool_calls]:
        del reply["tool_calls"]
    return reply


def _asked(message: Message, answers: Answers) -> Record:
    """A message of a prompt, without a content that is the result of the call that it answers."""
    values = message.model_dump(exclude_none=True)
    if not message.tool_calls:
        del values["tool_calls"]
    if message.role == "tool" and message.content == answers.get(message.tool_call_id or ""):
        del values["content"]
    return values


def read_turn(
    record: Mapping[Any, Any], calls: list[EngineCall], tool_calls: list[ParsedCall], answers: Answers | None
) -> Turn:
    """The inverse of `turn_record`, put together with its calls. Raises ValueError where an answer is missing.

    `answers` None: they aren't at hand, and the contents of such messages stay empty.
    """
    values = unseal(record)
    names = ("parent", "keep", "agent", "trained", "reward", "timings", "started_at")
    reply = {"content": values["text"], "tool_calls": [call.call for call in tool_calls]} | values["message"]
    return Turn(
        index=values["turn"],
        prompt_ids=decode_ids(values["prompt_ids"]),
        sampled_ids=decode_ids(values["sampled_ids"]),
        logprobs=decode_logprobs(values["logprobs"]),
        calls=calls,
        prompt_messages=[_read_asked(message, answers) for message in values["prompt_messages"]],
        message=Message.model_validate(reply),
        tool_calls=tool_calls,
        sampler=Sampler(values["sampler"]),
        **{name: values[name] for name in names},
    )


def _read_asked(message: Record, answers: Answers | None) -> Message:
    if "content" not in message and answers is not None:
        content = answers.get(message.get("tool_call_id", ""))
        if content is None:
            raise ValueError(f"its prompt holds the result of call {message.get('tool_call_id')!r}, which is gone")
        message = message | {"content": content}
    return Message.model_validate(message)


def engine_call_record(trajectory_id: str, turn: int, position: int, call: EngineCall) -> Record:
    """A record of `engine_calls`."""
    return seal(
        {
            "trajectory_id": trajectory_id,
            "turn": turn,
            "position": position,
            "span_start": call.start,
            "span_end": call.end,
            "version": call.version,
            "request_id": call.request_id,
            "engine": call.engine,
            "finish_reason": call.finish_reason,
            "sampling": call.sampling,
        }
    )


def read_engine_call(record: Mapping[Any, Any]) -> EngineCall:
    """The inverse of `engine_call_record`."""
    values = unseal(record)
    names = ("version", "request_id", "engine", "finish_reason", "sampling")
    own = {name: values[name] for name in names}
    return EngineCall(start=values["span_start"], end=values["span_end"], **own)


def tool_call_record(trajectory_id: str, turn: int, position: int, parsed: ParsedCall) -> Record:
    """A record of `tool_calls`."""
    return seal(
        {
            "trajectory_id": trajectory_id,
            "turn": turn,
            "position": position,
            "call_id": parsed.call.id,
            "name": parsed.call.name,
            "raw_arguments": parsed.call.arguments,
            "arguments": parsed.arguments,
            "status": parsed.status.value,
            "span_start": parsed.span[0],
            "span_end": parsed.span[1],
            "error": parsed.error,
            "result": parsed.result,
            "seconds": parsed.seconds,
        }
    )


def read_tool_call(record: Mapping[Any, Any]) -> ParsedCall:
    """The inverse of `tool_call_record`."""
    values = unseal(record)
    return ParsedCall(
        call=ToolCall(id=values["call_id"], name=values["name"], arguments=values["raw_arguments"]),
        status=CallStatus(values["status"]),
        span=(values["span_start"], values["span_end"]),
        **{name: values[name] for name in ("arguments", "error", "result", "seconds")},
    )


def grade_record(trajectory_id: str, grade: Grade, created_at: float) -> Record:
    """A record of `grades`. A reward that isn't finite is stored as unmeasured (R2)."""
    return seal({"trajectory_id": trajectory_id, "created_at": created_at, **grade.settled().model_dump()})


def read_grade(record: Mapping[Any, Any]) -> Grade:
    """The inverse of `grade_record`, for a settled grade."""
    values = unseal(record)
    return Grade(**{name: values[name] for name in Grade.model_fields})


def step_row_record(run: str, step: int, row: StepRow) -> Record:
    """A record of `step_rows`."""
    return seal(
        {
            "run_id": run,
            "step_id": step,
            "batch": row.batch,
            "position": row.position,
            "trajectory_id": row.trajectory,
            "end_turn": row.end_turn,
            "grade_id": row.grade_id,
            "advantage": row.advantage,
            "weights": [list(span) for span in row.weights],
            "ratio_mean": row.ratio_mean,
            "ratio_max": row.ratio_max,
            "clip_share": row.clip_share,
        }
    )


def read_step_row(record: Mapping[Any, Any]) -> StepRow:
    """The inverse of `step_row_record`."""
    values = unseal(record)
    names = ("batch", "position", "end_turn", "grade_id", "advantage", "ratio_mean", "ratio_max", "clip_share")
    return StepRow(
        trajectory=values["trajectory_id"],
        weights=[(start, end, weight, reason) for start, end, weight, reason in values["weights"]],
        **{name: values[name] for name in names},
    )
