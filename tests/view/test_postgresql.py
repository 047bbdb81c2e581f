"""The pages say the same of a database of PostgreSQL as of a file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.postgres import PostgresServer, postgres, postgres_template
from tests.view.conftest import reading
from tests.view.stage import Stage, set_up
from tests.view.test_pages import words

__all__ = ["postgres", "postgres_template"]

MADE_ANEW = re.compile(r"\b[0-9a-f]{12}\b|[\d-]+ \d\d:\d\d:\d\d|/\S+/(?=baseline|demo|model)")
"""Ids of runs, when something was written, and where."""


def pages(stage: Stage) -> list[str]:
    left, right = stage.runs
    return [
        "/", f"/run/{left}", f"/compare?run={left}&run={right}", f"/step/1/{right}", f"/group/{stage.groups[0]}",
        f"/trajectory/{stage.learnt}", f"/trajectory/{stage.hostile}", f"/trajectory/{stage.branched}",
        f"/trajectory/{stage.running}", f"/tokens/1/{stage.learnt}", f"/text/error/{stage.hostile}",
        "/search?env=toy&min_reward=0.5", f"/search?run={left}&stop_reason=max_turns", "/search?text=calculator",
        "/search?call=failed", f"/health?run={left}", "/health",
    ]  # fmt: skip


async def read(reader: httpx.AsyncClient, stage: Stage, path: str) -> list[str]:
    """What stands on a page, without what the next stage would have otherwise."""
    answer = await reader.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return sorted(word for word in MADE_ANEW.sub("", words(answer.text)).split() if word not in stage.groups)


@pytest.fixture
def other(postgres: PostgresServer, postgres_template: str, tmp_path: Path) -> Iterator[Stage]:
    with postgres.database(postgres_template) as url:
        yield set_up(tmp_path, database=url)


async def test_every_page_of_postgresql_says_what_the_files_says(stage: Stage, other: Stage) -> None:
    async with reading(stage.database, shown="db") as ours, reading(other.database, shown="db") as theirs:
        for path, same in zip(pages(stage), pages(other), strict=True):
            assert await read(theirs, other, same) == await read(ours, stage, path), path
