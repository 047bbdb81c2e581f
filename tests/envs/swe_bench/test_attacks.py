"""Patches that cheat get nothing, and what still gets through is shown beside them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentrl.envs.swe_bench.attacks import attacks_on
from agentrl.envs.swe_bench.environment import PATCH, SweBench, SweBenchConfig
from agentrl.types import Grade, Task
from tests.envs.swe_bench.attacks import ALWAYS_EQUAL, ATTACKS, FIND, LINES, library
from tests.envs.swe_bench.small import FILES, GOLD, as_task, box_of, context, grade_all, swe_task, write

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


IN_THE_SHELL = attacks_on(swe_task(Path("/")))


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return as_task(swe_task(write(tmp_path_factory.mktemp("sums"), FILES), timeout_s=60.0))


@pytest.fixture(scope="module")
def in_the_shell(task: Task) -> dict[str, bytes]:
    """What the commands that `agentrl env check` plays make of the repository, one after the other."""

    async def patches() -> dict[str, bytes]:
        env = SweBench(SweBenchConfig())
        async with box_of(task) as box:
            await env.reset(task, context(box))
            found = {}
            for name, command in IN_THE_SHELL.items():
                await box.exec(command, timeout_s=60)
                found[name] = (await env.collect()).files[PATCH]
                await box.exec("git checkout -q . && git clean -qfd", timeout_s=60)
        return found

    return asyncio.run(patches())


@pytest.fixture(scope="module")
def grades(task: Task, in_the_shell: dict[str, bytes]) -> dict[str, Grade]:
    patches = {name: patch.encode() for name, patch in {**ATTACKS, **GET_THROUGH, "gold": GOLD}.items()}
    return grade_all(task, patches | in_the_shell)


def test_the_attacks_of_the_shell_change_something_else_each(task: Task, in_the_shell: dict[str, bytes]) -> None:
    assert len(set(in_the_shell.values()) - {b""}) == len(IN_THE_SHELL)
    assert [attack.name for attack in SweBench(SweBenchConfig()).attacks(task)] == [*IN_THE_SHELL]


@pytest.mark.parametrize("name", [*ATTACKS, *IN_THE_SHELL])
def test_an_attack_is_worth_nothing(grades: dict[str, Grade], name: str) -> None:
    assert grades[name].reward == 0.0 and grades[name].parts["resolved"] == 0.0, grades[name].output


def test_the_real_solution_is_paid_beside_them(grades: dict[str, Grade]) -> None:
    assert grades["gold"].reward == 1.0, grades["gold"].output


@pytest.mark.parametrize("name", GET_THROUGH)
def test_what_limits_md_says_gets_through_does(grades: dict[str, Grade], name: str) -> None:
    """Where one of these fails, the page has something to take back."""
    assert grades[name].reward == 1.0, grades[name].output
    page = (Path(__file__).parents[3] / "docs" / "limits.md").read_text()
    assert name in page
