"""`view`, `edit` and `search` in real boxes."""

from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.sandboxes.local import LocalBackend, LocalOptions
from agentrl.tool import ToolContext
from agentrl.tools.edit import edit
from agentrl.tools.search import MAX_MATCHES, search
from agentrl.tools.submit import submit
from agentrl.tools.view import MAX_FILE_BYTES, View, view
from agentrl.types import CallStatus
from tests.tools.use import say, use


async def fails(tool: object, box: Sandbox, **arguments: object) -> str:
    parsed = await use(tool, box, **arguments)  # type: ignore[arg-type]
    assert parsed.status is CallStatus.ERROR
    return parsed.result or ""


# ------------------------------------------------------------------------------------------ view


async def test_a_file_is_shown_with_line_numbers_and_a_range(box: Sandbox) -> None:
    await box.write("src/a.py", b"x = 1\ny = 2\n\nz = 3")
    assert await say(view, box, path="src/a.py") == "     1\tx = 1\n     2\ty = 2\n     3\t\n     4\tz = 3"
    assert await say(view, box, path="src/a.py", first=2, last=2) == "     2\ty = 2\n[src/a.py has 4 lines]"
    assert await say(view, box, path="src/a.py", first=3, last=99) == "     3\t\n     4\tz = 3"
    assert "src/a.py has lines 1 to 4" in await fails(view, box, path="src/a.py", first=9)
    assert "src/a.py has lines 1 to 4" in await fails(view, box, path="src/a.py", first=0)


async def test_folders_are_listed_and_what_cannot_be_shown_is_told(box: Sandbox) -> None:
    await box.write("src/deep/er/b.py", b"")
    await box.write("src/a.py", b"")
    await box.write("binary", b"a\0b")
    await box.write("large", b"x" * (MAX_FILE_BYTES + 1))
    assert (await say(view, box, path=".")).splitlines() == ["binary", "large", "src/", "src/a.py", "src/deep/"]
    assert await say(view, box, path="src/a.py") == "[src/a.py is empty]"
    assert await say(view, box, path="binary") == "[binary is binary: 3 bytes]"
    assert "larger than" in await fails(view, box, path="large")
    assert await fails(view, box, path="nowhere") == "Error: there is no file nowhere"
    await box.exec("mkdir nothing", timeout_s=10)
    assert await say(view, box, path="nothing") == "[nothing is empty]"


async def test_E07_a_long_file_is_shown_in_parts(box: Sandbox) -> None:
    await box.write("long", b"".join(b"line %d\n" % number for number in range(1, 1001)) + b"y" * 10**6)
    tool = View(max_output_bytes=1000)
    text = await say(tool, box, path="long")
    shown = text.splitlines()[:-1]
    assert len(text) < 1100 and shown[-1].split("\t")[1] == f"line {len(shown)}"
    assert f"[lines {len(shown) + 1} to 1001 are left out, of 1001; go on with first={len(shown) + 1}]" in text
    last = await say(tool, box, path="long", first=1001)
    assert len(last) < 2100 and last.endswith(" [998000 more bytes]")


async def test_G12_a_file_in_latin_1_can_be_seen_and_edited(box: Sandbox) -> None:
    await box.write("a.txt", "grün\nblau\n".encode("latin-1"))
    assert (await say(view, box, path="a.txt")).encode("utf-8", "surrogateescape") == b"     1\tgr\xfcn\n     2\tblau"
    await say(edit, box, path="a.txt", old="blau", new="rot")
    assert await box.read("a.txt") == "grün\nrot\n".encode("latin-1")


# ------------------------------------------------------------------------------------------ edit


async def test_one_passage_is_replaced_and_its_place_is_shown(box: Sandbox) -> None:
    await box.write("a.py", b"a\nb\nc\nd\ne\nf\ng\n", executable=True)
    text = await say(edit, box, path="a.py", old="d\n", new="D\nDD\n")
    assert await box.read("a.py") == b"a\nb\nc\nD\nDD\ne\nf\ng\n"
    assert text.splitlines()[0] == "     1\ta" and "     5\tDD" in text and text.endswith("[a.py is changed]")
    assert (await box.exec("test -x a.py", timeout_s=10)).exit_code == 0
    await say(edit, box, path="a.py", old="b\nc\n", new="")
    assert await box.read("a.py") == b"a\nD\nDD\ne\nf\ng\n"


async def test_what_does_not_fit_is_told_so_that_it_can_be_mended(box: Sandbox) -> None:
    await box.write("a.py", b"def f(x):\n    return x + 1\n\ndef g(x):\n    return x + 1\n")
    several = await fails(edit, box, path="a.py", old="return x + 1", new="return x")
    assert "occurs 2 times in a.py, at lines 2, 5" in several
    none = await fails(edit, box, path="a.py", old="def  g(x):\n    return x+1", new="")
    assert "is not in a.py" in none and "     4\tdef g(x):\n     5\t    return x + 1" in none
    assert "No line of it is like" in await fails(edit, box, path="a.py", old="import numpy", new="")
    assert "there is no file b.py" in await fails(edit, box, path="b.py", old="x", new="y")
    assert "is there already" in await fails(edit, box, path="a.py", new="x")
    assert "not both" in await fails(edit, box, path="a.py", new="x", old="y", after_line=0)
    assert "the same" in await fails(edit, box, path="a.py", new="x", old="x")
    assert "is empty" in await fails(edit, box, path="a.py", new="x", old="")
    assert await box.read("a.py") == b"def f(x):\n    return x + 1\n\ndef g(x):\n    return x + 1\n"


