"""The command line and the YAML of `agentrl.configs` → a checked RunConfig.

Hydra composes; the keys and types come from `agentrl.config` and from the environment's own `Config`. A mistake is
one line that names the key and the nearest right one (exit code 2).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from agentrl import plugins
from agentrl.config import EnvSelection, RunConfig, fault_text
from agentrl.errors import ConfigError

GROUPS = ("model", "engine", "sandbox", "source")
NAMES_OF_RUNS = ("name", "source.runs", "sft.run")
NUMBER = re.compile(r"(^|[\[,]\s*)(\d[\d_.]*(?:e\d+)?)(?=\s*(?:[\],]|$))", re.I)
"""A value, or one of a list, that looks like one."""


def load_config(env: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of environment `env` with `key=value` overrides. Raises ConfigError."""
    schema = _schema(env)
    overrides = list(map(_with_names_quoted, overrides))
    parsed = _parse(overrides)
    for override in parsed:
        _check_key(override, schema)
    _register_yaml(env, schema)
    composed = _compose(env, schema, overrides)
    try:
        return RunConfig.model_validate(composed)
    except ValidationError as error:
        raise ConfigError(fault_text(error)) from None


def split_env(overrides: Sequence[str]) -> tuple[str | None, list[str]]:
    """(NAME of the last `env=NAME`, the other overrides)."""
    names = [o.removeprefix("env=") for o in overrides if o.startswith("env=")]
    return (names[-1] if names else None), [o for o in overrides if not o.startswith("env=")]


def _schema(env: str) -> dict[str, Any]:
    """Every key with its default, the environment's own included."""
    options = plugins.environment(env).Config
    try:
        selection = EnvSelection(name=env, options=options())
    except ValidationError as error:
        raise ConfigError(f"environment {env!r}: each option needs a default; {fault_text(error)}") from None
    return RunConfig(env=selection).model_dump(mode="json")


def _with_names_quoted(override: str) -> str:
    """Hydra would read a run's id such as 239538133059 or 12345678e901 as a number."""
    key, _, value = override.partition("=")
    if key not in NAMES_OF_RUNS or re.search(r"['\"]", value):
        return override
    return f"{key}=" + NUMBER.sub(r"\1'\2'", value)


def _parse(overrides: Sequence[str]) -> list[Override]:
    for text in overrides:
        if "=" not in text:
            raise ConfigError(f"{text!r} is not key=value; write for example train.steps=10")
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        raise ConfigError(f"can't read {' '.join(overrides)!r}: {_first_line(error)}") from None


def _check_key(override: Override, schema: dict[str, Any]) -> None:
    key = override.key_or_group
    known = list(_keys(schema))
    if override.is_add() or override.is_delete() or override.is_force_add():
        raise ConfigError(
            f"{override.input_line!r}: keys can't be added or deleted; write {_nearest(key, known)}=value"
        )
    if override.is_sweep_override():
        raise ConfigError(f"{override.input_line!r}: one value per key; start one run per value")
    if key in GROUPS:
        _check_choice(key, str(override.value()))
    elif key not in known and not _is_inside(key, schema):
        raise ConfigError(f"unknown key {key!r}; nearest: {_nearest(key, known)}. `--cfg` prints every key")


def _check_choice(group: str, choice: str) -> None:
    folder = resources.files("agentrl.configs") / group
    choices = sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir())
    if choice not in choices:
        near = (difflib.get_close_matches(choice, choices, n=1, cutoff=0.0) or choices)[0]
        hints = {
            "model": " A model by its folder or id is model.path=…",
            "sandbox": " One of a plugin is sandbox.backend=…",
        }
        hint = hints.get(group, "")
        raise ConfigError(f"unknown {group} {choice!r}; nearest: {near}, known: {', '.join(choices)}.{hint}")


def _register_yaml(env: str, schema: dict[str, Any]) -> None:
    """Make the environment's own YAML known to Hydra as env/NAME. Raises ConfigError for a key that doesn't exist.

    It goes in by its content, so that no search path has to be set and its package needs no special folders.
    """
    yaml = plugins.environment_yaml(env)
    ConfigStore.instance().repo.get("env", {}).pop(f"{env}.yaml", None)  # of an earlier call
    if yaml is None:
        return
    node = _read_yaml(yaml)
    known = list(_keys(schema))
    for key in _keys({key: value for key, value in node.items() if key != "defaults"}):
        if key not in known and not _is_inside(key, schema):
            raise ConfigError(f"{yaml.place}: unknown key {key!r}; nearest: {_nearest(key, known)}")
    ConfigStore.instance().store(group="env", name=env, node=node, package="_global_")


def _read_yaml(yaml: plugins.PluginYaml) -> dict[str, Any]:
    try:
        node = OmegaConf.to_container(OmegaConf.create(yaml.text), resolve=False)
    except (OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{yaml.place}: no valid YAML: {_first_line(error)}") from None
    if not isinstance(node, dict):
        raise ConfigError(f"{yaml.place}: must hold keys and values, e.g. limits.max_turns as in `--cfg`")
    return {str(key): value for key, value in node.items()}


def _compose(env: str, schema: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    ConfigStore.instance().store(name="schema", node=schema)
    try:
        with initialize_config_module(config_module="agentrl.configs", version_base="1.3"):
            added = [_adding(text, schema) for text in overrides]
            config = compose(config_name="run", overrides=[f"env={env}", *added])
            resolved = OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_line(error)) from None
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items()}


def _is_inside(key: str, schema: dict[str, Any]) -> bool:
    """Is it an option that holds any keys (its default is an empty mapping), or a key in one?"""
    node: Any = schema
    for name in key.split("."):
        if node == {}:
            return True
        node = node.get(name) if isinstance(node, dict) else None
    return bool(node == {})


def _adding(override: str, schema: dict[str, Any]) -> str:
    """As Hydra wants it: a key that isn't there yet has to be added."""
    return f"++{override}" if _is_inside(override.partition("=")[0], schema) else override


def _keys(node: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if value and isinstance(value, dict):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _nearest(key: str, known: list[str]) -> str:
    """The most alike of the known keys; `lr` finds learning_rate."""
    section, _, last = key.rpartition(".")

    def likeness(candidate: str) -> float:
        its_section, _, its_last = candidate.rpartition(".")
        initials = "".join(word[0] for word in its_last.split("_"))
        alike = 1.0 if last == initials else difflib.SequenceMatcher(None, last, its_last).ratio()
        return alike + 0.23 * difflib.SequenceMatcher(None, section, its_section).ratio()

    return max(known, key=likeness)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
