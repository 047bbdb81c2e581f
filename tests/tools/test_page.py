"""docs/tools.md: its code runs, its table is right."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agentrl.sandbox import Sandbox
from agentrl.tools.boxed import MAX_OUTPUT_BYTES
from tests.tools.use import say

PAGE = (Path(__file__).parent.parent.parent / "docs" / "tools.md").read_text()


def names() -> dict[str, Any]:
    """What the page's code defines."""
    found: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(compile(block, "docs/tools.md", "exec"), found)
    return found


async def test_the_tools_of_the_page_work(box: Sandbox) -> None:
    found = names()
    repair = found["Repair"]
    for path, content in repair.sandbox(None, None).files.items():
        await box.write(path, content)
    bash, view = repair.tools[:2]
    assert await say(view, box, path="main.py") == "     1\tprint(1 / 0)" and bash.timeout_s == 60
    assert await say(found["count_lines"], box, path="main.py") == "1 main.py\n"
    assert await say(found["add"], box, a=1, b=2) == "3" and found["count_lines"].read_only


def test_its_table_names_the_tools_and_their_arguments() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| ", PAGE, re.M)
    installed = {point.name: point.load() for point in entry_points(group="agentrl.tools")}
    assert len(rows) == 6
    for name, arguments in rows:
        assert re.findall(r"`(\w+)`", arguments) == sorted(
            installed[name].schema["properties"], key=lambda each: arguments.find(f"`{each}`")
        )
    assert f"{MAX_OUTPUT_BYTES:,}" in PAGE
