"""Floods and odd bytes of a box, on their way to the model and into the record."""

from __future__ import annotations

from agentrl.config_sandbox import SandboxConfig
from agentrl.rollout.boxes import Boxes
from agentrl.rollout.renderer import Renderer
from agentrl.sandbox import SandboxSpec
from agentrl.testing.toy import Toy
from agentrl.tools.bash import bash
from agentrl.types import CallStatus, Task, Trajectory
from tests.rollout.loops import TextClient, call, make_loop, play


class Shell(Toy):
    tools = (bash,)

    def sandbox(self, task: Task) -> SandboxSpec:
        return SandboxSpec()


async def played(renderer: Renderer, command: str) -> tuple[Trajectory, str]:
    """An episode with one command, and what the model read after it."""
    client = TextClient(renderer, call("bash", f'{{"command": "{command}"}}'), "red")
    config = SandboxConfig(backend="local", options={"unsafe": True}, warm=0)
    async with Boxes(config, run="test") as boxes:
        loop = make_loop(renderer, client, env=Shell, boxes=boxes, window=50_000, max_observation_tokens=200)
        trajectory = (await play(loop)).trajectory
    return trajectory, renderer.decode(trajectory.turns[1].prompt_ids)


async def test_E07_the_model_reads_head_and_tail_and_how_much_is_missing(renderer: Renderer) -> None:
    trajectory, read = await played(renderer, "echo first; yes | head -c 200000000; echo last")
    (parsed,) = trajectory.turns[0].tool_calls
    assert parsed.status is CallStatus.OK and len(parsed.result or "") < 13_000
    assert "first\n" in read and "last\n" in read and "199988011 bytes of the output are left out" in read
    assert len(trajectory.turns[1].prompt_ids) < 300


async def test_G12_the_model_reads_replacements_and_the_record_keeps_the_bytes(renderer: Renderer) -> None:
    trajectory, read = await played(renderer, "printf '\\\\377\\\\376\\\\200abc\\\\000'; printf '\\\\303\\\\244'")
    (parsed,) = trajectory.turns[0].tool_calls
    assert (parsed.result or "").encode("utf-8", "surrogateescape") == b"\xff\xfe\x80abc\0\xc3\xa4"
    assert "\ufffd\ufffd\ufffdabc\0ä" in read and trajectory.turns[1].message.text == "red"
