"""The conformance matrix: every template × every scenario ends as ✓, a branch, or a refusal with its reason."""

from __future__ import annotations

import pytest

from tests.models.families import TEMPLATES
from tests.models.page import PAGE, all_rows, row, trl_version, write_page


@pytest.mark.parametrize("name", TEMPLATES)
async def test_every_cell_is_exact_a_branch_or_refused_with_a_reason(name: str) -> None:
    for scenario, cell in (await row(name)).items():
        assert cell.mark == "✓" or cell.reason, scenario


async def test_the_page_is_what_the_matrix_gives() -> None:
    written = write_page(await all_rows(), trl_version())
    assert PAGE.read_text(encoding="utf-8") == written, "docs/models.md is stale: python -m tests.models.page"
