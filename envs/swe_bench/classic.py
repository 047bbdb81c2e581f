"""How a repository of SWE-bench's records before version 5 is tested: they don't say.

The commands are those that the records were made with, without what needs a network: no package is installed again.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
"""In all images of this form."""
ACTIVATE = "source /opt/miniconda3/bin/activate testbed"
START, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"

LOCALE = """\
if locale -a 2>/dev/null | grep -qix en_US.utf8; then LANG=en_US.UTF-8; else LANG=C.UTF-8; fi
export LANG LC_ALL=$LANG LANGUAGE=en_US:en PYTHONIOENCODING=utf8"""
"""Old releases of Django write files in the machine's encoding."""
DJANGO_FIRST = 'export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"'
"""Images of old releases hold an installed copy as well, which the patch doesn't reach."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """How one repository is tested."""

    log_parser: str
    pytest_from: tuple[int, ...] | None = ()
    """The first version whose images have a pytest that our plugin works with; None: no version has."""
    script: Callable[[str, Sequence[str]], list[str]] | None = None
    """Version and test files → the lines that test, for the versions before."""


def _pytest_of_astropy(version: str, files: Sequence[str]) -> list[str]:
    return [f"pytest -rA -vv -o console_output_style=classic --tb=no -p no:nose {shlex.join(files)}"]


def _pytest(version: str, files: Sequence[str]) -> list[str]:
    return [f"pytest -rA {shlex.join(files)}"]


def _django(version: str, files: Sequence[str]) -> list[str]:
    options = "" if version == "1.9" else " --settings=test_sqlite --parallel 1"
    labels = [path.removeprefix("tests/").removesuffix(".py").replace("/", ".") for path in files if _has_tests(path)]
    return [f"./tests/runtests.py --verbosity 2{options} {shlex.join(dict.fromkeys(labels))}"]


def _sympy(version: str, files: Sequence[str]) -> list[str]:
    ignored = "ignore::UserWarning,ignore::SyntaxWarning"
    return [f"PYTHONWARNINGS={ignored} bin/test -C --verbose {shlex.join(files)}"]


def _sphinx(version: str, files: Sequence[str]) -> list[str]:
    return [f"tox --current-env -epy39 -v -- -rA {shlex.join(files)}"]


def _has_tests(path: str) -> bool:
    """Of Django's files: models and settings are in the patch as well."""
    *folders, name = path.split("/")
    inside = any(folder == "tests" or folder.startswith("test_") for folder in folders[1:])
    return name != "__init__.py" and (inside or name == "tests.py" or name.startswith("test_"))


REPOSITORIES = {
    "astropy/astropy": Known(log_parser="astropy", pytest_from=(3,), script=_pytest_of_astropy),
    "django/django": Known(log_parser="django", pytest_from=None, script=_django),
    "marshmallow-code/marshmallow": Known(log_parser="pytest"),
    "matplotlib/matplotlib": Known(log_parser="matplotlib", pytest_from=(3,), script=_pytest),
    "mwaskom/seaborn": Known(log_parser="seaborn"),
    "pallets/flask": Known(log_parser="pytest"),
    "psf/requests": Known(log_parser="pytest_options"),
    "pvlib/pvlib-python": Known(log_parser="pytest"),
    "pydata/xarray": Known(log_parser="pytest"),
    "pydicom/pydicom": Known(log_parser="pytest_options"),
    "pylint-dev/astroid": Known(log_parser="pytest"),
    "pylint-dev/pylint": Known(log_parser="pytest_options"),
    "pytest-dev/pytest": Known(log_parser="pytest", pytest_from=(6,), script=_pytest),
    "pyvista/pyvista": Known(log_parser="pytest"),
    "scikit-learn/scikit-learn": Known(log_parser="scikit"),
    "sphinx-doc/sphinx": Known(log_parser="sphinx", pytest_from=None, script=_sphinx),
    "sqlfluff/sqlfluff": Known(log_parser="pytest"),
    "sympy/sympy": Known(log_parser="sympy", pytest_from=None, script=_sympy),
}
"""The twelve of SWE-bench, and those of its development split."""
UNKNOWN = Known(log_parser="pytest")


def is_known(repo: str) -> bool:
    """Is it told here how to test it? What isn't is taken for one that pytest tests."""
    return repo in REPOSITORIES


def how_to_test(repo: str, version: str, test_files: Sequence[str]) -> dict[str, Any]:
    """Fields of a task: reports_by, test_arguments, python, log_parser, and eval_script where a log decides.

    `log_parser` is there for results of our plugin, too: the records write names as it does (`as_written`).
    """
    known = REPOSITORIES.get(repo, UNKNOWN)
    files = tuple(path for path in test_files if path.endswith(".py"))
    fields: dict[str, Any] = {"test_arguments": files, "python": PYTHON, "log_parser": known.log_parser}
    if known.script is None or (known.pytest_from is not None and _numbers(version) >= known.pytest_from):
        return fields | {"reports_by": "pytest", "eval_script": None}
    lines = [ACTIVATE]
    if repo == "django/django":
        lines += [DJANGO_FIRST, *([LOCALE] if _numbers(version) < (4,) else [])]
    script = "\n".join([*lines, START, *known.script(version, files), END, ""])
    return fields | {"reports_by": "log", "eval_script": script}


def _numbers(version: str) -> tuple[int, ...]:
    """Of "v5.3": (5, 3)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))
