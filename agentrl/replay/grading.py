"""`--regrade`: the environment's grader of today on what was stored. The grade is appended, nothing is overwritten."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.errors import ReplayError
from agentrl.replay.recorded import Recorded
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.grading import measure
from agentrl.rollout.threads import Threads
from agentrl.store.store import Store
from agentrl.types import Grade


@dataclass(kw_only=True, slots=True, frozen=True)
class Regraded:
    """The grade before and now."""

    before: Grade | None
    now: Grade
    grade_id: int | None
    """Of the new grade; None: it wasn't appended, since it measured nothing where there is a measured one."""

    @property
    def changes(self) -> list[tuple[str, object, object]]:
        """(field, before, now) of what differs; parts one by one."""
        before, now = _fields(self.before), _fields(self.now)
        names = sorted(before.keys() | now.keys())
        return [(name, before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)]


async def regrade(store: Store, recorded: Recorded) -> Regraded:
    """Grade again and append the grade. The latest one counts, so a failure takes no measured one's place.

    Raises ReplayError where the ending isn't graded, LeaseLost while a worker holds the trajectory's group.
    """
    trajectory, before = recorded.sample.trajectory, recorded.sample.grade
    if trajectory.stop_reason is None or not trajectory.stop_reason.ending.graded:
        raise ReplayError(f"trajectory {trajectory.id} ended as {trajectory.stop_reason}: there is nothing to grade")
    limits = recorded.config.limits
    threads = Threads(limits.max_abandoned_threads)
    async with Boxes(recorded.config.sandbox, run=trajectory.run) as boxes:
        now = await measure(threads, recorded.env_class, trajectory, limits.grade_timeout_s, boxes)
    is_worse = now.reward is None and before is not None and before.reward is not None
    grade_id = None if is_worse else await store.recorder.add_grade(trajectory, now)
    return Regraded(before=before, now=now, grade_id=grade_id)


def _fields(grade: Grade | None) -> dict[str, object]:
    if grade is None:
        return {}
    fields = grade.model_dump(exclude={"parts"}, exclude_none=True)
    return fields | {f"parts.{name}": value for name, value in grade.parts.items()}
