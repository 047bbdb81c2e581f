"""What an example is: a trajectory as messages, as ids, or whole; a group as a preference.

All are JSON objects. Masks and weights come from the Rows, never anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import Any

import numpy as np

from agentrl.batch.rows import Row, build_rows
from agentrl.exchange.conversation import Conversation, conversations, message_json
from agentrl.exchange.whole import whole_json
from agentrl.types import Grade, Sample, Trajectory

Json = dict[str, Any]
Skipped = Counter[str]
"""How many were left out, by reason."""


@dataclass(kw_only=True, slots=True, frozen=True)
class Source:
    """What a run's trajectories don't say themselves."""

    tools: Callable[[Trajectory], Sequence[Json]]
    """The specs of those that the policy could call."""
    vocabulary: str | None
    """Of the tokenizer that made the ids; None: it isn't there any more."""


class Form(StrEnum):
    """What an example is."""

    MESSAGES = "messages"
    """A conversation and its tools, for trainers that apply the chat template."""
    TOKENS = "tokens"
    """A Row: ids as they were sampled, and which of them to learn."""
    PREFERENCES = "preferences"
    """The best and the worst conversation of a group."""
    TRAJECTORIES = "trajectories"
    """All that is stored of a trajectory, and its grades."""


class Column(StrEnum):
    """What a Row's example holds beside ids and mask: one value per id."""

    LOGPROBS = "logprobs"
    VERSIONS = "versions"
    WEIGHTS = "weights"


def provenance(sample: Sample, source: Source) -> Json:
    """Where an example comes from. Nothing of the run's config is in it, so no secrets."""
    trajectory, grade = sample.trajectory, sample.grade
    versions = {version for turn in trajectory.turns if turn.trained for version in turn.versions} - {-1}
    return {
        "trajectory": trajectory.id,
        "run": trajectory.run,
        "group": trajectory.group,
        "env": trajectory.task.env,
        "task": trajectory.task.id,
        "split": trajectory.task.split,
        "versions": [min(versions), max(versions)] if versions else None,
        "reward": None if grade is None else grade.reward,
        "stop_reason": trajectory.stop_reason and trajectory.stop_reason.value,
        "template_hash": trajectory.template_hash,
        "vocabulary": source.vocabulary,
        "agentrl": metadata.version("agentrl"),
    }


def message_examples(sample: Sample, source: Source, skipped: Skipped) -> Iterator[Json]:
    """One per conversation: several where an environment replaced it. A reply that was cut is left out."""
    if not _is_trained(sample, skipped):
        return
    found = [one for one in conversations(sample.trajectory, with_cut=False) if one.num_prompt]
    if not found:
        skipped["no whole reply to a message"] += 1
    for one in found:
        messages = [_weighted(one, place) for place in range(len(one.messages))]
        tools = list(source.tools(sample.trajectory))
        yield {"messages": messages, "tools": tools, "provenance": provenance(sample, source)}


def token_examples(sample: Sample, source: Source, columns: Collection[Column], skipped: Skipped) -> Iterator[Json]:
    """One per Row that has a weight: several where the trajectory has branches."""
    if not _is_trained(sample, skipped):
        return
    rows = build_rows(sample, for_sft=True)
    for row in rows:
        if row.live:
            yield _row_json(row, columns) | {"provenance": provenance(sample, source) | {"end_turn": row.end_turn}}
    if not any(row.live for row in rows):
        skipped["no ids to learn: none were sampled, or they were made from a server's text"] += 1


def preference_examples(best: Sample, worst: Sample, source: Source, skipped: Skipped) -> Iterator[Json]:
    """One, or none where the two can't be compared as conversations."""
    chosen, rejected = conversations(best.trajectory), conversations(worst.trajectory)
    if len(chosen) != 1 or len(rejected) != 1:
        skipped["an environment replaced a conversation of the pair"] += 1
        return
    prompts = [[message_json(message) for message in one.messages[: one.num_prompt]] for (one,) in (chosen, rejected)]
    if prompts[0] != prompts[1]:
        skipped["the two conversations begin in different ways"] += 1
        return
    yield {
        "prompt": prompts[0],
        "chosen": _completion(chosen[0]),
        "rejected": _completion(rejected[0]),
        "tools": list(source.tools(best.trajectory)),
        "provenance": {"chosen": provenance(best, source), "rejected": provenance(worst, source)},
    }


def whole_example(sample: Sample, grades: Sequence[Grade], source: Source) -> Json:
    """Everything; see `whole`."""
    return whole_json(sample.trajectory, grades) | {"provenance": provenance(sample, source)}


def _is_trained(sample: Sample, skipped: Skipped) -> bool:
    """A rollout that a fault ended teaches nothing."""
    reason = sample.trajectory.stop_reason
    if reason is None or reason.ending.trained:
        return reason is not None
    skipped[f"ended in {reason}"] += 1
    return False


def _weighted(conversation: Conversation, place: int) -> Json:
    """Replies that nobody shall learn have weight 0: few-shot ones, copies, and those that were counted before."""
    message = conversation.messages[place]
    is_context = message.role == "assistant" and not conversation.learnt[place]
    return message_json(message) | ({"weight": 0} if is_context else {})


def _completion(conversation: Conversation) -> list[Json]:
    return [message_json(message) for message in conversation.messages[conversation.num_prompt :]]


def _row_json(row: Row, columns: Collection[Column]) -> Json:
    result: Json = {"input_ids": row.ids.tolist(), "assistant_masks": (row.weights != 0).astype(np.int8).tolist()}
    if Column.LOGPROBS in columns:
        result["logprobs"] = [None if math.isnan(value) else value for value in row.logprobs.tolist()]
    if Column.VERSIONS in columns:
        result["versions"] = row.versions.tolist()
    if Column.WEIGHTS in columns:
        result["weights"] = row.weights.tolist()
    return result
