"""Who may look, and what a page may do: the pages hold what models and tools wrote, and so do their ids and names.

The address with the token is printed on the terminal. Whoever opens it gets a cookie in exchange, and an address
without the token, which thus stays out of the history and of what other sites are told.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOSTS = ("127.0.0.1", "localhost")
"""By another name a page of somebody else reaches us (DNS rebinding). Any port: it may be forwarded."""
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN = "/static/"
"""What is under it holds no secret, and the page that refuses needs it."""
TOKEN = "Open the address that agentrl view printed, with all of ?token=…; each start makes a new token."
Refuse = Callable[[int, str, str], Response]
"""(HTTP status, what is wrong, what to do) → page."""


class Guard:
    """Lets only readers in who hold the token, under a name of this machine; adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str, refuse: Refuse) -> None:
        """`cookie`: its name. Browsers don't tell ports apart there, so it has to differ between two viewers."""
        self._app = app
        self._token = token
        self._cookie = cookie
        self._session = secrets.token_urlsafe(32)
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        answer = self._refusal(scope) or self._exchange(scope) or self._app
        await answer(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or _name(hosts[0]) not in HOSTS:
            return self._refuse(400, "This address isn't the viewer's", "Open the address that agentrl view printed.")
        if scope["method"] not in ("GET", "HEAD"):
            return self._refuse(405, "The viewer only reads", "Change things with agentrl on the terminal.")
        return None

    def _exchange(self, scope: Scope) -> Response | None:
        """None: the reader has the cookie, or asks for what is open."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given and _equal(given[0], self._token):
            return self._welcome(scope["path"], [pair for pair in query if pair[0] != "token"])
        if scope["path"].startswith(OPEN) or _equal(self._cookie_of(scope), self._session):
            return None
        what = "The token is wrong" if given else "The token is missing"
        return self._refuse(401, what, TOKEN)

    def _welcome(self, path: str, query: list[tuple[str, str]]) -> Response:
        # One slash: an address that begins with two would lead to another site.
        where = quote("/" + path.lstrip("/")) + (f"?{urlencode(query)}" if query else "")
        response = RedirectResponse(where, status_code=303)
        response.set_cookie(self._cookie, self._session, httponly=True, samesite="strict")
        return response

    def _cookie_of(self, scope: Scope) -> str:
        try:
            cookies = SimpleCookie(Headers(scope=scope).get("cookie", ""))
        except CookieError:
            return ""
        return cookies[self._cookie].value if self._cookie in cookies else ""


def _name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _equal(given: str, secret: str) -> bool:
    return secrets.compare_digest(given.encode("utf-8", "surrogatepass"), secret.encode())
