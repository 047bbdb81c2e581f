"""The contract suite: what every environment must do, checked on anyone's. `agentrl env check NAME` runs it.

From pytest::

    from agentrl.testing.contract import verify

    def test_contract():
        verify(Backwards)

It needs no model: episodes are played by the environment's own oracle and attacks, by a policy that says nothing, and
by random texts and calls.
"""

from __future__ import annotations

import threading

from agentrl.config_sandbox import SandboxConfig
from agentrl.environment import Chat, Environment, EnvironmentConfig
from agentrl.testing import leftovers
from agentrl.testing.boxes import CheckBoxes
from agentrl.testing.checks import CHECKS
from agentrl.testing.episode import Stage
from agentrl.testing.subject import Result, Subject
from agentrl.types import Message


def verify(
    env_class: type[Environment],
    options: EnvironmentConfig | None = None,
    *,
    chat: Chat | None = None,
    sandbox: SandboxConfig | None = None,
    num_tasks: int = 3,
    max_turns: int = 32,
    timeout_s: float = 10.0,
    grade_timeout_s: float | None = None,
) -> None:
    """Run all checks. Raises AssertionError with the lines of those that failed."""
    results = check(
        env_class,
        options,
        chat=chat,
        sandbox=sandbox,
        num_tasks=num_tasks,
        max_turns=max_turns,
        timeout_s=timeout_s,
        grade_timeout_s=grade_timeout_s,
    )
    failed = [result.line() for result in results if result.problem is not None]
    if failed:
        raise AssertionError(f"{env_class.__name__} breaks the contract:\n" + "\n".join(failed))


def check(
    env_class: type[Environment],
    options: EnvironmentConfig | None = None,
    *,
    name: str | None = None,
    chat: Chat | None = None,
    sandbox: SandboxConfig | None = None,
    num_tasks: int = 3,
    max_turns: int = 32,
    timeout_s: float = 10.0,
    grade_timeout_s: float | None = None,
) -> list[Result]:
    """Run all checks, each to its own result.

    `name`: under which the environment is registered; `chat`: who answers `ctx.chat`; `sandbox`: where boxes come from,
    as in a run's config; `num_tasks`: played per split; `timeout_s`: of each hook and tool call; `grade_timeout_s`: of
    collect and grade, where those may take longer.
    """
    stage = Stage(
        env_class=env_class,
        options=env_class.Config() if options is None else options,
        chat=chat or nobody,
        boxes=CheckBoxes(sandbox or SandboxConfig()),
        timeout_s=timeout_s,
        grade_timeout_s=grade_timeout_s or timeout_s,
        max_turns=max_turns,
    )
    subject = Subject(stage=stage, name=name, num_tasks=num_tasks)
    # A thread of its own: an environment that blocks the event loop must not block who tells so.
    worker = threading.Thread(target=subject.run, args=(CHECKS,), name="env-check", daemon=True)
    with leftovers.watched() as found:
        worker.start()
        while worker.is_alive():
            worker.join(0.05)
            if worker.is_alive() and not subject.answers():
                return [*subject.results, subject.blocked()]
    problem = None
    if found:
        problem = f"after the episodes were closed there is still: {', '.join(found)}; release it in close()"
    return [*subject.results, Result(check="nothing is left behind", problem=problem)]


async def nobody(agent: str, messages: list[Message]) -> Message:
    """Who answers `ctx.chat` where no endpoint is named: raises RuntimeError that says so."""
    raise RuntimeError(f"it asks ctx.chat({agent!r}, …), and nobody answers: set chat.url=… chat.model=…, or pass chat")


__all__ = ["CHECKS", "Result", "check", "nobody", "verify"]
