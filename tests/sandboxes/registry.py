"""A registry on this machine's loopback that holds one image of one small file, for a real engine to pull from."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass(kw_only=True)
class Registry:
    """What it serves, and what it was asked."""

    address: str
    """host:port"""
    blobs: dict[str, bytes]
    manifest: bytes
    is_too_often: Callable[[], bool] = lambda: False
    """Asked for each manifest: answer 429?"""
    login: tuple[str, str] | None = None
    """User and password; None: open."""
    num_refused: int = 0
    num_manifests: int = 0
    paths: list[str] = field(default_factory=list)


@contextmanager
def registry(content: bytes = b"hello") -> Iterator[Registry]:
    """Any repository and tag is the same image, whose /file has this content."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo("file")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    layer = gzip.compress(tar.getvalue())
    settings = {"architecture": "amd64", "os": "linux", "config": {"Cmd": ["/file"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(tar.getvalue())]}}  # fmt: skip
    config = json.dumps(settings).encode()
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": _reference(CONFIG, config),
                "layers": [_reference(LAYER, layer)]}  # fmt: skip
    served = Registry(
        address="",
        blobs={_digest(blob): blob for blob in (layer, config)},
        manifest=json.dumps(manifest).encode(),
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(served))
    served.address = f"127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _reference(kind: str, blob: bytes) -> dict[str, str | int]:
    return {"mediaType": kind, "size": len(blob), "digest": _digest(blob)}


def _handler(served: Registry) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.paths.append(self.path)
            if not self._is_let_in():
                self._answer(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "log in"}]}')
            elif "/manifests/" in self.path:
                self._answer_manifest()
            elif "/blobs/" in self.path:
                self._answer(200, served.blobs[self.path.rpartition("/")[2]], "application/octet-stream")
            else:
                self._answer(200, b"{}")

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

        def _is_let_in(self) -> bool:
            if served.login is None:
                return True
            expected = base64.b64encode(":".join(served.login).encode()).decode()
            return self.headers.get("Authorization") == f"Basic {expected}"

        def _answer_manifest(self) -> None:
            served.num_manifests += 1
            if served.is_too_often():
                served.num_refused += 1
                self._answer(429, b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "pull rate limit"}]}')
            else:
                self._answer(200, served.manifest, MANIFEST)

        def _answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="test"')
            if kind == MANIFEST:
                self.send_header("Docker-Content-Digest", _digest(body))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    return Handler
