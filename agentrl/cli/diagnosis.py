"""How `agentrl doctor` shows what was found out about a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.rollout.probe import TemplateFacts
    from agentrl.rollout.renderer import Renderer

MAX_QUOTED_CHARACTERS = 100
SYMBOLS = {"ok": "✓", "branch": "branch", "refused": "refused"}
COLOURS = {"ok": "green", "branch": "yellow", "refused": "red"}


def print_diagnosis(model: str, renderer: Renderer, facts: TemplateFacts) -> None:
    """The facts, each scenario in each mode, and the verdict."""
    console = Console(highlight=False)
    stops = ", ".join(f"{id} {renderer.decode([id])}" for id in renderer.stop_ids)
    console.print(Text(f"{visible(model)}  template {renderer.template_hash[:12]}  stop ids {visible(stops)}"))
    console.print(_facts_table(renderer, facts))
    console.print(_scenario_table(facts))
    for line in _verdict(facts):
        console.print(Text(visible(line)), soft_wrap=True)


def _facts_table(renderer: Renderer, facts: TemplateFacts) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, text in _facts(renderer, facts):
        table.add_row(Text(name), Text(visible(text)))
    return table


def _scenario_table(facts: TemplateFacts) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("scenario", "append", "rerender", "reason"):
        table.add_column(name, overflow="fold")
    last = ""
    for one in facts.scenarios:
        outcomes = [Text(SYMBOLS[outcome], style=COLOURS[outcome]) for outcome in (one.append, one.rerender)]
        reason = visible(" ".join((one.append_reason or one.rerender_reason or "").splitlines()))
        table.add_row(Text(one.name), *outcomes, Text("the same" if reason and reason == last else reason))
        last = reason
    return table


def _facts(renderer: Renderer, facts: TemplateFacts) -> Iterator[tuple[str, str]]:
    """(what, how) of each fact."""
    yield "end of a reply", _end(facts)
    yield "without system message", _quoted(facts.default_system) if facts.default_system else "nothing is added"
    yield "white space and quotes", ", ".join(f"{role} {fate}" for role, fate in facts.content.items())
    yield "tools", facts.tools + ("; the system message describes them" if renderer.tools_in_system else "")
    as_text = "; calls are written as text of the reply" if renderer.template.calls_in_content else ""
    yield "arguments of a call", facts.arguments + as_text
    yield "several calls", facts.several_calls
    yield "text beside a call", facts.text_beside_call
    yield "results of one reply", facts.consecutive_tools
    yield "tool message alone", facts.lone_tool
    yield "thinking", _thinking(facts)
    yield "first token", _bos(facts)
    if facts.unknown_control:
        yield "not in the vocabulary", f"{', '.join(facts.unknown_control)}: ordinary text to this tokenizer"
    yield "date", "today's is printed: prompts of another day differ" if facts.prints_date else "not printed"


def _end(facts: TemplateFacts) -> str:
    after = repr(facts.after_stop) if facts.after_stop else "nothing"
    text = {
        "model": f"{facts.stop}, which the model samples; the template adds {after}",
        "template": f"{facts.stop}, at which neither tokenizer nor generation config stop; agentrl does",
        "next message": f"{facts.stop}, which opens the next message, and which the model samples",
        "nobody": "not marked",
    }[facts.stop_owner]
    if facts.stop_in_history != facts.stop:
        text += f"; {facts.stop_in_history or 'nothing'} once a user message follows"
    if facts.stop_after_call not in (facts.stop, None):
        text += f"; {facts.stop_after_call} after a call"
    return text


def _thinking(facts: TemplateFacts) -> str:
    if facts.thinking is None:
        return "never shown"
    shown = (
        f"{facts.thinking}: {facts.thinking_at_result} at the next result, {facts.thinking_at_user} at the next user"
    )
    return shown + ("; prompts open a think block" if facts.opens_thinking else "")


def _bos(facts: TemplateFacts) -> str:
    if facts.bos is None:
        return "the tokenizer adds none"
    if facts.double_bos:
        return f"{facts.bos} by the template and by the tokenizer; agentrl doesn't let it be doubled"
    return f"the tokenizer would add {facts.bos}, the template doesn't write it: prompts begin without it"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED_CHARACTERS else f"{text[:MAX_QUOTED_CHARACTERS]}…")


def _verdict(facts: TemplateFacts) -> Iterator[str]:
    if facts.append_refused is None:
        yield "append: can be trained"
    elif facts.append_refused_without_tools is None:
        yield f"append: can be trained without tools only; with tools refused: {facts.append_refused}"
    else:
        yield f"append: refused: {facts.append_refused_without_tools}"
    refused = facts.refused("rerender")
    num_branches = sum(one.rerender == "branch" for one in facts.scenarios)
    yield (
        f"rerender: refused: {refused}"
        if refused
        else (f"rerender: can be trained; {num_branches} of {len(facts.scenarios)} scenarios make branches")
    )
