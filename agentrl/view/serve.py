"""The server: on this machine's loopback address only, until Ctrl-C."""

from __future__ import annotations

import errno
import secrets
import socket

import uvicorn

from agentrl.errors import ConfigError
from agentrl.store import Store
from agentrl.view.app import make_app
from agentrl.view.viewer import Viewer

HOST = "127.0.0.1"
GOODBYE_S = 3
"""How long Ctrl-C waits for pages that are being sent."""


def serve(store: Store, database: str, port: int) -> None:
    """Print the address and serve it; `port` 0: any free one. Raises ConfigError where the port can't be had."""
    token = secrets.token_urlsafe(24)
    with _listening(port) as listener:
        port = listener.getsockname()[1]
        app = make_app(Viewer(store=store, database=database), token, cookie=f"agentrl_view_{port}")
        print(f"{store.location}, to be read only, at\nhttp://{HOST}:{port}/?token={token}\nCtrl-C ends it", flush=True)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listener.close()
        in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "it is in use, perhaps by another agentrl view" if in_use else str(error)
        raise ConfigError(f"port {port} can't be had: {why}; take another with --port, or any with --port 0") from None
    listener.listen()
    return listener
