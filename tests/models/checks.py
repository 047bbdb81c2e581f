"""What must hold of every trajectory in the matrix, whatever its template."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np

from agentrl.batch.rows import build_rows
from agentrl.rollout.renderer import Renderer
from agentrl.testing.endpoint import ScriptedEndpoint
from agentrl.testing.memory import MemoryRecorder
from agentrl.types import Sample, ToolCall, Trajectory, Turn
from tests.models.replies import Script


def check_ids(trajectory: Trajectory, recorder: MemoryRecorder, endpoint: ScriptedEndpoint, script: Script) -> None:
    """What is recorded is what went over the wire, id by id."""
    assert len(trajectory.turns) == len(endpoint.seen) == len(recorder.turns) > 0
    for turn, (_, recorded), request in zip(trajectory.turns, recorder.turns, endpoint.seen, strict=True):
        said = script.replies[turn.index]
        assert request.token_ids == trajectory.context(turn.index)
        assert recorded.sampled_ids == turn.sampled_ids == said.ids and recorded.logprobs == said.logprobs
        assert (recorded.parent, recorded.keep, recorded.prompt_ids) == (turn.parent, turn.keep, turn.prompt_ids)


def check_one_line(trajectory: Trajectory) -> None:
    """Each prompt is the one before, what was sampled there, and new ids."""
    for before, turn in itertools.pairwise(trajectory.turns):
        assert turn.parent == before.index
        assert trajectory.context(turn.index) == [
            *trajectory.context(before.index), *before.sampled_ids, *turn.prompt_ids
        ]  # fmt: skip


def check_messages(trajectory: Trajectory, script: Script) -> None:
    """What the model meant was understood."""
    for turn, meant in zip(trajectory.turns, script.messages, strict=True):
        assert list(map(plain_call, turn.message.tool_calls)) == list(map(plain_call, meant.tool_calls))
        assert meant.text.strip() in turn.message.text and (turn.message.reasoning or None) == meant.reasoning


def plain_call(call: ToolCall) -> tuple[str, str, Any]:
    return call.id, call.name, json.loads(call.arguments)


def check_rows(sample: Sample) -> None:
    """Each sampled id has mask 1 in exactly one Row, after its own context and with its own logprob (T3, T4)."""
    counted: dict[int, list[int]] = {turn.index: [] for turn in sample.trajectory.turns}
    for row in build_rows(sample):
        assert row.ids.tolist() == sample.trajectory.full(row.end_turn)
        assert np.isnan(row.logprobs[row.mask == 0]).all()
        for turn in sample.trajectory.turns:
            here = (row.turn_index == turn.index) & (row.mask == 1)
            if here.any():
                context = sample.trajectory.context(turn.index)
                assert row.ids[: len(context)].tolist() == context
                assert row.logprobs[here].tolist() == turn.logprobs
                counted[turn.index] += row.ids[here].tolist()
    assert counted == {turn.index: turn.sampled_ids for turn in sample.trajectory.turns}


def check_control(trajectory: Trajectory, made: Renderer) -> None:
    """No control id comes from a message of the environment: those there are are what the template wrote."""
    control = set(made.encoder.control.values())
    for turn in trajectory.turns[1:]:
        in_text = num_control(made, made.decode(turn.prompt_ids))
        untrusted = [message for message in turn.prompt_messages if message.role != "assistant"]
        in_contents = sum(num_control(made, message.text) for message in untrusted)
        if continues(trajectory, turn):
            assert sum(id in control for id in turn.prompt_ids) == in_text - in_contents


def continues(trajectory: Trajectory, turn: Turn) -> bool:
    return turn.parent is not None and turn.keep == len(trajectory.full(turn.parent))


def num_control(made: Renderer, text: str) -> int:
    return len(list(made.encoder.written_by_template(text)))
