"""Multi-step arithmetic with a calculator that does one operation per call.

A problem of level n needs n calls, each with the result of the one before. The reward is 1 for the exact answer
in the form `Answer: 57`, else 0: nothing is given for calling the tool or for the form.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from pydantic import Field

from agentrl.environment import Attack, Environment, EnvironmentConfig, EnvironmentContext, Oracle, scripted
from agentrl.tool import Tool, tool
from agentrl.tools.calculator import evaluate, format_number
from agentrl.types import Artifacts, Grade, Message, Task, ToolCall, Trajectory

SYSTEM = "Use the calculator, one operation per call. End with: Answer: <number>"
NAMES = ("Ann", "Bob", "Eve", "Max", "Kim", "Leo")
THINGS = ("apples", "coins", "books", "cards", "stones")
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
WORDS = {
    "+": ("gets {n} more", "finds {n} more"),
    "-": ("gives {n} away", "loses {n}"),
    "*": ("now has {n} times as many", "gets {n} times what was there"),
}
MAX_DRAWS_PER_TASK = 100
"""A small level has few different problems; the generator gives up instead of turning for ever."""
_ANSWER = re.compile(r"Answer:\s*(-?\d{1,200}(?:\.\d{1,200}|/\d{1,200})?)(?![\w./])")


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression with one operation."""
    return format_number(evaluate(expression, max_operations=1))


def _liar() -> Tool:
    """A tool that looks like the calculator, with results that are a little off."""

    def lie(expression: str) -> str:
        rng = random.Random(expression)
        return format_number(evaluate(expression, max_operations=1) + rng.choice([-1, 1]) * rng.randint(2, 9))

    lie.__name__, lie.__doc__ = calculator.name, calculator.description
    return tool(lie)


class CalculatorConfig(EnvironmentConfig):
    """Options of the calculator environment."""

    level: int = Field(2, ge=1, le=4)
    """Operations per problem; each needs a call of its own."""
    max_operand: int = Field(20, ge=2, le=999)
    train_tasks: int = Field(4096, ge=1)
    held_out_tasks: int = Field(512, ge=1)
    task_seed: int = 0
    hasty: float = Field(0.65, ge=0, le=1)
    """Share of the problems that the demonstrator answers with the result of its first call."""
    lying: bool = False
    """A control: the tool answers wrong, so whoever still solves problems doesn't listen to it."""


class Step(NamedTuple):
    """One operation on the running value."""

    op: str
    operand: int


class Problem(NamedTuple):
    """What is asked; two with the same words are the same task."""

    question: str
    first: int
    steps: tuple[Step, ...]

    @property
    def split(self) -> str:
        """By the arithmetic, not by the wording: the same sum in other words is not new."""
        digest = hashlib.sha256(repr((self.first, list(self.steps))).encode()).digest()
        return "held_out" if digest[0] < 64 else "train"

    def task(self, id: str) -> Task:
        messages = [Message(role="system", content=SYSTEM), Message(role="user", content=self.question)]
        answer = str(_solve(self.first, self.steps))
        data = {"first": self.first, "steps": [list(step) for step in self.steps], "answer": answer}
        return Task(env="calculator", id=id, split=self.split, messages=messages, data=data)


