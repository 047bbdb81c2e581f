"""A stranger's package, built, installed into a fresh environment, and trained on from another folder (K02)."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.installed import ROOT, FreshVenv, build_wheel

SMALL = [
    "env.num_tasks=8", "sft.demonstrations=8", "sft.steps=2", "sft.batch_size=8", "eval.tasks=2", "eval.sampled=false",
    "algorithm.group_size=4", "algorithm.groups_per_step=2", "train.steps=2", "name=a-run",
]  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy: building writes into the folder."""
    ignored = shutil.ignore_patterns("__pycache__", "dist", "*.egg-info")
    return Path(shutil.copytree(ROOT / "tests" / "plugin_package", tmp_path / "source", ignore=ignored))


@pytest.fixture
def fresh(tmp_path: Path) -> FreshVenv:
    return FreshVenv(tmp_path)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One warm start for both ways of installing."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize("way", ["wheel", pytest.param("editable", marks=pytest.mark.long)])
def test_k02_a_plugin_trains_from_a_wheel_and_from_its_sources(
    way: str, source: Path, fresh: FreshVenv, tmp_path: Path, cache: Path
) -> None:
    if way == "wheel":
        fresh.pip_install(str(build_wheel(source, tmp_path / "dist")))
        shutil.rmtree(source)
    else:
        fresh.pip_install("--editable", str(source))
    listed = fresh.agentrl("env", "list")
    assert ["parity", "acme-parity", "3.1", "ok"] in [line.split() for line in listed.stdout.splitlines()]
    trained = fresh.agentrl("train", "--env", "parity", *SMALL, f"model.cache_dir={cache}")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    metrics = [json.loads(line) for line in (fresh.place / "runs/a-run/metrics.jsonl").read_text().splitlines()]
    steps = [record for record in metrics if record["kind"] == "step"]
    assert len(steps) == 2 and sum(step["num_updates"] for step in steps) >= 1
    assert (fresh.place / "runs/a-run/checkpoints/step-2").is_dir()


def test_k02_the_plugins_yaml_sets_keys_and_the_command_line_wins(
    source: Path, fresh: FreshVenv, tmp_path: Path
) -> None:
    fresh.pip_install(str(build_wheel(source, tmp_path / "dist")))
    config = yaml.safe_load(fresh.agentrl("train", "--env", "parity", "--cfg", "limits.max_turn_tokens=30").stdout)
    assert (config["env"]["bits"], config["limits"]["max_turns"], config["limits"]["max_turn_tokens"]) == (6, 2, 30)
    checked = fresh.agentrl("env", "check", "parity")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_k02_a_wheel_without_its_yaml_says_which_plugin_lacks_which_file(
    source: Path, fresh: FreshVenv, tmp_path: Path
) -> None:
    project = source / "pyproject.toml"
    project.write_text(project.read_text() + 'exclude = ["*.yaml"]\n')
    wheel = build_wheel(source, tmp_path / "dist")
    assert not any(name.endswith(".yaml") for name in zipfile.ZipFile(wheel).namelist())
    fresh.pip_install(str(wheel))
    done = fresh.agentrl("train", "--env", "parity")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert (
        "plugin acme-parity 3.1 declares the config env/parity as 'configs/parity.yaml', but its package "
        "acme_envs.parity has no such file" in done.stderr
    )
    assert fresh.agentrl("train", "--env", "calculator", "--cfg").returncode == 0


def test_env_new_writes_a_package_that_installs_passes_its_check_and_its_test(fresh: FreshVenv) -> None:
    written = fresh.agentrl("env", "new", "word-puzzles")
    assert written.returncode == 0 and "next: pip install -e agentrl-word-puzzles" in written.stdout
    before = {path: path.read_text() for path in (fresh.place / "agentrl-word-puzzles").rglob("*") if path.is_file()}
    again = fresh.agentrl("env", "new", "word-puzzles")
    assert again.returncode == 2 and "is there already" in again.stderr
    assert all(path.read_text() == text for path, text in before.items())
    fresh.pip_install("--editable", "agentrl-word-puzzles")
    checked = fresh.agentrl("env", "check", "word-puzzles")
    assert checked.returncode == 0 and "✗" not in checked.stdout, checked.stdout + checked.stderr
    tested = fresh.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "agentrl-word-puzzles/tests")
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout
    config = yaml.safe_load(fresh.agentrl("train", "--env", "word-puzzles", "--cfg").stdout)
    assert config["limits"]["max_turns"] == 4
