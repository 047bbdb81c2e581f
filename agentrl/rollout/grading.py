"""Grades a finished trajectory. A grader that fails is "unmeasured" with a reason, never a reward of 0 (R2)."""

from __future__ import annotations

import asyncio
import time

from agentrl.environment import Environment, EnvironmentContext
from agentrl.rollout.faults import with_causes
from agentrl.rollout.threads import Threads
from agentrl.types import Grade, Trajectory


async def measure(threads: Threads, env_class: type[Environment], trajectory: Trajectory, timeout_s: float) -> Grade:
    """The grade, or why there is none. A cancellation ends the grader at once."""
    ctx = EnvironmentContext(sandbox=None, seed=trajectory.env_seed, deadline=time.monotonic() + timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            grade = await threads.call(env_class.grade, trajectory.task, trajectory, trajectory.artifacts, ctx)
    except Exception as error:
        late = f"grading took longer than {timeout_s:g} s (limits.grade_timeout_s)"
        return Grade(reward=None, unmeasured=late if limit.expired() else f"grade raised {with_causes(error)}")
    if not isinstance(grade, Grade):
        return Grade(reward=None, unmeasured=f"grade returned {type(grade).__name__}, not a Grade")
    return grade.settled()
