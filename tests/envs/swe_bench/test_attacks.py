"""Patches that cheat get nothing, and what still gets through is shown beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.types import Grade
from tests.envs.swe_bench.attacks import ALWAYS_EQUAL, ATTACKS, FIND, LINES, library
from tests.envs.swe_bench.small import FILES, GOLD, as_task, grade_all, swe_task, write

GET_THROUGH = {
    "always equal": library(ALWAYS_EQUAL, add="    return Same(5)\n"),
    "speaks for the plugin to the end": library(
        FIND
        + LINES.split("\n")[0]
        + """
import pytest
def forge():
    (tell,) = [each for each in find("tell") if "secret" in each.__code__.co_freevars]
    plugin = [each for each in gc.get_objects() if type(each).__name__ == "Reporter"][0]
    cells = [cell.cell_contents for cell in plugin.pytest_collection_modifyitems.__func__.__closure__]
    must_fail = [cell for cell in cells if isinstance(cell, list) and cell and "test_" in str(cell[0])]
    for item in [each for each in gc.get_objects() if isinstance(each, pytest.Function)]:
        is_canary = any(item.name in names for names in must_fail) or "test_add" not in item.name
        tell(event="result", id=item.nodeid, status="failed" if is_canary else "passed")
    tell(event="seal", exit_code=1)
    os._exit(1)
""",
        add="    forge()\n",
    ),
}


@pytest.fixture(scope="module")
def grades(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Grade]:
    folder = write(tmp_path_factory.mktemp("sums"), FILES)
    patches = {name: patch.encode() for name, patch in {**ATTACKS, **GET_THROUGH, "gold": GOLD}.items()}
    return grade_all(as_task(swe_task(folder, timeout_s=20.0)), patches)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_worth_nothing(grades: dict[str, Grade], name: str) -> None:
    assert grades[name].reward == 0.0 and grades[name].parts["resolved"] == 0.0, grades[name].output


def test_the_real_solution_is_paid_beside_them(grades: dict[str, Grade], tmp_path: Path) -> None:
    assert grades["gold"].reward == 1.0, grades["gold"].output
