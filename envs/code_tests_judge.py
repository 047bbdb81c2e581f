"""Runs in a box, alone: tests a function that a model wrote, which can't reach the tests.

Two processes. `judge` holds the tests and runs them; the function in them stands for a call to the `candidate`, which
holds the model's code alone. Arguments and results cross as JSON of plain values, so nothing that the code returns,
patches or raises can have a say in a comparison, and to end its own process only fails a test. The judge can't be
traced or read by a process of its own user (PR_SET_DUMPABLE), and signs each line that it writes with a word that it
read from its stdin.

The judge reads one JSON object: word, source (of this file), prompt, entry_point, code, tests, test_timeout_s,
total_timeout_s, memory_bytes. It writes a line "WORD {}" before the candidate starts, then for each test
"WORD {"test": i, "passed": true, "message": ""}".
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import json
import os
import resource
import select
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PR_SET_DUMPABLE = 4
MAX_MESSAGE_CHARACTERS, MAX_SHOWN_CHARACTERS = 400, 100
MAX_REPLY_BYTES = 1 << 24
SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


# ------------------------------------------------------------------------------------------ plain values as JSON


class Opaque:
    """Stands for a result that is no plain value. It equals nothing."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind}, which is no plain value>"


def to_json(value: Any) -> Any:
    """A value for the other side. What is no plain value crosses as the name of its type."""
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str.__str__(value)
    if isinstance(value, int):
        return {"int": int.__format__(value, "x")}  # decimal digits are limited
    if isinstance(value, float):
        return {"float": float.__repr__(value)}
    if isinstance(value, complex):
        return {"complex": [to_json(value.real), to_json(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, dict):
        return {"dict": [[to_json(key), to_json(each)] for key, each in dict.items(value)]}
    for kind in SEQUENCES.values():
        if isinstance(value, kind):
            return {kind.__name__: [to_json(each) for each in kind.__iter__(value)]}
    return {"opaque": type(value).__name__}


def from_json(value: Any) -> Any:
    """Raises ValueError and its like for what `to_json` doesn't write."""
    if value is None or isinstance(value, (bool, str)):
        return value
    ((kind, content),) = value.items()
    if kind == "dict":
        return {from_json(key): from_json(each) for key, each in content}
    if kind == "complex":
        return complex(*map(from_json, content))
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "int":
        return int(content, 16)
    if kind in ("float", "opaque"):
        return {"float": float, "opaque": Opaque}[kind](content)
    return SEQUENCES[kind](map(from_json, content))


# ------------------------------------------------------------------------------------------ the candidate's process


def candidate() -> None:
    """Answer calls: one JSON line each way. The first line in is the code, its answer says whether it loads."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nothing, file)
    sys.setrecursionlimit(5000)
    function = None
    for line in requests:
        request = json.loads(line)
        if function is None:
            function, reply = _loaded(request)
        else:
            reply = _called(function, request)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


def _loaded(request: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    limit = request["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    names: dict[str, Any] = {"__name__": "solution"}
    try:
        _define(request["prompt"], request["code"], request["entry_point"], names)
        function = names[request["entry_point"]]
        if not callable(function):
            raise TypeError(f"{request['entry_point']} is no function")
        return function, {}
    except BaseException as error:
        return None, {"raised": type(error).__name__, "message": _words(error)}


def _define(prompt: str, code: str, entry_point: str, names: dict[str, Any]) -> None:
    """Run the code. What the prompt defines besides is there too; code without the function goes on with the prompt."""
    if not _defines(code, entry_point):
        code = prompt + code
    elif _defines(prompt, entry_point):
        exec(compile(prompt, "<prompt>", "exec"), names)
        del names[entry_point]
    exec(compile(code, "<solution>", "exec"), names)


def _defines(code: str, name: str) -> bool:
    """Does this text, as it is, define the name at its top level?"""
    try:
        body = ast.parse(code).body
    except SyntaxError:
        return False
    defined = {getattr(node, "name", None) for node in body}
    for node in body:
        if isinstance(node, ast.Assign):
            defined |= {getattr(target, "id", None) for target in node.targets}
    return name in defined


def _called(function: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    try:
        arguments, named = from_json(request["arguments"]), from_json(request["named"])
        value = function(*arguments, **named)
        return {"value": to_json(value), "arguments": to_json(arguments)}
    except BaseException as error:
        return {"raised": type(error).__name__, "message": _words(error)}


def _words(error: BaseException) -> str:
    try:
        return str(error)[:MAX_MESSAGE_CHARACTERS]
    except BaseException:
        return ""


# ------------------------------------------------------------------------------------------ the judge's process


class Failed(BaseException):
    """The candidate ended, took too long or said something that is no answer. No test can catch it, so it fails."""


class Candidate:
    """The other process, as long as it answers."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.until = 0.0
        self.last_call = ""
        self.last_error: Exception | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the function returns or raises. Arguments that are lists, dicts or sets change as it changed them."""
        words = [_shown(each) for each in arguments] + [f"{name}={_shown(each)}" for name, each in named.items()]
        self.last_call = f"{self.request['entry_point']}({', '.join(words)})"
        reply = self.ask({"arguments": to_json(list(arguments)), "named": to_json(named)})
        if "raised" in reply:
            self.last_call += f" raised {reply['raised']}: {reply['message']}"
            kind: Any = getattr(builtins, str(reply["raised"]), None)
            is_plain = isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, UnicodeError)
            self.last_error = (kind if is_plain else RuntimeError)(reply["message"])
            raise self.last_error
        value = from_json(reply["value"])
        for mine, theirs in zip(arguments, from_json(reply["arguments"])):  # noqa: B905 - Python 3.7
            _take_over(mine, theirs)
        self.last_call += f" gave {_shown(value)}"
        return value

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Raises Failed; the next test gets a new process then."""
        try:
            if self.process is None:
                self.process = self._start()
                fault = self._exchange({key: self.request[key] for key in HANDED_ON})
                if "raised" in fault:
                    raise Failed(f"the code doesn't load: {fault['raised']}: {fault['message']}")
            return self._exchange(request)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            self.end()
            raise Failed(f"no answer: {type(error).__name__}: {error}") from None
        except Failed:
            self.end()
            raise

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()  # type: ignore[union-attr]
            self.process.stdout.close()  # type: ignore[union-attr]
            self.process = None

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-c", self.request["source"], "candidate"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, start_new_session=True
        )  # fmt: skip

    def _exchange(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self.process
        assert process is not None and process.stdin is not None and process.stdout is not None
        line = memoryview(json.dumps(request).encode() + b"\n")
        reply = bytearray()
        while not reply.endswith(b"\n"):
            room_s = self.until - time.monotonic()
            if room_s <= 0:
                raise Failed("it took too long")
            readable, writable, _ = select.select([process.stdout], [process.stdin] if line else [], [], room_s)
            if writable:
                line = line[os.write(process.stdin.fileno(), line[: select.PIPE_BUF]) :]
            if readable:
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    raise Failed("its process ended")
                reply += part
            if len(reply) > MAX_REPLY_BYTES:
                raise Failed("its result is too long")
        answer = json.loads(bytes(reply))
        if not isinstance(answer, dict):
            raise Failed("its answer is none")
        return answer


HANDED_ON = ("prompt", "code", "entry_point", "memory_bytes")


def judge() -> None:
    """Run the tests of the request on stdin, in order, in one namespace."""
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    sys.stdout = sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")  # tests may print

    def tell(**what: Any) -> None:
        out.write(f"{request['word']} {json.dumps(what)}\n")
        out.flush()

    tell()
    function = Candidate(request)
    names = _names_of_tests(request, function)
    until = time.monotonic() + request["total_timeout_s"]
    for number, test in enumerate(request["tests"]):
        function.until = min(until, time.monotonic() + request["test_timeout_s"])
        message = _run_test(test, names, function)
        tell(test=number, passed=message is None, message=(message or "")[:MAX_MESSAGE_CHARACTERS])
    function.end()


def _names_of_tests(request: dict[str, Any], function: Candidate) -> dict[str, Any]:
    """What tests may use: the function under both of its names, and what the prompt defines."""
    names: dict[str, Any] = {"__name__": "tests"}
    if _defines(request["prompt"], request["entry_point"]):
        exec(compile(request["prompt"], "<prompt>", "exec"), names)
    names["candidate"] = names[request["entry_point"]] = function
    return names


def _run_test(test: str, names: dict[str, Any], function: Candidate) -> str | None:
    """Why it failed; None: it passed."""
    function.last_call = ""
    try:
        exec(compile(test, "<test>", "exec"), names)
        return None
    except Failed as error:
        return f"{function.last_call}: {error}"
    except BaseException as error:  # of the code or of the test: either way it isn't passed
        is_told = isinstance(error, AssertionError) or error is function.last_error
        return function.last_call + ("" if is_told else f" ({type(error).__name__}: {_words(error)})")


def _take_over(mine: Any, theirs: Any) -> None:
    if isinstance(mine, list) and isinstance(theirs, list):
        mine[:] = theirs
    elif isinstance(mine, (dict, set)) and type(mine) is type(theirs):
        mine.clear()
        mine.update(theirs)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # e.g. a number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= MAX_SHOWN_CHARACTERS else text[:MAX_SHOWN_CHARACTERS] + "…"


if __name__ == "__main__":
    {"judge": judge, "candidate": candidate}[sys.argv[1]]()
