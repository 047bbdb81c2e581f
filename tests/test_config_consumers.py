"""Every key of the config has a consumer (K05): each leaf is read somewhere, off an object of its own section.

The code is searched, not run. `x.leaf` counts where `x` is the section: `anything.section` of a RunConfig, or a name
that is bound to it by an annotation or an assignment (of a variable in the same file, of an attribute in any file).
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from agentrl import config, config_sandbox, config_servers, config_tasks
from agentrl.config import RunConfig, SandboxConfig, SftConfig, TrainConfig
from agentrl.config_servers import Section

PACKAGE = Path(config.__file__).parent
OWN = {Path(module.__file__) for module in (config, config_sandbox, config_servers, config_tasks)}
FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path not in OWN]
Classes = dict[str, set[str]]
"""Which sections a name may stand for."""


def is_section(kind: object) -> bool:
    return inspect.isclass(kind) and issubclass(kind, BaseModel)


def sections() -> dict[str, str]:
    """Name of the section's class by its key."""
    kinds = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    return {name: kind.__name__ for name, kind in kinds.items() if is_section(kind)}


def sections_of(name: str) -> set[str]:
    """The section classes that a name of a class stands for: a base stands for those that are built on it."""
    named = getattr(config, name, None) or getattr(config_servers, name, None)
    kinds = [RunConfig, *(field.annotation for field in RunConfig.model_fields.values())]
    if not is_section(named) or named is Section:
        return set()
    return {kind.__name__ for kind in kinds if is_section(kind) and issubclass(kind, named)}


def leaves() -> Iterator[tuple[str, str, str]]:
    """(key as it is written, class of its section, name in it) of every leaf; an environment's own are its own."""
    for name, field in RunConfig.model_fields.items():
        kind = field.annotation
        if name == "env":
            continue
        if is_section(kind):
            yield from ((f"{name}.{key}", kind.__name__, key) for key in kind.model_fields)
        else:
            yield name, "RunConfig", name


def bindings(tree: ast.AST, known: Classes) -> Iterator[tuple[ast.AST, str]]:
    """(what is bound, section class): annotated parameters, fields and variables, and assignments of sections."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            target = ast.Name(node.arg) if isinstance(node, ast.arg) else node.target
            words = {word.id for word in ast.walk(node.annotation) if isinstance(word, ast.Name)}
            yield from ((target, kind) for word in words for kind in sections_of(word))
        if isinstance(node, ast.Assign):
            for target in node.targets:
                is_unpacked = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=True) if is_unpacked else [(target, node.value)]
                yield from ((one, kind) for one, value in pairs for kind in classes_of(value, known))


def classes_of(node: ast.AST, known: Classes) -> set[str]:
    """The section classes that an expression may have."""
    if isinstance(node, ast.BoolOp):
        return set().union(*(classes_of(value, known) for value in node.values))
    if isinstance(node, ast.Name):
        return known.get(node.id, set())
    if not isinstance(node, ast.Attribute):
        return set()
    if "RunConfig" in classes_of(node.value, known) and node.attr in sections():
        return {sections()[node.attr]}
    return known.get(f".{node.attr}", set())


def learn(tree: ast.AST, known: Classes) -> None:
    """Add the file's bindings; attributes stand with a dot, for they are known in every file."""
    for _ in range(2):  # an assignment may build on a later one
        for target, kind in list(bindings(tree, known)):
            name = f".{target.attr}" if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            known[name].add(kind)


def fields_of_classes(trees: list[ast.Module]) -> Classes:
    """Attributes of any class that hold a section."""
    found: Classes = defaultdict(set)
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                own: Classes = defaultdict(set)
                learn(node, own)
                fields = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and _is_name(one.target)}
                for name, kinds in own.items():
                    if name.startswith(".") or name in fields:
                        found["." + name.removeprefix(".")] |= kinds
    return found


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def reads_in(tree: ast.AST, attributes: Classes) -> set[tuple[str, str]]:
    """(section class, key) of every read."""
    known: Classes = defaultdict(set, {name: set(kinds) for name, kinds in attributes.items()})
    learn(tree, known)
    return {
        (kind, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        for kind in classes_of(node.value, known)
    }


@pytest.fixture(scope="module")
def reads() -> set[tuple[str, str]]:
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
    attributes = fields_of_classes(trees)
    found = {read for tree in trees for read in reads_in(tree, attributes)}
    assert isinstance(RunConfig.database, property)
    found |= reads_of(RunConfig.database.fget, "RunConfig")
    return (
        found
        | reads_of(SandboxConfig.backend_of, "SandboxConfig")
        | reads_of(SandboxConfig.options_of, "SandboxConfig")
    )


def reads_of(method: Any, section: str) -> set[tuple[str, str]]:
    """Of a section's own method that others call."""
    return reads_in(ast.parse(textwrap.dedent(inspect.getsource(method))), {"self": {section}})


def passed_on() -> set[str]:
    """Keys of the warm start that become the trainer's."""
    other = {"optimizer": "adamw", "schedule": "cosine", "steps": 7, "learning_rate": 0.5, "warmup_steps": 3}
    assert all(SftConfig.model_fields[key].default != value for key, value in other.items())
    config = SftConfig.model_validate(other).train_config(TrainConfig())
    return {key for key, value in other.items() if getattr(config, key) == value}


@pytest.mark.parametrize(("leaf", "section", "key"), list(leaves()), ids=[leaf for leaf, _, _ in leaves()])
def test_k05_every_key_has_a_consumer(leaf: str, section: str, key: str, reads: set[tuple[str, str]]) -> None:
    is_passed_on = section == "SftConfig" and key in passed_on() and ("TrainConfig", key) in reads
    assert (section, key) in reads or is_passed_on, f"{leaf} is in the config, but nothing reads it"


def test_k05_a_key_that_nothing_reads_would_be_found(reads: set[tuple[str, str]]) -> None:
    """Names that other sections have, or that are only written or passed by name, are no reads."""
    for unread in (
        ("EvalConfig", "learning_rate"),
        ("StoreConfig", "steps"),
        ("LimitsConfig", "optimizer"),
        ("TrainConfig", "x"),
    ):
        assert unread not in reads
    code = """
def a(config: RunConfig, options: EvalConfig) -> None:
    train, limit = config.train, options
    train.beta1, other.beta2, limit.tasks
    options.every = 3
    call(max_grad_norm=1)
"""
    assert reads_in(ast.parse(code), {}) == {("RunConfig", "train"), ("TrainConfig", "beta1"), ("EvalConfig", "tasks")}
