"""The calculator environment: seeded, disjoint splits, exact grading, declared bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentrl import plugins
from agentrl.environment import EnvironmentContext, null_policy
from agentrl.envs.calculator import Calculator, CalculatorConfig
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ScriptedSampler
from agentrl.types import CallStatus, Message, Task, Trajectory, Turn
from tests.rollout.loops import make_loop, play


def test_same_seed_same_tasks() -> None:
    one, two = (Calculator.tasks(CalculatorConfig(task_seed=5), "train") for _ in range(2))
    assert [t.model_dump() for t in one] == [t.model_dump() for t in two]
    other = Calculator.tasks(CalculatorConfig(task_seed=6), "train")
    assert [t.key for t in one] != [t.key for t in other]


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_splits_are_disjoint_by_key_and_by_sum(level: int) -> None:
    config = CalculatorConfig(level=level, max_operand=99)
    train, held_out = Calculator.tasks(config, "train"), Calculator.tasks(config, "held_out")
    assert len({t.key for t in train}) == 4096 and len({t.key for t in held_out}) == 512
    assert not {t.key for t in train} & {t.key for t in held_out}

    def sums(tasks: Any) -> set[str]:
        return {json.dumps([t.data["first"], t.data["steps"]]) for t in tasks}

    assert not sums(train) & sums(held_out)


def test_a_level_with_too_few_problems_says_so() -> None:
    with pytest.raises(ValueError, match=r"lower env\.train_tasks"):
        Calculator.tasks(CalculatorConfig(level=1, max_operand=2), "train")


@pytest.mark.parametrize("level", [1, 2, 4])
async def test_oracle_1_null_policy_0_and_as_many_calls_as_operations(renderer: Renderer, level: int) -> None:
    config = CalculatorConfig(level=level, train_tasks=20)

    def loop(make: Any) -> Any:
        return make_loop(renderer, None, env=Calculator, config=config, sampler=make)  # type: ignore[arg-type]

    for _ in range(3):
        played = await play(loop(lambda env, trajectory: ScriptedSampler(env.oracle(trajectory.task), renderer)))
        calls = [call for turn in played.trajectory.turns for call in turn.tool_calls]
        assert played.reward == 1.0 and len(calls) == level
        assert {call.status for call in calls} == {CallStatus.OK}
    assert (await play(loop(lambda env, trajectory: ScriptedSampler(null_policy, renderer)))).reward == 0.0


async def test_the_demonstrator_stops_after_one_call_in_the_share_that_was_asked_for(renderer: Renderer) -> None:
    config = CalculatorConfig(train_tasks=400, hasty=0.65)
    env = Calculator(config)
    num_calls = [_num_calls(env, task) for task in Calculator.tasks(config, "train")]
    assert set(num_calls) == {1, 2}
    assert num_calls.count(1) / len(num_calls) == pytest.approx(0.65, abs=0.08)
    assert num_calls == [_num_calls(env, task) for task in Calculator.tasks(config, "train")]
    for hasty, calls in ((0.0, {2}), (1.0, {1})):
        config = CalculatorConfig(train_tasks=20, hasty=hasty)
        assert {_num_calls(Calculator(config), task) for task in Calculator.tasks(config, "train")} == calls


def _num_calls(env: Calculator, task: Task) -> int:
    """How often the demonstrator calls before it answers, with the last result."""
    player, messages = env.demonstrator(task), list(task.messages)
    for number in range(9):
        reply = player(messages)
        if not reply.tool_calls:
            assert reply.text == f"Answer: {messages[-1].text}"
            return number
        messages += [reply, Message(role="tool", content=str(100 + number))]
    raise AssertionError("it never answers")


def test_each_later_call_needs_the_result_of_the_one_before() -> None:
    task = Calculator.tasks(CalculatorConfig(train_tasks=1), "train")[0]
    oracle = Calculator(CalculatorConfig()).oracle(task)
    first = oracle(task.messages)
    for result in ("111", "-5"):
        said = oracle([*task.messages, first, Message(role="tool", content=result)])
        assert json.loads(said.tool_calls[0].arguments)["expression"].startswith(f"{result} ")


async def test_with_a_lying_tool_the_oracle_fails(renderer: Renderer) -> None:
    config = CalculatorConfig(train_tasks=20, lying=True)
    (liar,), (honest,) = Calculator(config).tools, Calculator.tools
    assert liar.spec() == honest.spec()
    loop = make_loop(
        renderer, None, env=Calculator, config=config,  # type: ignore[arg-type]
        sampler=lambda env, trajectory: ScriptedSampler(env.oracle(trajectory.task), renderer),  # type: ignore[arg-type]
    )  # fmt: skip
    played = await play(loop)
    assert played.reward == 0.0 and len(played.trajectory.turns) == 3


def test_two_operations_in_one_call_are_refused() -> None:
    (calculator,) = Calculator.tools
    with pytest.raises(ValueError, match="at most 1"):
        calculator.run({"expression": "(1 + 2) * 3"}, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reward"),
    [("Answer: 57", 1), ("so, Answer:57", 1), ("Answer: 57.0", 1), ("Answer: 114/2", 1), ("Answer: 3\nAnswer: 57", 1),
     ("Answer: 57\nAnswer: 3", 0), ("57", 0), ("Answer: 570", 0), ("Answer: 57.01", 0), ("Answer: 57/0", 0),
     ("Answer: 57/2", 0), ("Answer: fifty-seven", 0), ("Answer: 57x", 0), ("", 0)],
)  # fmt: skip
async def test_grading_is_exact(text: str, reward: float) -> None:
    task = Task(env="calculator", id="t", split="train", messages=[], data={"answer": "57"})
    turn = Turn(
        index=0, parent=None, keep=0, prompt_ids=[1], sampled_ids=[2], logprobs=[-1.0], calls=[], prompt_messages=[],
        message=Message(role="assistant", content=text),
    )  # fmt: skip
    trajectory = Trajectory(id="x", run="r", task=task, group=None, turns=[turn])
    ctx = EnvironmentContext(sandbox=None, seed=0, deadline=0)
    grade = await Calculator.grade(task, trajectory, trajectory.artifacts, ctx)
    assert grade.reward == reward


def test_it_is_found_by_its_entry_point_only() -> None:
    assert plugins.environment("calculator") is Calculator
    assert plugins.load("agentrl.tools", "calculator").name == "calculator"
