"""Why nobody trained on a trajectory."""

from __future__ import annotations

from agentrl.types import Group, GroupState, Sample
from agentrl.visible import one_line


def why_unused(sample: Sample, group: Group | None) -> str:
    """In words, for a trajectory that no step used; `group`: its own."""
    if group is None:
        return "it belongs to no group"
    if all(sample.trajectory.id != other.trajectory.id for other in group.samples):
        return "its sample was tried again"
    if group.purpose != "train":
        return f"its group is for {group.purpose}"
    state = {
        GroupState.COMPLETE: "its group waits for a step",
        GroupState.ARCHIVED: "its group was archived unused, e.g. because its version was abandoned",
        GroupState.DROPPED: f"its group was dropped: {one_line(group.dropped_reason or '')}",
    }
    return state.get(group.state, "its group isn't complete yet")
