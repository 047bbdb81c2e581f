"""The conformance matrix: every template × every scenario ends as ✓, a branch, or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentrl.rollout.http_client import HttpClient
from agentrl.rollout.renderer import Renderer
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from tests.models.cell import play
from tests.models.families import TEMPLATES
from tests.models.page import PAGE, all_rows, row, write_page
from tests.models.scenarios import SCENARIOS


@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_cell_is_exact_a_branch_or_refused_with_a_reason(name: str) -> None:
    for scenario, cell in (await row(name)).items():
        assert cell.mark == "✓" or cell.reason, scenario


async def test_the_page_is_what_the_matrix_gives() -> None:
    written = write_page(await all_rows())
    assert PAGE.read_text(encoding="utf-8") == written, "docs/models.md is stale: python -m tests.models.page"


def test_at_least_twelve_templates_beside_the_real_one_are_played_whole() -> None:
    assert len(TEMPLATES) > 12 and len(SCENARIOS) == len({each.name for each in SCENARIOS})
    assert not any("training" in name for name in TEMPLATES)


@pytest.mark.parametrize(
    "fault",
    [
        lambda ids: [ids[0], *ids],
        lambda ids: ids[1:],
        lambda ids: ids[:-1],
    ],
    ids=["an id twice", "without the first", "without the last"],
)
async def test_a_wrong_tail_is_found(fault: Callable[[list[int]], list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    extend = Renderer.extend
    monkeypatch.setattr(Renderer, "check", lambda *_: None)
    monkeypatch.setattr(Renderer, "extend", lambda *given: fault(extend(*given)))
    for name in ("qwen3_6", "gptoss"):
        endpoint = ScriptedEndpoint(lambda seen: Reply(ids=[]), max_model_len=16_384)
        async with endpoint, HttpClient(endpoint.url) as client:
            with pytest.raises(AssertionError):
                await play(name, SCENARIOS[1], endpoint, client)
