"""`@tool(isolated=True)`: the process behind a time-out is gone (R4), and nothing that it does reaches the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.rollout.renderer import Renderer
from agentrl.testing.toy import Toy
from agentrl.tool import FunctionTool, ToolContext, tool
from agentrl.types import CallStatus, ParsedCall, StopReason, ToolCall
from tests.rollout import isolated_tools
from tests.rollout.loops import TextClient, call, make_loop, play

TOOLS = tuple(value for value in vars(isolated_tools).values() if isinstance(value, FunctionTool))


class Workshop(Toy):
    tools = TOOLS


async def use(renderer: Renderer, name: str, arguments: dict[str, Any], **limits: Any) -> ParsedCall:
    """What became of one call in an episode that went on to its end."""
    client = TextClient(renderer, call(name, json.dumps(arguments)), "red")
    sample = await play(make_loop(renderer, client, env=Workshop, window=20_000, **{"tool_timeout_s": 30.0, **limits}))
    assert sample.trajectory.stop_reason is StopReason.COMPLETED
    return sample.trajectory.turns[0].tool_calls[0]


def is_alive(pid: int) -> bool:
    """Zombies count as gone: they run no code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    until = time.monotonic() + 10
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not is_alive(pid)


async def test_R4_a_tool_that_hangs_for_ever_is_gone_with_what_it_started(renderer: Renderer, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = await use(renderer, "hang", {"pid_file": str(pids)}, tool_timeout_s=5.0)
    assert done.status is CallStatus.TIMEOUT and "took longer than 5 s" in (done.result or "")
    own, child = map(int, pids.read_text().split())
    assert not is_alive(own) and ends(child)


async def test_R4_the_end_of_the_episode_ends_the_tool(renderer: Renderer, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    client = TextClient(renderer, call("sleep", json.dumps({"seconds": 3600, "pid_file": str(pid)})))
    loop = make_loop(renderer, client, env=Workshop, episode_timeout_s=3.0, tool_timeout_s=60.0)
    sample = await play(loop)
    assert sample.trajectory.stop_reason in (StopReason.EPISODE_TIMEOUT, StopReason.MAX_TURNS)
    assert loop.threads.num_abandoned == 0 and not is_alive(int(pid.read_text()))


def test_R4_a_tool_ends_when_the_run_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio\nfrom agentrl.tool import ToolContext\nfrom tests.rollout.isolated_tools import sleep\n"
        "ctx = ToolContext(sandbox=None, seed=0, deadline=0.0)\n"
        f"asyncio.run(sleep.call({{'seconds': 3600, 'pid_file': {str(tmp_path / 'pid')!r}}}, ctx))"
    )
    run = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    try:
        until = time.monotonic() + 30
        while not ((tmp_path / "pid").is_file() and (tmp_path / "pid").read_text()) and time.monotonic() < until:
            time.sleep(0.02)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == -signal.SIGKILL and ends(int((tmp_path / "pid").read_text()))


async def test_sync_and_async_functions_give_their_results(renderer: Renderer) -> None:
    assert (await use(renderer, "add", {"a": "2"})).result == "3"  # coerced to the schema, with the default
    client = TextClient(renderer, call("add_later", '{"a": 2, "b": 3}'))
    sample = await play(make_loop(renderer, client, env=Workshop, tool_timeout_s=30.0))
    (turn,) = sample.trajectory.turns
    assert turn.tool_calls[0].result == "5" and sample.trajectory.stop_reason is StopReason.COMPLETED


async def test_arguments_are_checked_before_a_process_starts(renderer: Renderer) -> None:
    done = await use(renderer, "add", {"a": "many"})
    assert done.status is CallStatus.INVALID_ARGUMENTS and done.arguments is None


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("refuse", {"reason": "no luck"}, "ValueError: no luck"),
        ("crash", {}, "was killed by SIGSEGV"),
        ("leave", {"code": 3}, "ended with exit code 3 before it gave a result: bye bye"),
        ("forge", {"text": '{"content": 7, "is_error": false, "terminated": false}'}, "no result"),
        ("forge", {"text": "[", "times": 100_000}, "no result"),
        ("forge", {"text": "cos\nsystem\n(S'true'\ntR."}, "no result"),
        ("flood", {"num_bytes": 9_000_000}, "more than 8388608 bytes; return less"),
    ],
)
async def test_what_goes_wrong_in_the_process_is_an_error_that_the_model_sees(
    renderer: Renderer, name: str, arguments: dict[str, Any], says: str
) -> None:
    done = await use(renderer, name, arguments)
    assert done.status is CallStatus.ERROR and says in (done.error or "") and says in (done.result or "")


async def test_a_flood_of_prints_neither_blocks_nor_gets_into_the_result(renderer: Renderer) -> None:
    assert (await use(renderer, "shout", {"num_bytes": 3_000_000})).result == "done"


async def test_a_result_below_the_cap_comes_whole(renderer: Renderer) -> None:
    assert (await use(renderer, "flood", {"num_bytes": 900_000})).result == "x" * 900_000


async def test_keys_of_the_run_stay_out_of_the_process(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    done = await use(renderer, "look", {"name": "SECRET_KEY"})
    assert (done.result or "").startswith("None ") and (done.result or "").endswith(" None")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters()))
def test_any_text_crosses_the_pipe(text: str) -> None:
    ctx = ToolContext(sandbox=None, seed=0, deadline=0.0)
    assert asyncio.run(isolated_tools.echo.call({"text": text}, ctx)).content == text


async def test_not_more_processes_than_allowed_at_once(renderer: Renderer, tmp_path: Path) -> None:
    loop = make_loop(renderer, TextClient(renderer, "red"), env=Workshop, max_tool_processes=1, tool_timeout_s=4.0)
    ctx = ToolContext(sandbox=None, seed=0, deadline=time.monotonic() + 100)
    tools = {tool.name: tool for tool in TOOLS}

    async def sleep_a_while(number: int) -> ParsedCall:
        arguments = {"seconds": 1.0, "pid_file": str(tmp_path / str(number))}
        parsed = ParsedCall(
            call=_tool_call("sleep", arguments), status=CallStatus.NOT_RUN, span=(0, 0), arguments=arguments
        )
        await loop.tool_runner.run(parsed, tools, ctx)
        return parsed

    done = await asyncio.gather(*(sleep_a_while(number) for number in range(5)))
    # One after the other they take longer than the limit of one; waiting isn't counted.
    assert [parsed.status for parsed in done] == [CallStatus.OK] * 5
    assert len({(tmp_path / str(number)).read_text() for number in range(5)} - {str(os.getpid())}) == 5


def _tool_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id="call_0", name=name, arguments=json.dumps(arguments))


def test_what_a_process_cant_find_by_name_is_refused_where_it_is_defined() -> None:
    def inner(text: str) -> str:
        """Say it."""
        return text

    with pytest.raises(TypeError, match="define it with def at module level"):
        tool(isolated=True)(inner)
    with pytest.raises(TypeError, match="at module level"):
        tool(isolated=True)(lambda text: text)
    with pytest.raises(TypeError, match="at module level"):
        tool(isolated=True)(_Methods.method)


class _Methods:
    @staticmethod
    def method(text: str) -> str:
        """Say it."""
        return text


def test_a_tool_of_a_script_is_refused_where_it_is_defined(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from agentrl.tool import tool\n@tool(isolated=True)\ndef say(text: str) -> str:\n    return text\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert "TypeError: isolated tool say: a child process can't import a script; move it into a module" in done.stderr
