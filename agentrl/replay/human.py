"""A person at the keyboard as the policy."""

from __future__ import annotations

import os
import sys

from agentrl.environment import Environment
from agentrl.errors import RolloutFault
from agentrl.rollout.client import Generation, SamplingParams
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import written_reply
from agentrl.rollout.threads import Threads
from agentrl.types import Message, Sampler, StopReason
from agentrl.visible import visible


class HumanSampler:
    """Shows what is new in the conversation and reads a reply from standard input.

    A thread waits for the keyboard: leases, servers and Ctrl-C are heeded meanwhile.
    """

    def __init__(self, env: Environment, renderer: Renderer) -> None:
        self.env = env
        self.renderer = renderer
        self._num_shown = 0
        self._threads = Threads(max_abandoned=0)
        self._typed = b""
        """What came beyond the line that was read last."""

    async def sample(
        self, ids: list[int], messages: list[Message], params: SamplingParams, request_id: str
    ) -> Generation:
        for message in messages[self._num_shown :]:
            calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
            print(visible(f"{message.role}: {' '.join([message.text, *calls])}"))
        self._num_shown = len(messages) + 1  # the reply is known to who wrote it
        reply = Message(role="assistant", content=await self._threads.call(self._read))
        return written_reply(reply, self.renderer, params, request_id, Sampler.HUMAN)

    def _read(self) -> str:
        """Lines up to an empty one. Raises RolloutFault at the end of the input."""
        tools = ", ".join(tool.name for tool in self.env.tools)
        calls = f"; call {tools} as {self.renderer.call_form}" if tools else ""
        print(f"your reply (an empty line sends it, Ctrl-D gives up{calls}):", flush=True)
        lines: list[str] = []
        while line := self._read_line():
            if line == "\n" and lines:
                return "\n".join(lines)
            lines.append(line.rstrip("\n"))
        raise RolloutFault.of(StopReason.CANCELLED, "the person at the keyboard gave up")

    def _read_line(self) -> str:
        """With its end; empty at the end of the input.

        Past `sys.stdin`, whose lock a thread that still waits when the process ends would hold for ever.
        """
        while b"\n" not in self._typed and (more := os.read(sys.stdin.fileno(), 4096)):
            self._typed += more
        line, end, self._typed = self._typed.partition(b"\n")
        return (line + end).decode("utf-8", "surrogateescape")
