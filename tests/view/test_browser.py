"""The viewer in a real browser: by mouse and by keyboard alone, small and large, light and dark, live and attacked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentrl.store import Store
from tests.view.browser import browser as a_browser
from tests.view.browser import served, tab
from tests.view.corpus import Held
from tests.view.stage import Stage, rollout, task


@pytest.fixture(scope="module")
def browser(stage: Stage, hostile: tuple[str, list[Held]]) -> Iterator[Any]:
    """Once the databases are made: they need this thread's event loop."""
    with a_browser() as started:
        yield started


@pytest.fixture(scope="module")
def base(stage: Stage) -> Iterator[str]:
    with served(stage.database) as address:
        yield address


def pages(stage: Stage) -> list[str]:
    left, right = stage.runs
    one, other = stage.learnt, stage.branched
    return [
        "/", f"/run/{right}", f"/compare?run={left}&run={right}", f"/step/0/{right}", f"/group/{stage.groups[0]}",
        f"/trajectory/{one}", f"/trajectory/{other}", f"/trajectory/{stage.hostile}", f"/tokens/1/{one}",
        f"/text/2.reply/{other}", "/search", f"/search?run={right}&stop_reason=max_turns", "/health",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [390, 1440])
def test_every_page_fits_light_and_dark_and_complains_of_nothing(
    browser: Any, base: str, stage: Stage, width: int
) -> None:
    with tab(browser, base, width=width) as reader:
        for path in pages(stage):
            page = reader.open(path)
            for scheme in ("light", "dark"):
                page.emulate_media(color_scheme=scheme)
                wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                assert wide <= 0, (path, wide)
                ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
                assert (sum(ground) < 3 * 60) == (scheme == "dark"), path
            assert page.locator("h1").is_visible() and not reader.complaints, path


def test_a_search_is_filtered_and_stays_in_the_address(browser: Any, base: str, stage: Stage) -> None:
    with tab(browser, base) as reader:
        page = reader.open("/search")
        assert page.locator("#found tbody tr").count() > 20
        page.get_by_label("Ending").select_option("max_turns")
        page.get_by_label("Run", exact=True).fill(stage.runs[0])
        page.get_by_role("button", name="Search").click()
        page.wait_for_url("**stop_reason=max_turns**")
        endings = page.locator("#found tbody tr td:nth-child(6)").all_inner_texts()
        assert set(endings) == {"max_turns"} and len(endings) == 8
        assert f"agentrl find --run {stage.runs[0]} --stop-reason max_turns" in page.locator(".commands").inner_text()
        page.reload()
        assert page.get_by_label("Ending").input_value() == "max_turns"
        page.get_by_label("Reward from").fill("2")
        page.get_by_label("Text", exact=True).press("Enter")
        page.get_by_text("No rollout matches.").wait_for()
        assert not reader.complaints


def go_by_keyboard(page: Any, selector: str, then: str = "Enter") -> None:
    """Tab until what is meant has the focus, which must be seen wherever it is; then the other keys."""
    for _ in range(120):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """(selector) => {
              const here = document.activeElement, style = getComputedStyle(here);
              const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
              return {is: here.matches(selector), seen, what: here.outerHTML.slice(0, 200)};
            }""",
            selector,
        )
        assert found["seen"], found["what"]
        if found["is"]:
            page.keyboard.press(then)
            return
    raise AssertionError(f"{selector} isn't reached by Tab")


