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
def is_passing(item, must_fail):
    is_planted = "test_core" in item.nodeid or "test_hidden" in item.nodeid
    return item.name not in must_fail and not is_planted
def forge():
    (tell,) = [each for each in find("tell") if "secret" in each.__code__.co_freevars]
    plugin = [each for each in gc.get_objects() if type(each).__name__ == "Reporter"][0]
    cells = [cell.cell_contents for cell in plugin.pytest_collection_modifyitems.__func__.__closure__]
    (must_fail,) = [cell for cell in cells if isinstance(cell, list) and cell and cell[0].startswith("test_")]
    for item in [each for each in gc.get_objects() if isinstance(each, pytest.Function)]:
        is_own = item.name in ("test_double", "test_add_more", "test_add")
        tell(event="result", id=item.nodeid, status="passed" if is_own or is_passing(item, must_fail) else "failed")
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
    return grade_all(as_task(swe_task(folder, timeout_s=60.0)), patches)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_worth_nothing(grades: dict[str, Grade], name: str) -> None:
    assert grades[name].reward == 0.0 and grades[name].parts["resolved"] == 0.0, grades[name].output


def test_the_real_solution_is_paid_beside_them(grades: dict[str, Grade], tmp_path: Path) -> None:
    assert grades["gold"].reward == 1.0, grades["gold"].output


@pytest.mark.parametrize("name", GET_THROUGH)
def test_what_limits_md_says_gets_through_does(grades: dict[str, Grade], name: str) -> None:
    """Where one of these fails, the page has something to take back."""
    assert grades[name].reward == 1.0, grades[name].output
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    assert name in page
