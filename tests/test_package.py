"""The layout and its import rules, as a user's installation meets them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import LONGEST, TOGETHER, group_of

ROOT = Path(__file__).parent.parent
SHIPPED = (".py", ".yaml", ".html", ".css", ".js", ".svg")
LINKED = ("envs", "tools", "sandboxes", "configs")
HEAVY = ("torch", "ray", "sqlalchemy", "vllm", "transformers", "hydra", "aiohttp", "numpy")


def python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=60)


def test_contracts_load_nothing_heavy() -> None:
    code = (
        "import sys, agentrl.environment, agentrl.tool, agentrl.sandbox, agentrl.types, agentrl.errors\n"
        "import agentrl.plugins, agentrl.envs.calculator\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = python(code)
    assert result.stdout.strip() == "[]", result.stdout + result.stderr


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom agentrl.cli import main\n"
        "try: main(['train', '--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    assert python(code).stdout.strip().endswith("[]")


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_folder_refuses_its_bare_name(name: str) -> None:
    result = python(f"import {name}")
    assert result.returncode != 0 and f"import agentrl.{name}, not {name}" in result.stderr
    assert (ROOT / "agentrl" / name).is_symlink()


def test_configs_env_is_not_ignored_by_git() -> None:
    command = ["git", "check-ignore", "configs/env/calculator.yaml"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 1


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_agentrl_only_and_all_of_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} - {"agentrl"} == {
        name.split("/")[0] for name in names if ".dist-info/" in name
    }
    for folder in ("agentrl", *LINKED):
        prefix = "" if folder == "agentrl" else "agentrl/"
        for path in sorted((ROOT / folder).rglob("*")):
            is_data = "data" in path.parts and path.is_file()
            if (is_data or path.suffix in SHIPPED) and "__pycache__" not in path.parts:
                assert prefix + path.relative_to(ROOT).as_posix() in names


def test_the_wheel_works_away_from_the_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "tools").mkdir()  # a user's own folder of the same name does no harm
    (tmp_path / "tools" / "__init__.py").write_text("raise RuntimeError")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import agentrl; print(agentrl.__file__)\n"
        "from agentrl.cli import main; main(['train', '--env', 'calculator', '--cfg'])"
    )
    result = python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert str(tmp_path) in result.stdout.splitlines()[0] and "max_turns: 5" in result.stdout


def test_env_list_names_distribution_version_and_state(capsys: pytest.CaptureFixture[str]) -> None:
    from agentrl.cli import main

    assert main(["env", "list"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("calculator"))
    assert line.split() == ["calculator", "agentrl", "0.1.0", "ok"]


def test_the_groups_of_tests_name_what_there_is() -> None:
    assert [place for place in TOGETHER if not (ROOT / place).exists()] == []
    assert [group for group in LONGEST if group not in TOGETHER.values() and not (ROOT / group).exists()] == []
    assert group_of("tests/vllm/test_gate.py::test_it[a/b::c]") == "vllm"
    assert group_of("tests/store/test_find.py::test_it") == "tests/store/test_find.py"


def test_import_rules_hold() -> None:
    """In a process of its own: the linter switches off the loggers that there are."""
    rules = str(ROOT / "pyproject.toml")
    result = python(
        f"from importlinter.cli import lint_imports\n"
        f"raise SystemExit(lint_imports(config_filename={rules!r}, no_cache=True))"
    )
    assert result.returncode == 0, result.stdout + result.stderr
