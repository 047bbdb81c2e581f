"""Runs in a box, alone: one Python interpreter that keeps its state, and how a call reaches it.

`serve` is the interpreter; it waits at the Unix socket `socket` in its folder. `call` hands it its own stdin, with the
code, and its own stdout, on which the code then prints. So the code writes where a shell's command would, and so does
what it starts. Exit codes of `call`: 0, RAISED, NO_INTERPRETER, ENDED.
"""

from __future__ import annotations

import array
import ast
import linecache
import os
import socket
import sys
import traceback
import types
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RAISED, NO_INTERPRETER, ENDED = 1, 97, 98
MAX_FRAMES = 8
"""Of a traceback, the innermost ones."""
MAX_CODE_BYTES = 1 << 24


def serve(folder: str) -> None:
    """Run code until somebody ends the process."""
    home, pid = os.getcwd(), os.getpid()
    door = _listen(folder)
    os.chdir(home)
    sys.path.insert(0, "")
    sys.argv = [""]
    main = types.ModuleType("__main__")  # in which the code runs, so that what it defines can be pickled
    sys.modules["__main__"] = main
    number = 0
    while True:
        caller, _ = door.accept()
        number += 1
        status = _answer(caller, main.__dict__, number)
        if os.getpid() != pid:  # a fork of the code came out here too
            os._exit(0)
        with suppress(OSError):  # the caller is gone
            caller.sendall(status)
        caller.close()


def call(folder: str) -> int:
    """Have stdin run by the interpreter, with this process's stdout."""
    os.chdir(folder)
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect("socket")
    except OSError:
        return NO_INTERPRETER
    files = array.array("i", [0, 1])
    try:
        line.sendmsg([b"r"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        return {b"0": 0, b"1": RAISED}.get(line.recv(1), ENDED)
    except OSError:
        return ENDED


def _listen(folder: str) -> socket.socket:
    """At a name that appears when it can be called; a relative one, for a socket's name must be short."""
    os.chdir(folder)
    door = socket.socket(socket.AF_UNIX)
    door.bind("new")
    door.listen(8)
    os.rename("new", "socket")
    return door


def _answer(caller: socket.socket, names: dict[str, Any], number: int) -> bytes:
    files = array.array("i")
    _, extra, _, _ = caller.recvmsg(1, socket.CMSG_SPACE(2 * files.itemsize))
    for _, _, data in extra:
        files.frombytes(data)
    if len(files) != 2:
        return b"1"
    source = _read_all(files[0])
    for place in (1, 2):
        os.dup2(files[1], place)
    os.close(files[1])
    is_fine = _run(source, names, f"<cell {number}>")
    _flush()
    nothing = os.open(os.devnull, os.O_WRONLY)
    for place in (1, 2):
        os.dup2(nothing, place)
    os.close(nothing)
    return b"0" if is_fine else b"1"


def _read_all(file: int) -> str:
    with os.fdopen(file, "rb") as code:
        return code.read(MAX_CODE_BYTES).decode("utf-8", "replace")


def _run(source: str, names: dict[str, Any], name: str) -> bool:
    """Run; the value of a last expression is shown as in an interactive session. Did nothing raise?"""
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    try:
        tree = ast.parse(source, name)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            sys.displayhook(eval(compile(ast.Expression(last.value), name, "eval"), names))
        return True
    except BaseException as error:  # exit() too: the interpreter stays
        _flush()
        os.write(2, _short(error).encode("utf-8", "backslashreplace"))
        return False


def _short(error: BaseException) -> str:
    """The traceback without this file's frames, and of a long one the last."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    if isinstance(error, SyntaxError) and trace is not None and trace.tb_frame.f_code.co_filename == ast.__file__:
        trace = None  # of the code itself
    return "".join(traceback.format_exception(type(error), error, trace, limit=-MAX_FRAMES))


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the code may have put anything there
            stream.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(call(sys.argv[2]))
