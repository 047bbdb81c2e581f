"""Debian's Chromium, driven by playwright, before a server of the test's own."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvicorn

from agentrl.store import Store
from agentrl.view.app import make_app
from agentrl.view.serve import GOODBYE_S
from agentrl.view.viewer import Viewer
from tests.view.conftest import TOKEN

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


def chromium() -> str:
    """Its path. Skip the test where there is none; but where changes are judged, fail."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is missing: make system-deps")
        pytest.skip("needs Chromium: make system-deps")
    return path


@contextmanager
def browser() -> Iterator[Any]:
    """One browser. While it is open, this thread has an event loop that runs, so another needs another thread."""
    path = chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@contextmanager
def served(database: str) -> Iterator[str]:
    """The viewer of a database: its address, with a slash at the end."""
    with Store.open(database, read_only=True) as store, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        app = make_app(Viewer(store=store, database="runs/agentrl.db"), TOKEN)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=GOODBYE_S)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@dataclass
class Tab:
    """A page of its own, with what it must not do."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)
    """Errors on the console, dialogs, requests that leave the site."""

    def open(self, path: str) -> Any:
        self.page.goto(self.base + path, wait_until="load")
        return self.page

    def watch(self) -> None:
        page, say = self.page, self.complaints.append
        page.on("console", lambda message: say(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: say(f"error {error}"))
        page.on("request", lambda request: None if request.url.startswith(self.base) else say(f"asks {request.url}"))
        page.on("popup", lambda other: say(f"opens {other.url}"))

        def refuse(dialog: Any) -> None:
            say(f"dialog {dialog.message}")
            dialog.dismiss()

        page.on("dialog", refuse)


@contextmanager
def tab(browser: Any, base: str, *, width: int = 1440, height: int = 900, dark: bool = False) -> Iterator[Tab]:
    """A reader who has let himself in."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    opened = Tab(context.new_page(), base)
    opened.open(f"/?token={TOKEN}")
    opened.watch()
    yield opened
    context.close()
