"""Only who holds the token gets in, under a name of this machine; pages can't run what is written in them."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.view.conftest import TOKEN
from tests.view.stage import Stage

PATHS = ("/", "/run/x", "/trajectory/x", "/changed/runs/all", "/compare", "/nowhere")


@pytest.mark.parametrize("path", PATHS)
async def test_without_the_token_there_is_a_page_that_says_what_to_do(stranger: httpx.AsyncClient, path: str) -> None:
    answer = await stranger.get(path)
    assert answer.status_code == 401
    assert "The token is missing" in answer.text and "agentrl view printed" in answer.text
    assert "agentrl.db" not in answer.text


@pytest.mark.parametrize("token", ["", "the-toke", "the-token ", "THE-TOKEN", "é", "\x00"])
async def test_a_wrong_token_is_refused(stranger: httpx.AsyncClient, token: str) -> None:
    answer = await stranger.get("/", params={"token": token})
    assert answer.status_code == 401 and "The token is wrong" in answer.text and not answer.cookies


async def test_the_token_is_exchanged_for_a_cookie_and_leaves_the_address(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/?start=2", params={"start": "2", "token": TOKEN}, follow_redirects=False)
    assert answer.status_code == 303 and answer.headers["location"] == "/?start=2"
    cookie = answer.headers["set-cookie"]
    assert "httponly" in cookie.lower() and "samesite=strict" in cookie.lower() and TOKEN not in cookie
    assert (await stranger.get("/")).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "///evil.example"])
async def test_the_way_on_never_leads_to_another_site(stranger: httpx.AsyncClient, path: str) -> None:
    url = httpx.URL("http://127.0.0.1:8123").copy_with(raw_path=f"{path}?token={TOKEN}".encode())
    answer = await stranger.send(stranger.build_request("GET", url), follow_redirects=False)
    assert answer.status_code == 303 and re.match(r"/[^/\\]", answer.headers["location"])


async def test_a_made_up_cookie_is_refused(stranger: httpx.AsyncClient) -> None:
    for cookie in ("agentrl_view=", f"agentrl_view={TOKEN}", "agentrl_view=\x7f", ";;=;"):
        assert (await stranger.get("/", headers={"Cookie": cookie})).status_code == 401


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:8123", "", "[", "0.0.0.0"])
async def test_a_foreign_host_is_refused_even_with_the_cookie(reader: httpx.AsyncClient, host: str) -> None:
    answer = await reader.get("/", headers={"Host": host})
    assert answer.status_code == 400 and "agentrl view printed" in answer.text


@pytest.mark.parametrize("host", ["localhost:8123", "127.0.0.1", "LOCALHOST:9000"])
async def test_the_machines_own_names_are_served_also_through_another_port(
    reader: httpx.AsyncClient, host: str
) -> None:
    assert (await reader.get("/", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
async def test_only_reading_is_answered(reader: httpx.AsyncClient, method: str) -> None:
    assert (await reader.request(method, "/")).status_code == 405
    assert (await reader.head("/")).status_code == 200


@pytest.mark.parametrize("path", [*PATHS, "/static/view.css", "/static/../app.py", "/static/nothing.js"])
async def test_every_answer_forbids_what_a_page_doesnt_need(reader: httpx.AsyncClient, path: str) -> None:
    headers = (await reader.get(path)).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


async def test_pages_bring_nothing_along_and_ask_nobody_else(reader: httpx.AsyncClient, stage: Stage) -> None:
    """No inline script, handler or style, which the policy would block; no address of another host."""
    run, one = stage.runs[-1], stage.branched
    for path in ("/", f"/run/{run}", f"/step/0/{run}", f"/group/{stage.groups[0]}", f"/trajectory/{one}"):
        page = (await reader.get(path)).text
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
        assert re.findall(r"<script[^>]*>", page) == ['<script src="/static/view.js" defer>']
        assert not re.search(r"(src|href|action|data-part)=\"(https?:|//)", page)


async def test_the_scripts_and_styles_are_there(reader: httpx.AsyncClient) -> None:
    for name in ("view.js", "view.css", "icon.svg"):
        answer = await reader.get(f"/static/{name}")
        assert answer.status_code == 200 and "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")
