"""A chat endpoint that plays a script: the API behind `ctx.chat` and engine.api=chat, with faults on demand.

A request that is out of OpenAI's form is answered with 400, as are parameters that it is told not to know.
In a process of its own, it says what a list holds in turn, by the number of replies in the conversation::

    python -m agentrl.testing.chat --replies '["Hello.", "Answer: 5"]'

It prints its URL and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, Self

from aiohttp import web

Json = dict[str, Any]
ChatFault = Literal["hang", "garbage", "no_choices", "no_text", "flood", "drop", "overflow"]
FLOOD_BYTES = 20 * 1024**2
UNSUPPORTED = "Unsupported parameter: '{}' is not supported with this model."
OVERFLOW = "This model's maximum context length is 10 tokens. Please reduce the length of the messages."


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatSays:
    """A reply that is more than text."""

    message: Json
    """As it is sent, e.g. with tool_calls; the role is added."""
    finish_reason: str | None = "stop"
    num_tokens: int | None = None
    """None: the endpoint doesn't count."""


Say = Callable[[list[Json]], str | ChatSays]
"""The messages of a request → the reply."""


def calling(*calls: tuple[str, str], content: str | None = None) -> ChatSays:
    """A reply that calls tools: (name, raw arguments) of each."""
    tool_calls = [
        {"id": f"call_{place}_{name}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for place, (name, arguments) in enumerate(calls)
    ]
    return ChatSays(message={"content": content, "tool_calls": tool_calls}, finish_reason="tool_calls")


class ScriptedChat:
    """`async with ScriptedChat(say) as chat:` serves POST {chat.url}/chat/completions on loopback."""

    def __init__(
        self,
        say: Say,
        *,
        key: str | None = None,
        faults: list[int | ChatFault] | None = None,
        retry_after_s: float = 0.0,
        unknown: Collection[str] = (),
        unknown_words: str = UNSUPPORTED,
        port: int = 0,
    ) -> None:
        """`key`: other keys get 401. `faults`: what the first requests get, one each: an HTTP status, or a fault.

        `retry_after_s`: for how long errors ask to be left alone. `unknown`: parameters that are refused,
        in the words `unknown_words`.
        """
        self.say = say
        self.key = key
        self.faults = list(faults or [])
        self.retry_after_s = retry_after_s
        self.unknown = unknown
        self.unknown_words = unknown_words
        self.seen: list[Json] = []
        """The body of every request, in the order of arrival."""
        self.url = ""
        self._port = port
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_post("/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/v1"
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(body)
        given = request.headers.get("Authorization", "")
        if self.key is not None and given != f"Bearer {self.key}":
            return self._error(401, f"wrong key: {given}")
        if self.faults:
            return await self._fault(request, self.faults.pop(0))
        if (problem := problem_of(body)) is not None:
            return self._error(400, problem)
        if refused := [name for name in body if name in self.unknown]:
            return self._error(400, self.unknown_words.format(refused[0]))
        return web.json_response(_completion(self.say(body["messages"])))

    async def _fault(self, request: web.Request, fault: int | ChatFault) -> web.StreamResponse:
        if isinstance(fault, int):
            return self._error(fault, f"broken on purpose for {request.headers.get('Authorization', 'nobody')}")
        if fault == "overflow":
            return self._error(400, OVERFLOW)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "drop" and request.transport is not None:
            request.transport.abort()
        if fault == "flood":
            return web.Response(body=b" " * FLOOD_BYTES)
        bodies: Json = {"no_choices": {"choices": []}, "no_text": _completion(ChatSays(message={"content": None}))}
        return web.json_response(bodies[fault]) if fault in bodies else web.Response(text="<html>not json")

    def _error(self, status: int, words: str) -> web.Response:
        headers = {"Retry-After": f"{self.retry_after_s:g}"}
        return web.json_response({"error": {"message": words}}, status=status, headers=headers)


def problem_of(body: Json) -> str | None:
    """What the strictest of OpenAI's, vLLM's and transformers' servers would refuse in a request; None: nothing."""
    open_calls: set[str] = set()
    for place, message in enumerate(body["messages"]):
        own = {"tool": {"tool_call_id"}, "assistant": {"tool_calls", "name"}}.get(message["role"], {"name"})
        if unknown := message.keys() - {"role", "content"} - own:
            return f"messages[{place}] has unknown keys {sorted(unknown)}"
        if message["role"] == "tool":
            if message.get("tool_call_id") not in open_calls:
                return f"messages[{place}]: 'tool' must be a response to a preceding message with 'tool_calls'"
            open_calls.discard(message["tool_call_id"])
        elif open_calls:
            return f"messages[{place}]: tool_call_ids without an answer: {sorted(open_calls)}"
        for call in message.get("tool_calls", ()):
            if call.get("type") != "function" or not _is_object(call["function"].get("arguments")):
                return f"messages[{place}]: a tool call must have type 'function' and a JSON object as its arguments"
            open_calls.add(call["id"])
    wrong = [tool for tool in body.get("tools", ()) if tool.get("type") != "function" or "name" not in tool["function"]]
    return f"tools: {wrong[0]} is no function" if wrong else None


def _is_object(text: object) -> bool:
    try:
        return isinstance(text, str) and isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _completion(said: str | ChatSays) -> Json:
    says = ChatSays(message={"content": said}) if isinstance(said, str) else said
    choice = {"index": 0, "message": {"role": "assistant", **says.message}, "finish_reason": says.finish_reason}
    usage = {} if says.num_tokens is None else {"usage": {"completion_tokens": says.num_tokens}}
    return {"object": "chat.completion", "model": "scripted", "choices": [choice], **usage}


def by_number(replies: list[str | Json]) -> Say:
    """Say replies[n], texts or messages, after n replies in the conversation; the last one for all later ones."""

    def say(messages: list[Json]) -> str | ChatSays:
        said = replies[min(sum(message["role"] == "assistant" for message in messages), len(replies) - 1)]
        return said if isinstance(said, str) else ChatSays(message=said)

    return say


async def _serve(options: argparse.Namespace) -> None:
    async with ScriptedChat(by_number(json.loads(options.replies)), port=options.port) as chat:
        print(chat.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)  # until whoever started it is gone


def main() -> None:
    parser = argparse.ArgumentParser(description="A scripted chat endpoint in a process of its own.")
    parser.add_argument("--replies", default='["Hello."]', help="JSON: what to say in turn, texts or messages")
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
