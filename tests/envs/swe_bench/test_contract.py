"""The environment keeps the contract, with every attack that it declares."""

from __future__ import annotations

import pytest

from agentrl.cli import main


@pytest.mark.long
def test_swe_bench_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["env", "check", "swe_bench", "--tasks", "1"]) == 0
    told = capsys.readouterr().out
    assert "✗" not in told and "✓ attacks don't pay" in told and "✓ episodes at once are as alone" in told
    assert "✓ garbage pays little" in told and told.rstrip().endswith("swe_bench keeps the contract")