async def test_lines_are_inserted_and_files_are_made(box: Sandbox) -> None:
    assert await say(edit, box, path="new/a.txt", new="one\n") == "[new/a.txt is made, with 1 lines]"
    await say(edit, box, path="new/a.txt", new="zero", after_line=0)
    await say(edit, box, path="new/a.txt", new="two\nthree", after_line=2)
    assert await box.read("new/a.txt") == b"zero\none\ntwo\nthree\n"
    assert "has 4 lines; after_line is 0 to 4, not 5" in await fails(edit, box, path="new/a.txt", new="x", after_line=5)
    await box.write("open", b"no end")
    await say(edit, box, path="open", new="more", after_line=1)
    assert await box.read("open") == b"no end\nmore\n"


async def test_a_file_with_line_ends_of_windows_keeps_them(box: Sandbox) -> None:
    await box.write("a.txt", b"one\r\ntwo\r\nthree\r\n")
    await say(edit, box, path="a.txt", old="one\ntwo\n", new="1\n2\n")
    await say(edit, box, path="a.txt", new="0", after_line=0)
    assert await box.read("a.txt") == b"0\r\n1\r\n2\r\nthree\r\n"


# ------------------------------------------------------------------------------------------ search


async def fill(box: Sandbox) -> None:
    files = {
        "src/b.py": b"def b():\n    return 1\r\n",
        "src/a.py": b"def a():\n    return 22",
        "src.txt": b"def c\n",
        ".hidden/x.py": b"def h():\n",
        ".git/config.py": b"def no():\n",
        "binary.py": b"def x\0():\n",
        "latin.py": b"def \xfc():\n",
    }
    for path, content in files.items():
        await box.write(path, content)


async def test_matching_lines_are_found(box: Sandbox) -> None:
    await fill(box)
    returns = "src/a.py:2:    return 22\nsrc/b.py:2:    return 1"
    found = await say(search, box, pattern=r"^def \w+\(")
    assert found.splitlines() == [".hidden/x.py:1:def h():", "src/a.py:1:def a():", "src/b.py:1:def b():"]
    assert await say(search, box, pattern=r"return \d+", path="src") == returns
    assert await say(search, box, pattern="def", path="src.txt") == "src.txt:1:def c"
    assert await say(search, box, pattern="def c", glob="*.py") == "[no line matches]"
    assert "regex parse error" in await fails(search, box, pattern="(")
    assert "No such file" in await fails(search, box, pattern="x", path="nowhere")
    assert await say(search, box, pattern="-c|--help", path="src") == "[no line matches]"


async def test_E07_of_many_matches_the_first_are_shown(box: Sandbox) -> None:
    await box.write("many", b"match\n" * 10**5)
    await box.write("wide", b"match" * 10**6)
    text = await say(search, box, pattern="match", path="many")
    assert text.splitlines()[MAX_MATCHES - 1 :] == [
        f"many:{MAX_MATCHES}:match", f"[only the first {MAX_MATCHES} matches; narrow the pattern or the path]"
    ]  # fmt: skip
    assert len(await say(search, box, pattern="match", path="wide")) < 500


async def test_ripgrep_and_python_find_the_same(tmp_path: Path) -> None:
    """The tool takes ripgrep where the box has it."""
    if shutil.which("rg") is None:
        pytest.skip("there is no ripgrep here")
    backend = LocalBackend(LocalOptions(unsafe=True), run="test")
    answers = []
    for name, programs in (("with", ["rg"]), ("without", ["python3"])):
        (tmp_path / name).mkdir()
        for program in ("sh", "cut", "head", *programs):
            is_python = program == "python3"  # the one on the path may be a script that needs more
            found = f"{sys.base_prefix}/bin/python3" if is_python else str(shutil.which(program))
            (tmp_path / name / program).symlink_to(found)
        box = await backend.start(SandboxSpec(environment={"PATH": str(tmp_path / name)}))
        await fill(box)
        asked = ({"pattern": "def"}, {"pattern": r"\w+ \d", "path": "src"}, {"pattern": "d", "glob": "*.txt"},
                 {"pattern": "e+f\\b", "path": "src/a.py"}, {"pattern": "nowhere"})  # fmt: skip
        answers.append([await say(search, box, **arguments) for arguments in asked])
        assert "regex parse error" in await fails(search, box, pattern="(")
        assert "No such file" in await fails(search, box, pattern="x", path="nowhere")
    await backend.close()
    assert answers[0] == answers[1] and "src/b.py:2:    return 1" in answers[0][1]


# ------------------------------------------------------------------------------------------ all of them


async def test_reading_tools_run_at_once_in_one_box(box: Sandbox) -> None:
    assert view.read_only and search.read_only and not edit.read_only
    await fill(box)
    several = [say(view, box, path="src/a.py"), say(search, box, pattern="def b"), say(view, box, path="src.txt")]
    assert await asyncio.gather(*several) == [
        "     1\tdef a():\n     2\t    return 22",
        "src/b.py:1:def b():",
        "     1\tdef c",
    ]


async def test_submit_ends_the_episode() -> None:
    result = await submit.call({}, ToolContext(sandbox=None, seed=0, deadline=0.0))
    assert result.terminated and not result.is_error