def test_all_the_way_by_keyboard_alone(browser: Any, base: str, stage: Stage) -> None:
    run = stage.runs[0]
    with tab(browser, base) as reader:
        page = reader.open("/")
        go_by_keyboard(page, ".skip")
        go_by_keyboard(page, f"main a[href='/run/{run}']")
        page.wait_for_url(f"**/run/{run}")
        go_by_keyboard(page, f"a[href='/step/0/{run}']")
        page.wait_for_url(f"**/step/0/{run}")
        go_by_keyboard(page, f"a[href='/group/{stage.groups[0]}']")
        page.wait_for_url("**/group/**")
        go_by_keyboard(page, f"h3 a[href='/trajectory/{stage.learnt}']")
        page.wait_for_url(f"**/trajectory/{stage.learnt}")
        go_by_keyboard(page, "#tokens-0 > summary")
        page.locator("#tokens-0 .token").first.wait_for()
        page.keyboard.press("Shift+Tab")
        page.evaluate("document.querySelector('.skip').focus()")
        go_by_keyboard(page, "a[href='/search']")
        page.wait_for_url("**/search")
        go_by_keyboard(page, "input[name=env]", then="n")
        page.keyboard.press("Enter")
        page.get_by_text("No rollout matches.").wait_for()
        assert not reader.complaints


def test_tokens_come_on_demand_and_are_coloured(browser: Any, base: str, stage: Stage) -> None:
    with tab(browser, base) as reader:
        page = reader.open(f"/trajectory/{stage.branched}")
        assert page.locator(".turns .token").count() == 0
        page.locator("#tokens-2 > summary").click()
        page.get_by_role("link", name="Next ids").wait_for()
        assert page.locator("#tokens-2 .token").count() == 2000
        page.get_by_role("link", name="Next ids").click()
        page.locator("#tokens-2 .token").nth(3999).wait_for()
        rare = page.locator("#tokens-2 .likely3").first
        before = rare.evaluate("(one) => getComputedStyle(one).backgroundColor")
        page.get_by_label("logprob", exact=True).check()
        assert rare.evaluate("(one) => getComputedStyle(one).backgroundColor") != before
        assert not reader.complaints


def in_a_thread(work: Awaitable[Any]) -> Any:
    """Playwright's loop runs in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()  # type: ignore[arg-type]


def test_what_is_written_appears_without_a_reload(browser: Any, tmp_path: Path) -> None:
    database = str(tmp_path / "live.db")
    with Store.open(database) as store:
        run = in_a_thread(store.create_run("live", {}))
        one = rollout(run, task(1), random.Random(1), 1.0)
        first, second = one.turns
        first.message.content = "many lines\n" * 120
        one.turns, one.stop_reason, one.finished_at = [], None, None
        in_a_thread(store.recorder.begin(one, 0))
        one.turns = [first]
        in_a_thread(store.recorder.add_turn(one, first))
        with served(database) as base, tab(browser, base) as reader:
            page = reader.open(f"/trajectory/{one.id}")
            page.evaluate("window.isTheSame = true")
            page.locator("#tokens-0 > summary").click()
            page.locator("#tokens-0 .token").first.wait_for()
            page.evaluate("window.scrollTo(0, 400)")
            one.turns.append(second)
            in_a_thread(store.recorder.add_turn(one, second))
            page.locator("#turn-1").wait_for(timeout=20_000)
            state = "[window.isTheSame, window.scrollY, document.activeElement.tagName]"
            assert page.evaluate(state) == [True, 400, "SUMMARY"]
            assert page.locator("#tokens-0 .token").count() > 0
            page = reader.open("/")
            page.evaluate("window.isTheSame = true")
            late = in_a_thread(store.create_run("late", {}))
            page.locator(f"#run-{late}").wait_for(timeout=20_000)
            assert page.evaluate("window.isTheSame") and not reader.complaints


def test_what_strangers_wrote_does_nothing(browser: Any, hostile: tuple[str, list[Held]]) -> None:
    database, held = hostile
    with served(database) as base, tab(browser, base) as reader:
        for place, one in enumerate(held):
            for path in ["/", *one.pages] if place == 0 else [one.pages[4]]:
                page = reader.open(path)
                assert page.evaluate("window.pwned") is None, (path, one.evil)
                assert page.locator("img, iframe, object, dialog, style, base").count() == 0, path
        assert not reader.complaints
