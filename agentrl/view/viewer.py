"""What every page needs: the store, the templates, and the commands that are shown beside it."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from agentrl import figures
from agentrl.errors import NotStored
from agentrl.store import Store
from agentrl.visible import one_line, pieces, visible

DEFAULT_DATABASE = "runs/agentrl.db"
SHOWN = 2000
"""Characters of a text on a page with others; the rest is a page of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Viewer:
    """Makes pages from templates. All that isn't a template is escaped, without exception."""

    store: Store
    database: str
    """As the commands name it."""
    templates: Environment = field(init=False, default_factory=lambda: _templates())

    def page(self, name: str, status: int = 200, /, **values: Any) -> HTMLResponse:
        """The template of that name, filled in."""
        return HTMLResponse(self.text(name, **values), status)

    def text(self, name: str, /, **values: Any) -> str:
        """As `page`, without an answer around it."""
        known: dict[str, Any] = {"database": self.database, "live": None, "commands": []}
        return self.templates.get_template(name).render(known | values)

    def resolve(self, kind: Literal["run", "group", "trajectory"], id: str) -> str:
        """The whole id, of which the beginning may be given. Raises NotStored."""
        return self.store.resolve(kind, id) if id else _no_id(kind)

    def command(self, *words: object) -> str:
        """An agentrl command on this database, as a shell takes it."""
        line = ["agentrl", *map(str, words)]
        database = [] if self.database == DEFAULT_DATABASE else ["--db", self.database]
        return visible(shlex.join(line + database))


def viewer_of(request: Request) -> Viewer:
    """The viewer that serves the request."""
    viewer: Viewer = request.app.state.viewer
    return viewer


def _no_id(kind: str) -> str:
    raise NotStored(f"which {kind}? Its id is missing")


def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("agentrl.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    named = {name: getattr(figures, name) for name in ("number", "precise", "signed", "share")}
    environment.filters |= named | {
        "url": lambda part: quote(str(part), safe=""),
        "pieces": lambda text: pieces(str(text)),
        "line": lambda text: one_line(str(text)),
        "figure": lambda value: "-" if value is None else figures.compact(value),
        "when": when,
        "seconds": seconds,
    }
    environment.globals["SHOWN"] = SHOWN
    return environment


def when(unix_s: float | None) -> str:
    """Local time to the second."""
    return "-" if unix_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))


def seconds(value: float | None) -> str:
    """`0.0123` → `12 ms`, `95` → `1:35`."""
    if value is None:
        return "-"
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.1f} s" if value < 60 else figures.duration(value)
