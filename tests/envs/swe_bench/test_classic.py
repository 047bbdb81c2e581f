"""How the repositories of older records are tested."""

from __future__ import annotations

import subprocess

import pytest

from agentrl.envs.swe_bench import classic
from agentrl.envs.swe_bench.log_parsers import is_ours
from agentrl.envs.swe_bench.task import SweTask

FILES = ("tests/admin_views/tests.py", "tests/admin_views/models.py", "tests/a/data.json")
TWELVE = {
    "astropy/astropy", "django/django", "matplotlib/matplotlib", "mwaskom/seaborn", "pallets/flask", "psf/requests",
    "pydata/xarray", "pylint-dev/pylint", "pytest-dev/pytest", "scikit-learn/scikit-learn", "sphinx-doc/sphinx",
    "sympy/sympy",
}  # fmt: skip


def script_of(repo: str, version: str, *files: str) -> str:
    fields = classic.how_to_test(repo, version, files)
    assert fields["reports_by"] == "log"
    ran = subprocess.run(["bash", "-n"], input=fields["eval_script"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines: list[str] = fields["eval_script"].split("\n")
    return "\n".join(lines[lines.index(classic.START) + 1 : lines.index(classic.END)])


def test_the_twelve_are_known_and_all_parsers_are_ours() -> None:
    assert set(classic.REPOSITORIES) >= TWELVE and all(classic.is_known(repo) for repo in TWELVE)
    assert all(is_ours(known.log_parser) for known in classic.REPOSITORIES.values())


@pytest.mark.parametrize("repo", sorted(classic.REPOSITORIES))
@pytest.mark.parametrize("version", ["0.7", "1.9", "5.4", "v5.3", "2022.09", ""])
def test_what_is_told_makes_a_task(repo: str, version: str) -> None:
    task = SweTask(id="a", format="swe-bench", problem_statement="p", **classic.how_to_test(repo, version, FILES))
    assert (task.eval_script is None) == (task.reports_by == "pytest") and task.log_parser
    assert task.python == "/opt/miniconda3/envs/testbed/bin/python"
    assert "tests/a/data.json" not in task.test_arguments


@pytest.mark.parametrize(
    ("repo", "version", "reports_by"),
    [
        ("astropy/astropy", "1.3", "log"),
        ("astropy/astropy", "v5.3", "pytest"),
        ("matplotlib/matplotlib", "2.2", "log"),
        ("matplotlib/matplotlib", "3.0", "pytest"),
        ("pytest-dev/pytest", "5.4", "log"),
        ("pytest-dev/pytest", "7.0", "pytest"),
        ("psf/requests", "0.7", "pytest"),
        ("sphinx-doc/sphinx", "7.2", "log"),
        ("nobody/nothing", "", "pytest"),
    ],
)
def test_our_plugin_is_used_where_the_images_pytest_is_new_enough(repo: str, version: str, reports_by: str) -> None:
    assert classic.how_to_test(repo, version, FILES)["reports_by"] == reports_by


def test_django_is_given_labels_of_the_modules_that_have_tests() -> None:
    nested = (
        "tests/auth_tests/test_views.py",
        "tests/view_tests/tests/test_i18n.py",
        "tests/view_tests/tests/__init__.py",
    )
    assert script_of("django/django", "3.0", *FILES, *nested) == (
        "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 "
        "admin_views.tests auth_tests.test_views view_tests.tests.test_i18n"
    )
    assert script_of("django/django", "1.9", *FILES) == "./tests/runtests.py --verbosity 2 admin_views.tests"


def test_old_django_has_a_locale_and_the_tree_before_the_installed_copy() -> None:
    old, new = (classic.how_to_test("django/django", version, FILES)["eval_script"] for version in ("2.2", "4.1"))
    assert "PYTHONPATH" in old and "PYTHONIOENCODING" in old
    assert "PYTHONPATH" in new and "PYTHONIOENCODING" not in new


def test_the_other_scripts_run_the_given_files() -> None:
    assert script_of("sympy/sympy", "1.12", "sympy/core/tests/test_a.py", "a b.py").endswith(
        "bin/test -C --verbose sympy/core/tests/test_a.py 'a b.py'"
    )
    assert (
        script_of("sphinx-doc/sphinx", "3.1", "tests/test_a.py") == "tox --current-env -epy39 -v -- -rA tests/test_a.py"
    )
    assert script_of("pytest-dev/pytest", "4.4", "testing/test_a.py").startswith("pytest -rA ")


def test_an_unknown_repository_is_said_to_be_unknown() -> None:
    assert not classic.is_known("nobody/nothing")
