"""Grades a finished trajectory. A grader that fails is "unmeasured" with a reason, never a reward of 0 (R2)."""

from __future__ import annotations

import asyncio
import time

from agentrl.environment import Environment, EnvironmentContext
from agentrl.errors import SandboxError, SandboxFault
from agentrl.lent_box import LentBox
from agentrl.rollout.boxes import Boxes, lend
from agentrl.rollout.faults import with_causes
from agentrl.rollout.threads import Threads, contained
from agentrl.types import Grade, Trajectory

MAX_TRIES = 2
"""Of a grade whose box broke (R3)."""
NO_BOX = "no box to grade in"
"""How the reason begins where a grade is unmeasured for lack of one."""
_BROKEN = (SandboxFault.DIED, SandboxFault.CHANNEL)


async def measure(
    threads: Threads, env_class: type[Environment], trajectory: Trajectory, timeout_s: float, boxes: Boxes | None
) -> Grade:
    """The grade, or why there is none. A cancellation ends the grader at once.

    Each try has a fresh box where the environment asks for one; waiting for it is not the grader's time.
    """
    for num_tries in range(1, MAX_TRIES + 1):
        box: LentBox | None = None
        try:
            with contained():
                spec = env_class.grading_sandbox(trajectory.task)
            box = await lend(boxes, spec, hold_s=timeout_s)
            return await _measure(threads, env_class, trajectory, timeout_s, box)
        except SandboxError as error:
            if error.kind not in _BROKEN or num_tries == MAX_TRIES:
                return Grade(reward=None, unmeasured=f"{NO_BOX}: {with_causes(error)}")
        except Exception as error:
            return Grade(reward=None, unmeasured=f"grade raised {with_causes(error)}")
        finally:
            if box is not None:
                await box.stop()
    raise AssertionError("the last try returns")


async def _measure(
    threads: Threads, env_class: type[Environment], trajectory: Trajectory, timeout_s: float, box: LentBox | None
) -> Grade:
    """Raises whatever the grader raises."""
    ctx = EnvironmentContext(sandbox=box, seed=trajectory.env_seed, deadline=time.monotonic() + timeout_s)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            grade = await threads.call(env_class.grade, trajectory.task, trajectory, trajectory.artifacts, ctx)
    except Exception:
        if limit.expired():
            late = f"grading took longer than {timeout_s:g} s (limits.grade_timeout_s)"
            return Grade(reward=None, unmeasured=late)
        raise
    if not isinstance(grade, Grade):
        return Grade(reward=None, unmeasured=f"grade returned {type(grade).__name__}, not a Grade")
    return grade.settled()
