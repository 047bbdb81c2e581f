"""Whole trajectories as JSON, without loss.

What JSON can't hold (lone surrogates, NaN and infinities) stands cleaned in its place, and `raw` (base64) keeps the
originals, as that column of the database does. NaN among logprobs is null. Files of artifacts are base64.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from agentrl.store.sealing import seal, unseal
from agentrl.types import Grade, Trajectory

Json = dict[str, Any]


class Whole(NamedTuple):
    """A trajectory with all its grades, the oldest first."""

    trajectory: Trajectory
    grades: list[Grade]


_WHOLE = TypeAdapter(Whole)


def whole_json(trajectory: Trajectory, grades: Sequence[Grade]) -> Json:
    """The JSON object of a trajectory and its grades."""
    own, its_grades = _WHOLE.dump_python(Whole(trajectory, list(grades)))
    files = own["artifacts"]["files"]
    own["artifacts"]["files"] = {name: base64.b64encode(content).decode() for name, content in files.items()}
    for turn in own["turns"]:
        turn["logprobs"] = [None if math.isnan(value) else value for value in turn["logprobs"]]
    values = {"trajectory": own, "grades": its_grades}
    try:
        json.dumps(values, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:  # NaN or infinity; UnicodeEncodeError: a lone surrogate
        sealed = seal(values)
        raw = base64.b64encode(sealed["raw"]).decode()
        return {name: json.loads(sealed[name]) for name in values} | {"raw": raw}
    return values


def read_whole(value: Mapping[str, Any]) -> Whole:
    """The inverse of `whole_json`. Raises ValueError for what doesn't fit: pydantic's, with the place."""
    raw = value.get("raw")
    record = {"trajectory": value["trajectory"], "grades": value["grades"]}
    values = unseal(record | {"raw": None if raw is None else base64.b64decode(raw, validate=True)})
    whole = _WHOLE.validate_python((_with_nan(values["trajectory"]), values["grades"]))
    files = whole.trajectory.artifacts.files
    whole.trajectory.artifacts.files = {
        name: base64.b64decode(content, validate=True) for name, content in files.items()
    }
    return whole


def _with_nan(trajectory: Any) -> Any:
    """With NaN for the logprobs that are null; what has another form is left to the check."""
    if not isinstance(trajectory, dict) or not isinstance(trajectory.get("turns"), list):
        return trajectory
    turns = [turn | {"logprobs": _numbers(turn)} if _has_logprobs(turn) else turn for turn in trajectory["turns"]]
    return trajectory | {"turns": turns}


def _has_logprobs(turn: Any) -> bool:
    return isinstance(turn, dict) and isinstance(turn.get("logprobs"), list)


def _numbers(turn: Json) -> list[Any]:
    return [math.nan if value is None else value for value in turn["logprobs"]]
