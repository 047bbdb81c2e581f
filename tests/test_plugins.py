"""Plugins by name: broken ones are listed and break nothing else, and nothing is remembered of a failure (K04)."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.errors import ConfigError, PluginError

GOOD = """
from agentrl.environment import Environment
from agentrl.types import Grade, Message, Task

class Good(Environment):
    @classmethod
    def tasks(cls, config, split):
        return [Task(env="good", id="1", split=split, messages=[Message(role="user", content=split)])]

    @classmethod
    async def grade(cls, task, trajectory, artifacts, ctx):
        return Grade(reward=0.0)
"""
BROKEN = {
    "syntax": ("class Good(:", "Good", "SyntaxError: invalid syntax"),
    "missing_package": ("import no_such_package_anywhere", "Good", "No module named 'no_such_package_anywhere'"),
    "raises": ("raise RuntimeError('boom\\n\\x1b[31mred')", "Good", "RuntimeError: boom"),
    "exits": ("import sys\nsys.exit('bye')", "Good", "SystemExit: bye"),
    "lacks_the_name": ("", "Good", "has no attribute 'Good'"),
    "no_environment": ("class Good: ...", "Good", "register a subclass of agentrl.environment.Environment"),
    "a_function": ("def Good(): ...", "Good", "register a subclass"),
    "abstract": (GOOD.replace("async def grade", "async def grad"), "Good", "lacks grade"),
    "no_such_module": (None, "Good", "ModuleNotFoundError"),
}


class Site:
    """A folder on the import path into which packages are put as an installer would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, code: str | None, value: str = "Good", *, entry_points: str | None = None) -> None:
        module = f"plugin_{name}"
        if code is not None:
            (self.folder / f"{module}.py").write_text(code)
        info = self.folder / f"{name.replace('_', '-')}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
        points = entry_points if entry_points is not None else f"[agentrl.envs]\n{name} = {module}:{value}\n"
        (info / "entry_points.txt").write_text(points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("plugin_"):
            del sys.modules[name]


def listed(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    """name → (distribution, version, state) of `agentrl env list`."""
    capsys.readouterr()
    assert main(["env", "list"]) == 0
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    return {name: rest for name, *rest in lines}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_listed_with_its_reason_and_breaks_no_other_command(
    name: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    code, value, reason = BROKEN[name]
    site.install(name, code, value)
    lines = listed(capsys)
    distribution, version, state = lines[name]
    assert (distribution, version) == (name, "1.2") and reason in state and state.isprintable()
    assert lines["calculator"][-1] == "ok"
    assert main(["train", "--env", "calculator", "--cfg"]) == 0
    capsys.readouterr()
    assert main(["train", "--env", name, "--cfg"]) == 2
    error = capsys.readouterr().err
    assert reason in error and repr(name) in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("points", ["[agentrl.envs\nnonsense", "[agentrl.envs]\nno value at all", "\x00", "[x]\n= a"])
def test_metadata_that_cant_be_read_hides_no_other_plugin(
    points: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.install("torn", "", entry_points=points)
    site.install("good", GOOD)
    lines = listed(capsys)
    assert lines["good"][-1] == "ok" and lines["calculator"][-1] == "ok"
    assert main(["train", "--env", "good", "--cfg"]) == 0


def test_a_distribution_without_a_name_hides_no_other_plugin(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    (site.folder / "half_written-1.0.dist-info").mkdir()
    site.install("good", GOOD)
    assert listed(capsys)["good"][-1] == "ok"


def test_k04_a_reader_that_failed_once_is_asked_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("good", GOOD)
    read, failures = metadata.distributions, [OSError("the disk is away")]

    def distributions(**options: Any) -> Any:
        if failures:
            raise failures.pop()
        return read(**options)

    monkeypatch.setattr(metadata, "distributions", distributions)
    with pytest.raises(PluginError, match="the disk is away"):
        plugins.environment("good")
    assert plugins.environment("good").__name__ == "Good"


def test_k04_one_distribution_that_failed_once_is_read_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install("good", GOOD)
    read, failures = metadata.PathDistribution.read_text, [OSError("stale handle")]

    def read_text(self: Any, filename: Any) -> Any:
        if failures and filename == "entry_points.txt" and "good" in str(self._path):
            raise failures.pop()
        return read(self, filename)

    monkeypatch.setattr(metadata.PathDistribution, "read_text", read_text)
    with pytest.raises(PluginError, match="good: its metadata can't be read: OSError: stale handle"):
        plugins.environment("good")
    assert plugins.environment("good").__name__ == "Good"


def test_k04_a_plugin_installed_after_a_failed_look_up_is_found(site: Site) -> None:
    with pytest.raises(PluginError, match="unknown env 'good'"):
        plugins.environment("good")
    site.install("good", GOOD)
    assert plugins.environment("good").__name__ == "Good"


def test_k04_a_plugin_that_was_mended_loads(site: Site) -> None:
    site.install("good", "import plugin_helper\n" + GOOD)
    with pytest.raises(PluginError, match="plugin_helper"):
        plugins.environment("good")
    (site.folder / "plugin_helper.py").write_text("")
    assert plugins.environment("good").__name__ == "Good"


def test_k04_an_editable_install_made_while_we_run_is_found(site: Site, tmp_path: Path) -> None:
    sources = tmp_path / "checkout"
    sources.mkdir()
    site.install("good", None)
    with pytest.raises(PluginError, match="No module named 'plugin_good'"):
        plugins.environment("good")
    (sources / "plugin_good.py").write_text(GOOD)
    (tmp_path / "good.pth").write_text(f"{sources}\n")
    try:
        assert plugins.environment("good").__name__ == "Good"
    finally:
        sys.path.remove(str(sources))


def test_an_unknown_name_lists_near_names(site: Site) -> None:
    site.install("good", GOOD)
    with pytest.raises(PluginError, match="unknown env 'goood'; known: good"):
        plugins.environment("goood")
    with pytest.raises(PluginError, match=r"calculator.*, good"):
        plugins.environment("zzzz")


def test_two_packages_with_one_name_are_told_apart(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.install("mine", GOOD, entry_points="[agentrl.envs]\nshared = plugin_mine:Good\n")
    site.install("yours", GOOD, entry_points="[agentrl.envs]\nshared = plugin_yours:Good\n")
    with pytest.raises(PluginError, match=r"'shared' is registered by (mine|yours) 1\.2 and (mine|yours) 1\.2"):
        plugins.environment("shared")
    assert "is registered by" in listed(capsys)["shared"][-1]


def with_yaml(site: Site, text: str | None, place: str = "settings/good.yaml") -> None:
    package = site.folder / "plugin_pack"
    package.mkdir()
    (package / "__init__.py").write_text(
        GOOD.replace("class Good(Environment):", f"class Good(Environment):\n    yaml = {place!r}")
    )
    if text is not None:
        (package / "settings").mkdir()
        (package / "settings" / "good.yaml").write_text(text)
    site.install("good", None, entry_points="[agentrl.envs]\ngood = plugin_pack:Good\n")


def test_k02_a_plugins_yaml_may_lie_anywhere_in_its_package(site: Site) -> None:
    with_yaml(site, "limits:\n  max_turns: 3\ntrain:\n  steps: 9\n")
    config = load_config("good", ["train.steps=8"])
    assert (config.limits.max_turns, config.train.steps) == (3, 8)


def test_k02_a_declared_file_that_isnt_there_is_named_with_its_plugin(site: Site) -> None:
    with_yaml(site, None)
    says = (
        r"plugin good 1\.2 declares the config env/good as 'settings/good\.yaml', but its package plugin_pack has no "
        r"such file; add it to the package's data"
    )
    with pytest.raises(PluginError, match=says):
        load_config("good")
    assert load_config("calculator").limits.max_turns == 5


def test_a_yaml_of_a_module_that_is_no_package_is_refused(site: Site) -> None:
    site.install("good", GOOD.replace("class Good(Environment):", "class Good(Environment):\n    yaml = 'good.yaml'"))
    with pytest.raises(PluginError, match="module plugin_good is no package"):
        load_config("good")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("limits:\n  max_tunrs: 3\n", r"settings/good.yaml: unknown key 'limits.max_tunrs'; nearest: limits.max_turns"),
        ("limits: [", "settings/good.yaml: no valid YAML"),
        ("- 1\n", "settings/good.yaml: must hold keys and values"),
        ("limits:\n  max_turns: many\n", "max_turns='many'"),
    ],
)
def test_a_mistake_in_a_plugins_yaml_is_one_line(site: Site, text: str, says: str) -> None:
    with_yaml(site, text)
    with pytest.raises(ConfigError, match=says) as caught:
        load_config("good")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["Word", "9lives", "a b", "../up", "a--b", "x" * 41, "", "a.b"])
def test_env_new_refuses_what_cant_be_a_name(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "new", name, "--path", str(tmp_path / "new")]) == 2
    assert "can't be a name" in capsys.readouterr().err and not (tmp_path / "new").exists()


def test_env_new_refuses_a_name_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "new", "calculator", "--path", str(tmp_path / "new")]) == 2
    assert "'calculator' is installed already" in capsys.readouterr().err and not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["environment", "task", "grade", "a", "to-be-or-not", "class", "x1_y2"])
def test_env_new_writes_code_that_runs_whatever_the_name(name: str, tmp_path: Path, site: Site) -> None:
    folder = tmp_path / "new"
    assert main(["env", "new", name, "--path", str(folder)]) == 0
    module = f"agentrl_{name.replace('-', '_')}"
    points = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["entry-points"]["agentrl.envs"]
    site.install("made", None, entry_points=f"[agentrl.envs]\n{name} = {points[name]}\n")
    sys.path.insert(0, str(folder))
    try:
        assert main(["env", "check", name, "--tasks", "1"]) == 0
    finally:
        sys.path.remove(str(folder))
        for loaded in [key for key in sys.modules if key.startswith(module)]:
            del sys.modules[loaded]