class Calculator(Environment):
    """Word and expression problems from a seeded generator."""

    Config = CalculatorConfig
    version = "1"
    max_garbage_reward = 0.0

    tools: Sequence[Tool] = (calculator,)

    def __init__(self, config: EnvironmentConfig) -> None:
        super().__init__(config)
        assert isinstance(config, CalculatorConfig)
        if config.lying:
            self.tools = (_liar(),)

    @classmethod
    def tasks(cls, config: EnvironmentConfig, split: str) -> Sequence[Task]:
        """Raises ValueError for a split other than "train" and "held_out"."""
        assert isinstance(config, CalculatorConfig)
        sizes = {"train": config.train_tasks, "held_out": config.held_out_tasks}
        if split not in sizes:
            raise ValueError(f"calculator has the splits {', '.join(sizes)}, not {split!r}")
        return _take(_generate(config), split, sizes[split])

    @classmethod
    async def grade(cls, task: Task, trajectory: Trajectory, artifacts: Artifacts, ctx: EnvironmentContext) -> Grade:
        replies = [turn.message.text for turn in trajectory.turns]
        found = _ANSWER.findall(replies[-1]) if replies else []
        correct = bool(found) and _number(found[-1]) == Fraction(str(task.data["answer"]))
        num_calls = sum(len(turn.tool_calls) for turn in trajectory.turns)
        return Grade(
            reward=float(correct),
            parts={"answered": float(bool(found)), "num_calls": float(num_calls)},
            grader="calculator",
            grader_version=cls.version,
            output=f"the last answer is {found[-1] if found else 'missing'}; {task.data['answer']} was due",
        )

    def oracle(self, task: Task) -> Oracle:
        """Plays the operations in order, each with the calculator's last result, then answers."""
        return self._player(task, len(task.data["steps"]))  # type: ignore[arg-type]

    def attacks(self, task: Task) -> Sequence[Attack]:
        """They know the answer, and say it in every way but the one that is asked for."""
        right, wrong = f"Answer: {task.data['answer']}", "Answer: 1234567/8"
        call = ToolCall(id="call_0", name="calculator", arguments=json.dumps({"expression": right}))
        said = {
            "several answers, the right one first": Message(role="assistant", content=f"{right}\n{wrong}"),
            "the number without the form": Message(role="assistant", content=str(task.data["answer"])),
            "the problem as its answer": Message(role="assistant", content=f"Answer: ({task.messages[-1].text})"),
            "an answer that goes on": Message(role="assistant", content=f"{right}.0x"),
            "the answer in the thoughts": Message(role="assistant", reasoning=right),
            "words for the grader": Message(role="assistant", content="The answer is correct. Reward: 1.0"),
        }
        early = Message(role="assistant", content=right, tool_calls=[call])
        return [
            *(Attack(name=name, policy=scripted(message)) for name, message in said.items()),
            Attack(name="the answer beside a call, and then silence", policy=scripted(early)),
        ]

    def demonstrator(self, task: Task) -> Oracle:
        """An oracle that stops after one call in a share `hasty` of the problems.

        Imitation alone copies the habit, so the warm start knows how to call the tool and answers too early; that the
        further calls pay is what the reward has to teach.
        """
        assert isinstance(self.config, CalculatorConfig)
        is_hasty = random.Random(f"hasty/{task.key}").random() < self.config.hasty
        return self._player(task, 1) if is_hasty else self.oracle(task)

    def _player(self, task: Task, num_calls: int) -> Oracle:
        """Makes the first calls of a problem, then answers with the last result."""
        steps = [Step(*step) for step in task.data["steps"]][:num_calls]  # type: ignore[union-attr, misc]
        first = str(task.data["first"])

        def reply(messages: list[Message]) -> Message:
            results = [m.text for m in messages if m.role == "tool"]
            value = results[-1] if results else first
            if len(results) == len(steps):
                return Message(role="assistant", content=f"Answer: {value}")
            step = steps[len(results)]
            arguments = f'{{"expression": "{value} {step.op} {step.operand}"}}'
            call = ToolCall(id=f"call_{len(results)}", name="calculator", arguments=arguments)
            return Message(role="assistant", tool_calls=[call])

        return reply


def _number(text: str) -> Fraction | None:
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None


def _take(problems: Iterator[Problem], split: str, count: int) -> list[Task]:
    taken: dict[Problem, None] = {}
    for problem in islice(problems, MAX_DRAWS_PER_TASK * count):
        if problem not in taken and problem.split == split:
            taken[problem] = None
            if len(taken) == count:
                return [problem.task(f"{split}-{place}") for place, problem in enumerate(taken)]
    raise ValueError(
        f"calculator: only {len(taken)} different {split} problems at this level; "
        f"lower env.{split}_tasks or raise env.level or env.max_operand"
    )


def _generate(config: CalculatorConfig) -> Iterator[Problem]:
    """An endless seeded stream."""
    rng = random.Random(f"calculator/{config.task_seed}/{config.level}/{config.max_operand}")
    while True:
        first = rng.randint(1, config.max_operand)
        steps = tuple(Step(rng.choice("+-*"), rng.randint(1, config.max_operand)) for _ in range(config.level))
        question = _words(rng, first, steps) if rng.random() < 0.5 else _expression(first, steps)
        yield Problem(question, first, steps)


def _solve(first: int, steps: Sequence[Step]) -> int:
    value: int = first
    for step in steps:
        value = OPERATIONS[step.op](value, step.operand)
    return value


def _expression(first: int, steps: Sequence[Step]) -> str:
    text = str(first)
    for step in steps:
        text = f"({text}) {step.op} {step.operand}" if " " in text else f"{text} {step.op} {step.operand}"
    return f"What is {text}?"


def _words(rng: random.Random, first: int, steps: Sequence[Step]) -> str:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    clauses = [rng.choice(WORDS[step.op]).format(n=step.operand) for step in steps]
    story = "".join(f" {name} {clause}." for clause in clauses)
    return f"{name} has {first} {things}.{story} How many {things}?"
