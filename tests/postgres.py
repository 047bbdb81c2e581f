"""A real PostgreSQL server for tests and benchmarks, in a folder of its own, gone with whoever started it."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import create_engine, text

from agentrl.store import Store

SUPERVISOR = """
trap '' INT TERM HUP
"$1/pg_ctl" -D "$2/data" -l "$2/log" -w start >&2
read -r _
"$1/pg_ctl" -D "$2/data" -m immediate stop >&2
rm -rf "$2"
"""
"""Its standard input is closed when its parent ends, however that ends: then the server is stopped."""
SETTINGS = {
    "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "200",
    "shared_buffers": "64MB", "deadlock_timeout": "50ms", "listen_addresses": "''", "autovacuum": "off",
}  # fmt: skip
"""Nothing needs to survive a power cut. Deadlocks are noticed early, so that tests of them are quick."""


@dataclass(kw_only=True, frozen=True)
class PostgresServer:
    """A server that listens on a socket in its folder."""

    folder: Path
    supervisor: subprocess.Popen[bytes]

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://agentrl@/{database}?host={quote(str(self.folder), safe='')}"

    @contextmanager
    def database(self, template: str = "template1") -> Iterator[str]:
        """The URL of a new database, which is dropped in the end."""
        name = f"t{secrets.token_hex(6)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def run(self, statement: str) -> None:
        engine = create_engine(self.url(), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(statement))
        engine.dispose()

    def stop(self) -> None:
        """As if somebody stopped it: every connection is cut."""
        self._pg_ctl("stop", "-m", "fast")

    def start(self) -> None:
        """Again, after `stop`."""
        self._pg_ctl("start", "-w", "-l", str(self.folder / "log"))

    def _pg_ctl(self, *arguments: str) -> None:
        command = [str(_programs() / "pg_ctl"), "-D", str(self.folder / "data"), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, user=_user(), cwd="/")


def find_programs() -> Path | None:
    """The folder of initdb and its like: in PATH, or where Debian has them."""
    places = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    links = (folder / "initdb" for folder in places)
    return next((link.resolve().parent for link in links if link.exists()), None)


@contextmanager
def postgres_server(password: str | None = None) -> Iterator[PostgresServer]:
    """A server that was just made. Raises RuntimeError with its log where it doesn't start.

    `password`: its user's; None: whoever may enter its folder is let in.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentrl-pg-"))
    if _user() is not None:
        shutil.chown(folder, _user())
    _initialise(folder, password)
    supervisor = subprocess.Popen(
        ["sh", "-c", SUPERVISOR, "sh", str(_programs()), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        user=_user(),
        cwd="/",
    )
    try:
        _wait_until_ready(folder)
        yield PostgresServer(folder=folder, supervisor=supervisor)
    finally:
        assert supervisor.stdin is not None
        supervisor.stdin.close()
        supervisor.wait(60)


def _initialise(folder: Path, password: str | None) -> None:
    """Texts are sorted by a language's rules, not by bytes, as on most servers."""
    options = ["--username", "agentrl", "--encoding", "UTF8", "--no-sync", "--no-instructions"]
    (folder / "password").write_text(password or "")
    options += (
        ["--auth", "trust"] if password is None else ["--auth", "scram-sha-256", "--pwfile", f"{folder}/password"]
    )
    locale = ["--locale-provider", "icu", "--icu-locale", "en-US", "--locale", "C.UTF-8"]
    command = [str(_programs() / "initdb"), "-D", str(folder / "data"), *options]
    for attempt in ([*command, *locale], [*command, "--locale", "C"]):  # servers before 15 know no ICU here
        done = subprocess.run(attempt, capture_output=True, text=True, user=_user(), cwd="/")
        if done.returncode == 0:
            break
    else:
        shutil.rmtree(folder)
        raise RuntimeError(f"initdb failed: {done.stderr}")
    settings = SETTINGS | {"unix_socket_directories": f"'{folder}'"}
    with (folder / "data" / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in settings.items())


def _wait_until_ready(folder: Path) -> None:
    command = [str(_programs() / "pg_isready"), "-q", "-h", str(folder)]
    for _ in range(600):
        if subprocess.run(command).returncode == 0:
            return
        time.sleep(0.1)
    raise RuntimeError(f"PostgreSQL doesn't start: {(folder / 'log').read_text()}")


def _programs() -> Path:
    found = find_programs()
    assert found is not None, "no initdb; make system-deps installs it"
    return found


def _user() -> str | None:
    """PostgreSQL refuses to run as root: then it runs as somebody who may do little."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def need_postgres() -> None:
    """Skip the test where there is no PostgreSQL; but where changes are judged, fail."""
    if find_programs() is None:
        if os.environ.get("CI") == "true":
            pytest.fail("PostgreSQL is missing: make system-deps")
        pytest.skip("needs PostgreSQL: make system-deps")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for all tests that can share it."""
    need_postgres()
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> Iterator[str]:
    """The name of a database that has the tables already, to copy."""
    with postgres.database() as url:
        Store.open(url).close()
        yield url.partition("?")[0].rpartition("/")[2]


if __name__ == "__main__":
    with postgres_server() as started:
        print(started.url(), flush=True)
        sys.stdin.read()
