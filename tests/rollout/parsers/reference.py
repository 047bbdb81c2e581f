"""Each format read again, in another way: what a strict reader makes of the text of one call. For the fuzz test.

These readers take the text of exactly one call, from its opening tag to its end, and know nothing of recovery, thinking
or spans. They raise ValueError where the text isn't a call, and give the name and the arguments, as texts where the
form carries texts.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable
from typing import Any

Read = tuple[str, dict[str, Any]]


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)


def _loads(text: str) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_pairs)
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value


def _within(text: str, pattern: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is None:
        raise ValueError(f"not of the form {pattern}")
    return match


def _json(pattern: str, key: str) -> Callable[[str], Read]:
    def read(text: str) -> Read:
        value = _loads(_within(text, pattern)[1])
        if not isinstance(value[key], dict):
            raise ValueError("no arguments")
        return value["name"], value[key]

    return read


def _named_json(pattern: str) -> Callable[[str], Read]:
    def read(text: str) -> Read:
        match = _within(text, pattern)
        return match["name"], _loads(match["json"])

    return read


def _elements(call: str, argument: str, padding: str = "") -> Callable[[str], Read]:
    def read(text: str) -> Read:
        match = _within(text, call)
        left = re.sub(argument, "", match["arguments"], flags=re.DOTALL)
        if left.strip():
            raise ValueError("something is left")
        found = re.findall(argument, match["arguments"], re.DOTALL)
        return match["name"], _pairs([(k, v.removeprefix(padding).removesuffix(padding)) for k, v in found])

    return read


def _gemma(text: str) -> Read:
    match = _within(text, r"<\|tool_call>call:([^\s{}<>]+)(\{.*\})<tool_call\|>")
    parts = match[2].split('<|"|>')
    if len(parts) % 2 == 0:
        raise ValueError("a text isn't closed")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = json.dumps(part)
        elif '"' in part or re.search(r"\s", part):
            raise ValueError("not of the form")
        else:
            parts[i] = re.sub(r"([^\s:{}\[\],<>\"']+):", lambda key: f"{json.dumps(key[1])}:", part)
            parts[i] = re.sub(r"(?<=[:\[,])None(?=[,\]}])", "null", parts[i])
    return match[1], _loads("".join(parts))


def _pythonic(text: str) -> Read:
    source = text.strip().removeprefix("<|tool_call_start|>").removesuffix("<|tool_call_end|>").strip()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = ast.parse(source.removeprefix("[").removesuffix("]").strip(" \n,"), mode="eval").body
    assert isinstance(call, ast.Call) and not call.args
    names = {"true": ast.Constant(True), "false": ast.Constant(False), "null": ast.Constant(None)}

    class Json(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return names.get(node.id, node)

    arguments = [(str(each.arg), ast.literal_eval(Json().visit(each.value))) for each in call.keywords]
    return ast.unparse(call.func), _pairs(arguments)


def _text(pattern: str, tool: str, argument: str) -> Callable[[str], Read]:
    return lambda text: (tool, {argument: _within(text, pattern)[1]})


REFERENCES: dict[str, Callable[[str], Read]] = {
    "hermes": _json(r"<tool_call>(.*)</tool_call>", "arguments"),
    "qwen3_coder": _elements(
        r"<tool_call>\s*<function=(?P<name>[^<>\n]+)>(?P<arguments>.*)</function>\s*</tool_call>",
        r"<parameter=([^<>\n]+)>(.*?)</parameter>",
        "\n",
    ),
    "llama3": _json(r"(?:<\|python_tag\|>|;)?(.*)", "parameters"),
    "mistral": _json(r"(?:\[TOOL_CALLS\]\s*\[|,)?(.*\})\s*\]?", "arguments"),
    "mistral_args": _named_json(
        r"\[TOOL_CALLS\]\s*(?P<name>[^\[\]\s{}]+)\s*(?:\[CALL_ID\][^\[\]]*)?\[ARGS\](?P<json>.*)"
    ),
    "glm": _elements(
        r"<tool_call>\s*(?P<name>[^<>\s]+)\s*(?P<arguments>(?:<.*)?)</tool_call>",
        r"<arg_key>([^<>]+)</arg_key>\s*<arg_value>(.*?)</arg_value>",
    ),
    "deepseek": _named_json(
        r"(?:<｜tool▁calls▁begin｜>)?\s*<｜tool▁call▁begin｜>function<｜tool▁sep｜>(?P<name>[^\n<]+)\n"
        r"```json\n(?P<json>.*)\n```<｜tool▁call▁end｜>(?:\s*<｜tool▁calls▁end｜>)?"
    ),
    "gemma4": _gemma,
    "harmony": _named_json(
        r"(?:<\|start\|>(?:assistant)?|assistant)?(?=[^{]*commentary)[^{]*?to=functions\.(?P<name>[^\s<]+)[^{]*?"
        r"<\|message\|>(?P<json>.*?)(?:<\|call\|>|<\|end\|>|<\|return\|>)?"
    ),
    "lfm2": _pythonic,
    "pythonic": _pythonic,
    "muse": _elements(
        r"(?:(?:<\|start\|>)?(?:assistant)?\s+to=\S+\s*<\|message\|>\s*<atem:function_calls>)?\s*"
        r'<atem:invoke name="(?P<name>[^"\n<>]+)">(?P<arguments>.*)</atem:invoke>\s*'
        r"(?:</atem:function_calls>\s*(?:<\|eom\|>|<\|eot\|>)?)?",
        r'<atem:parameter name="([^"\n<>]+)">(.*?)</atem:parameter>',
    ),
    "bash": _text(r"```bash[ \t]*\n(.*?)\n?```[ \t]*", "bash", "command"),
    "action": _text(r"<action>(.*?)</action>", "action", "action"),
}
