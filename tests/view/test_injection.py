"""What strangers wrote is text on every page, whatever it is, in whichever field."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx

from agentrl.view.viewer import SHOWN
from agentrl.visible import one_line, visible
from tests.view.conftest import reading
from tests.view.corpus import STRINGS, Held

NOT_SHOWN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
OURS = re.compile(
    "a|article|b|body|button|circle|code|datalist|dd|details|div|dl|dt|fieldset|figcaption|figure|form|g|h1|h2|h3|head|"
    "header|html|input|label|legend|li|line|link|main|meta|nav|ol|option|p|polyline|rect|script|section|select|small|"
    "span|summary|svg|table|tbody|td|text|th|thead|title|tr|ul"
)
"""Tags of the templates."""
HARMFUL = re.compile("on|style|srcdoc|autofocus|http-equiv|formaction")
"""Names of attributes."""
LINKS = re.compile(r"[/?#](?!/)")
"""How an address on this site begins."""


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.values: list[str] = []
        self.wrong: list[str] = []
        self._is_text = True
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.values += [value for value in given.values() if value]
        if not OURS.fullmatch(tag) or any(
            name.startswith("on") or name in ("style", "srcdoc", "autofocus") for name in given
        ):
            self.wrong.append(f"<{tag} {given}>")
        for name in ("href", "src", "action", "data-part", "data-changed"):
            if name in given and not LINKS.match(given[name] or ""):
                self.wrong.append(f"{name}={given[name]!r}")
        if tag == "script" and given != {"src": "/static/view.js", "defer": None}:
            self.wrong.append(f"a script {given}")

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


async def checked(reader: httpx.AsyncClient, path: str) -> Page:
    answer = await reader.get(path)
    assert answer.status_code == 200, (path, answer.text)
    page = Page(answer.text)
    assert not page.wrong, path
    assert not (found := NOT_SHOWN.search(answer.text)), (path, found)
    return page


async def test_every_string_is_text_on_every_page(hostile: tuple[str, list[Held]]) -> None:
    database, held = hostile
    async with reading(database) as reader:
        for number, one in enumerate(held):
            texts = one.texts if number < 3 else [one.texts[number % len(one.texts)]]
            shown = visible(one.evil)[:SHOWN]
            for path in [*one.pages, *texts]:
                page = await checked(reader, path)
                if path.startswith(("/trajectory", "/group")):
                    assert shown[:300] in "".join(page.words), path


async def test_all_strings_are_text_where_they_come_together(hostile: tuple[str, list[Held]]) -> None:
    database, held = hostile
    async with reading(database) as reader:
        for path in ("/", "/health", "/search", f"/compare?run={held[0].run}&run={held[7].run}"):
            await checked(reader, path)
        runs = "".join((await checked(reader, "/")).words)
        for evil in STRINGS:
            assert visible(evil)[:300] in runs


async def test_each_of_them_may_be_searched_for_and_stays_in_its_field(hostile: tuple[str, list[Held]]) -> None:
    database, held = hostile
    async with reading(database) as reader:
        for one in held:
            clean = one.evil.replace("\ud800", "?")
            fields = {name: clean for name in ("env", "text", "stop_reason", "version", "min_reward")}
            answer = await reader.get("/search", params=fields)
            page = Page(answer.text)
            assert answer.status_code == 400 and not page.wrong and not NOT_SHOWN.search(answer.text)
            assert one_line(clean) in page.values
