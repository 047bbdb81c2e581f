"""docs/models.md, written from what the matrix gives. Write it again after a change with

python -m tests.models.page
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from agentrl.rollout.http_client import HttpClient
from agentrl.testing.endpoint import Reply, ScriptedEndpoint
from tests.models.cell import Cell, play
from tests.models.families import REAL, TEMPLATES, renderer
from tests.models.scenarios import SCENARIOS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
Row = dict[str, Cell]
"""By the scenario's name."""
_ROWS: dict[str, Row] = {}
_INTRO = """# Models

Which chat templates agentrl follows turn by turn, found out by playing. `tests/models` writes this page; write it again
after a change with `python -m tests.models.page`. A test fails where it differs from what the matrix gives.

Each template plays each scenario through the real AgentLoop, in both modes of `rollout.renderer_mode`, against a
scripted endpoint that says awkward ids: one id per character, stray special tokens, odd ends. In every cell the ids
that the endpoint saw are those that were recorded, each sampled id has mask 1 in exactly one Row, after the context in
which it was sampled, text from tools and users gives no control id, and the contexts as text are what the template
itself writes, rendered by transformers alone. The cells say how:

- **✓** `append` gives the template's own rendering of the whole conversation.
- **branch** the template writes what was said in another way than it was sampled, or the environment replaced it.
  `append` keeps what was sampled and adds what the template writes behind it; `rerender` starts a branch where the
  ids differ.
- **refused** the run stops before its first rollout, with a reason that says what to change. Where only one kind of
  step is refused (two user messages in a row), that rollout ends as `env_error` with the reason.

The templates are the base ones of trl {version} (`chat_templates/`) and SmolLM2's own. Only SmolLM2's tokenizer is the
model's; the others are *synthetic*: SmolLM2's vocabulary with the family's control strings as added tokens. So texts
are exact for every template, ids for the mechanism. Calls are read by the parser that the
template's own calls choose; scenario 7 plays each template with `model.tool_parser=action:look.at`, a form that no
template knows.
"""


async def row(name: str) -> Row:
    """A template through all scenarios, once in a process."""
    if name not in _ROWS:
        endpoint = ScriptedEndpoint(lambda seen: Reply(ids=[]), max_model_len=16_384)
        async with endpoint, HttpClient(endpoint.url) as client:
            _ROWS[name] = {each.name: await play(name, each, endpoint, client) for each in SCENARIOS}
    return _ROWS[name]


def write_page(rows: Mapping[str, Row]) -> str:
    notes = Notes()
    parts = [
        _INTRO.format(version=version("trl")),
        "## Templates\n",
        *_facts(rows),
        "\n## Scenarios\n",
        *(f"{number}. {each.name}" for number, each in enumerate(SCENARIOS, start=1)),
        "\n## Matrix\n",
        *_matrix(rows, notes),
        "\n## Why not ✓\n",
        *(f"- **{letter}** {reason}" for reason, letter in notes.letters.items()),
    ]
    return "\n".join(parts) + "\n"


class Notes:
    """Reasons, each under a letter."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def letter(self, reason: str) -> str:
        number = len(self.letters)
        name = chr(ord("a") + number % 26) * (1 + number // 26)
        return self.letters.setdefault(reason, name)


def _facts(rows: Mapping[str, Row]) -> Iterator[str]:
    heads = ["template", "tokenizer", "tools are shown by", "calls are written", "thinking", "ends of a reply"]
    heads += ["✓", "branch", "refused"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for name, cells in rows.items():
        marks = [cell.mark for cell in cells.values()]
        counts = [str(marks.count(mark)) for mark in ("✓", "branch", "refused")]
        yield "| " + " | ".join([name, *_facts_of(name, cells), *counts]) + " |"


def _facts_of(name: str, cells: Row) -> Sequence[str]:
    made = renderer(name)
    takes_tools = cells["call"].mark != "refused"
    shown = "the system message" if made.tools_in_system else "the template"
    calls = f"{made.parser.name}, as text" if made.template.calls_in_content else made.parser.name
    return [
        "SmolLM2's own" if name == REAL else "synthetic",
        shown if takes_tools else "no tools",
        calls if takes_tools else "–",
        "opened by the prompt" if made.opens_think else "–",
        " ".join(f"`{made.decode([id])}`" for id in made.stop_ids).replace("|", "\\|"),
    ]


def _matrix(rows: Mapping[str, Row], notes: Notes) -> Iterator[str]:
    yield "| template | " + " | ".join(str(number) for number in range(1, len(SCENARIOS) + 1)) + " |"
    yield "|---" * (len(SCENARIOS) + 1) + "|"
    for name, cells in rows.items():
        shown = [
            cell.mark if cell.mark == "✓" else f"{cell.mark} {notes.letter(_reason(name, cell))}"
            for cell in cells.values()
        ]
        yield f"| {name} | " + " | ".join(shown) + " |"


def _reason(name: str, cell: Cell) -> str:
    """Alike for all templates, on one line."""
    reason = cell.reason.partition("; caused by")[0].removeprefix("environment raised TemplateError: ")
    return " ".join(reason.replace(f"the chat template of {name}", "the chat template").split())


async def all_rows() -> dict[str, Row]:
    return {name: await row(name) for name in TEMPLATES}


if __name__ == "__main__":
    PAGE.write_text(write_page(asyncio.run(all_rows())), encoding="utf-8")
    print(f"wrote {PAGE}")
