"""docs/swe_bench_data.md: its kinds, its caps and its code are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentrl.envs.swe_bench import records, unpacking
from agentrl.envs.swe_bench.task import Source

PAGE = (Path(__file__).parents[3] / "docs" / "swe_bench_data.md").read_text()


def test_it_names_every_kind_of_record_with_keys_that_it_has() -> None:
    section = PAGE.partition("## Kinds")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `([\w-]+)`[^|]*\|([^|]*)\|", section, re.M))
    assert set(rows) == {format.name for format in records.FORMATS}
    for format in records.FORMATS:
        keys = set(re.findall(r"`(\w+)`", rows[format.name]))
        assert keys <= {*format.keys, *format.not_keys}


def test_its_kinds_of_sources_and_caps_are_right() -> None:
    section = PAGE.partition("## Without an image")[2].partition("\n## ")[0]
    kinds = Source.model_fields["kind"].annotation
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == set(kinds.__args__)  # type: ignore[union-attr]
    assert f"{unpacking.MAX_BYTES // 1024**3} GiB and {unpacking.MAX_FILES:,} files" in section


def test_its_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 12 and lines[0].startswith("agentrl-mini__daybook-14 3 ")
