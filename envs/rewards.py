"""Reward functions of the dataset environment: a few that come with it, and anyone's by `pkg.module:function`.

A reward function is called with the keyword arguments that it names, of these::

    reply: str               text of the last reply
    answer: JSON or None     the example's answer
    columns: dict            the further columns that env.columns keeps
    task: Task               with messages and data
    trajectory: Trajectory   all turns, with tool calls and their results

It returns a number or a bool, a Grade, or None where it couldn't measure. It may be async; one that isn't runs in a
thread. What it raises makes the episode unmeasured, never a reward of 0.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Awaitable, Callable
from fractions import Fraction
from typing import Any

from pydantic import JsonValue

from agentrl.errors import ConfigError
from agentrl.types import Grade, Task, Trajectory

Reward = Callable[..., Any]
ARGUMENTS = ("reply", "answer", "columns", "task", "trajectory")
_NUMBER = re.compile(
    r"(?<![\w.])-?(?:[0-9]{1,3}(?:,[0-9]{3}){1,60}(?![0-9])|[0-9]{1,200})?"
    r"(?:(?<=[0-9])/[0-9]{1,200}|\.[0-9]{1,200})?(?:(?<=[0-9])[eE][-+]?[0-9]{1,3})?"
)
_STATED_CHOICE = re.compile(r"(?i:\banswer\s{0,9}(?:is\s{0,9}:?|:))[\s*(]{0,9}([A-Z])\b")
_BRACKETED_CHOICE = re.compile(r"\(([A-Z])\)")
_BARE_CHOICE = re.compile(r"\W{0,9}([A-Z])(?:\W|\Z)")


def exact(reply: str, answer: JsonValue) -> bool:
    """The reply is the answer, white space aside."""
    return reply.split() == as_text(answer).split()


def contains(reply: str, answer: JsonValue) -> bool:
    """The answer stands in the reply. Long replies that name many answers are paid too: prefer another reward."""
    return " ".join(as_text(answer).split()) in " ".join(reply.split())


def number(reply: str, answer: JsonValue) -> bool | None:
    """The last number of the reply equals the last one of the answer, exactly: 0.5 is 1/2, and 1,000 is 1000.

    None (unmeasured) where the answer holds no number.
    """
    expected = last_number(as_text(answer))
    return None if expected is None else last_number(reply) == expected


def choice(reply: str, answer: JsonValue) -> bool | None:
    """The letter that is chosen: `answer: B`, else the last `(B)`, else a reply that begins with it.

    None (unmeasured) where the answer is no letter.
    """
    expected = _chosen(as_text(answer))
    return None if expected is None else _chosen(reply) == expected


BUILT_IN: dict[str, Reward] = {function.__name__: function for function in (exact, contains, number, choice)}


def find(name: str) -> Reward:
    """The function of a name or of `pkg.module:function`. Raises ConfigError."""
    if ":" not in name and name not in BUILT_IN:
        near = difflib.get_close_matches(name, BUILT_IN, n=1)
        hint = f"nearest: {near[0]}; " if near else ""
        raise ConfigError(f"env.reward={name}: {hint}known: {', '.join(BUILT_IN)}; your own is pkg.module:function")
    function = BUILT_IN[name] if name in BUILT_IN else import_object("env.reward", name)
    if not callable(function):
        raise ConfigError(f"env.reward={name}: that is a {type(function).__name__}, no function")
    _named_arguments(name, function)
    return function


def grade(name: str, task: Task, trajectory: Trajectory) -> Grade | Awaitable[Grade]:
    """Call the reward function `name`; the grade is still to be awaited where that is async. Raises what it raises."""
    function = find(name)
    last = trajectory.turns[-1].message.text if trajectory.turns else ""
    known = {
        "reply": last,
        "answer": task.data.get("answer"),
        "columns": task.data.get("columns", {}),
        "task": task,
        "trajectory": trajectory,
    }
    arguments = {argument: known[argument] for argument in _named_arguments(name, function)}
    value = function(**arguments)
    return _awaited(name, value) if inspect.isawaitable(value) else as_grade(name, value)


async def _awaited(name: str, value: Awaitable[Any]) -> Grade:
    return as_grade(name, await value)


def as_grade(name: str, value: Any) -> Grade:
    """What a reward function returned, as a grade."""
    if isinstance(value, Grade):
        return value if value.grader else value.model_copy(update={"grader": name})
    if value is None:
        return Grade(reward=None, unmeasured=f"{name} couldn't measure it (it returned None)", grader=name)
    try:
        return Grade(reward=float(value), grader=name)
    except (TypeError, ValueError):
        kind = type(value).__name__
        return Grade(reward=None, unmeasured=f"{name} returned a {kind}, no number", grader=name)


def import_object(key: str, target: str) -> Any:
    """What `pkg.module:name` names. Raises ConfigError where the module doesn't import or has no such name."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a stranger's import may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"{key}={target}: importing {module_name} failed: {reason}") from error
    try:
        return getattr(module, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"; nearest: {near[0]}" if near else ""
        raise ConfigError(f"{key}={target}: {module_name} has no {name!r}{hint}") from None


def as_text(answer: JsonValue) -> str:
    """An answer as a reply would say it."""
    return answer if isinstance(answer, str) else str(answer)


def answer_and_another(name: str, answer: JsonValue) -> str | None:
    """A reply that names the answer and then another; None where naming it is enough for the reward function."""
    right = as_text(answer)
    number, letter = last_number(right), _chosen(right)
    if name == "number" and number is not None:
        return f"{right}, or rather {number + 1}"
    if name == "choice" and letter is not None:
        return f"({letter}), or rather ({'B' if letter == 'A' else 'A'})"
    return f"{right}, or rather not" if name == "exact" else None


def last_number(text: str) -> Fraction | None:
    """The last number in a text: 7, -1.5, 1,000, 3/4 or 2e3."""
    found = [match[0] for match in _NUMBER.finditer(text.replace("−", "-")) if match[0].strip("-")]
    try:
        return Fraction(found[-1].replace(",", "")) if found else None
    except (ValueError, ZeroDivisionError):
        return None


def _chosen(text: str) -> str | None:
    stated = _STATED_CHOICE.findall(text) or _BRACKETED_CHOICE.findall(text)
    if stated:
        return str(stated[-1]).upper()
    bare = _BARE_CHOICE.match(text)
    return bare[1] if bare else None


def _named_arguments(name: str, function: Reward) -> list[str]:
    """Which of ARGUMENTS a function wants. Raises ConfigError where it needs others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"env.reward={name}: can't see which arguments it takes; wrap it in a function") from None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return list(ARGUMENTS)
    for parameter in parameters:
        is_needed = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
        if is_needed and (parameter.name not in ARGUMENTS or parameter.kind is parameter.POSITIONAL_ONLY):
            raise ConfigError(
                f"env.reward={name}: it takes {parameter.name!r}; a reward function may name {', '.join(ARGUMENTS)}"
            )
    return [parameter.name for parameter in parameters if parameter.name in ARGUMENTS]
