"""The pictures of docs/view.md: `python -m tests.view.pictures` takes them anew from a small database."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.view.browser import browser, served, tab
from tests.view.stage import Stage, set_up

FOLDER = Path(__file__).parents[2] / "docs" / "view"
STEPS = 24


class Picture(NamedTuple):
    """A page as it is taken."""

    name: str
    path: str
    width: int = 1280
    height: int = 860
    dark: bool = False
    prepare: Callable[[Any], None] = lambda page: None


def pictures(stage: Stage) -> Iterator[Picture]:
    run = stage.runs[0]
    yield Picture("run", f"/run/{run}")
    yield Picture("trajectory", f"/trajectory/{stage.learnt}", prepare=_show_tokens)
    yield Picture("group", f"/group/{stage.groups[2]}", height=580, dark=True)
    yield Picture("search", f"/search?run={run}&min_reward=1", height=600)
    yield Picture("health", f"/health?run={run}", dark=True)
    yield Picture("phone", f"/trajectory/{stage.branched}", width=390, height=780)


def _show_tokens(page: Any) -> None:
    page.get_by_label("logprob", exact=True).check()
    for number in (0, 1):
        page.locator(f"#tokens-{number} > summary").click()
        page.locator(f"#tokens-{number} .token").first.wait_for()
    page.locator("#turns").evaluate("(one) => window.scrollTo(0, one.offsetTop - 60)")
    page.evaluate("document.activeElement.blur()")


def main() -> None:
    """Take all of them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        stage = set_up(Path(folder), STEPS)
        with browser() as started, served(stage.database) as base:
            for one in pictures(stage):
                with tab(started, base, width=one.width, height=one.height, dark=one.dark) as reader:
                    page = reader.open(one.path)
                    one.prepare(page)
                    page.screenshot(path=str(FOLDER / f"{one.name}.png"))


if __name__ == "__main__":
    main()
