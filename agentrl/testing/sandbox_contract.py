"""What every backend must do: commands, sessions and files. The checks of `agentrl.testing.sandbox`."""

from __future__ import annotations

import asyncio
import io
import tarfile
import tempfile
import time
from pathlib import Path

from agentrl.errors import SandboxError
from agentrl.testing.sandbox import Bench, contract, processes, run, says

# ------------------------------------------------------------------------------------------------------- commands


@contract("a command's exit code comes back; 127 for no such program, 128 + n for signal n")
async def exit_codes(bench: Bench) -> None:
    box = await bench.box()
    codes = [(await run(box, line)).exit_code for line in ("true", "exit 3", "kill -9 $$", "nothing-like-this")]
    assert codes == [0, 3, 137, 127], codes
    missing = await run(box, ["nothing-like-this"])
    assert missing.exit_code == 127 and missing.stderr, missing


@contract("stdout and stderr come apart, byte for byte, also what is no UTF-8 (G12)")
async def bytes_untouched(bench: Bench) -> None:
    box = await bench.box()
    result = await run(box, r"printf '\377\376\200abc\000'; echo oops >&2")
    assert (result.stdout, result.stderr) == (b"\xff\xfe\x80abc\0", b"oops\n"), result
    assert result.text == "\ufffd\ufffd\ufffdabc\0oops\n", result.text
    split = await run(box, r"printf '\303'; sleep 0.1; printf '\244'")
    assert split.text == "ä", split


@contract("arguments are handed over as they are; no shell reads them")
async def arguments(bench: Bench) -> None:
    words = ["a b", "$HOME", "'", '"', "ä", "", "*"]
    result = await run(await bench.box(), ["printf", "%s\\n", *words])
    assert result.stdout.decode().split("\n")[:-1] == words, result


@contract("stdin is handed over, and a command that never reads it still ends")
async def stdin(bench: Bench) -> None:
    box = await bench.box()
    data = bytes(range(256)) * 4000
    assert (await run(box, ["cat"], stdin=data)).stdout == data[: 1024**2]
    assert (await run(box, "echo done", stdin=data * 4)).stdout == b"done\n"
    assert (await run(box, ["cat"])).stdout == b""


@contract("commands start in workdir, or where they are told; variables are added, none of this process are there")
async def folder_and_variables(bench: Bench) -> None:
    async with bench.own_box(environment={"COLOUR": "red", "SHAPE": "round"}) as box:
        seen = await run(box, 'cd -P .; pwd; echo "$COLOUR $SHAPE"', environment={"COLOUR": "blue"})
        assert seen.text.split()[1:] == ["blue", "round"], seen
        assert (await run(box, "pwd", cwd="/tmp")).text == "/tmp\n"
        assert (await run(box, "pwd", cwd="/no/such/folder")).exit_code != 0


@contract("of too much output head and tail are kept, with a marker and the number between them (E07)")
async def output_cap(bench: Bench) -> None:
    line = "echo first; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = await run(await bench.box(), line, max_output_bytes=1000)
    assert result.stdout.startswith(b"first\nxx") and result.stdout.endswith(b"xx\nlast\n"), result.stdout[:50]
    assert len(result.stdout) < 1100 and result.num_left_out_bytes == 20_000_000 + 12 - 1000, result.num_left_out_bytes
    assert str(result.num_left_out_bytes).encode() in result.stdout


@contract("a limit ends a command and everything that it started; what it printed is there (G03)")
async def time_limit(bench: Bench) -> None:
    box = await bench.box()
    for _ in range(3):
        result = await box.exec("echo begun; while :; do :; done  # spinning-top", timeout_s=1)
        assert result.timed_out and result.stdout == b"begun\n" and result.seconds < 5, result
    result = await box.exec("setsid sleep 31.25 & sleep 31.25", timeout_s=0.5)
    assert result.timed_out and not await processes(box, "sleep\x0031.25"), result
    assert not await processes(box, "spinning-top")


@contract("no limit but the one that was asked for (F07)")
async def no_other_limit(bench: Bench) -> None:
    result = await run(await bench.box(), "sleep 3; echo slept", timeout_s=20)
    assert result.stdout == b"slept\n" and not result.timed_out and result.seconds >= 3, result


@contract("nothing that a command started outlives it: background, setsid, double fork")
async def nothing_outlives(bench: Bench) -> None:
    box = await bench.box()
    await run(box, "sleep 32.25 & setsid sleep 32.25 >/dev/null 2>&1 & (setsid sh -c 'sleep 32.25 &' >/dev/null &)")
    assert not await processes(box, "sleep\x0032.25")


@contract("a child in the background that holds stdout doesn't keep the command from ending")
async def held_stdout(bench: Bench) -> None:
    result = await run(await bench.box(), "sleep 20 & echo done")
    assert result.stdout == b"done\n" and result.seconds < 5, result


@contract("commands run at the same time")
async def at_once(bench: Bench) -> None:
    box = await bench.box()
    started = time.monotonic()
    results = await asyncio.gather(*(run(box, f"sleep 1; echo {n}") for n in range(12)))
    assert [r.stdout for r in results] == [b"%d\n" % n for n in range(12)]
    assert time.monotonic() - started < 8


@contract("a command that nobody waits for any more is ended")
async def cancelled(bench: Bench) -> None:
    box = await bench.box()
    waiting = asyncio.create_task(box.exec("sleep 33.25", timeout_s=60))
    await asyncio.sleep(0.3)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    for _ in range(50):
        if not await processes(box, "sleep\x0033.25"):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("it still runs five seconds later")


# ------------------------------------------------------------------------------------------------------- sessions


@contract("a session keeps folder, variables, functions and jobs; both outputs come in order")
async def session_state(bench: Bench) -> None:
    session = await (await bench.box()).session()
    await session.run("cd /tmp; colour=red; greet() { echo hello $1; }; sleep 20 &", timeout_s=5)
    result = await session.run("pwd; echo $colour >&2; greet you; jobs | wc -l", timeout_s=5)
    assert result.stdout.split() == [b"/tmp", b"red", b"hello", b"you", b"1"], result
    assert (await session.run("false", timeout_s=5)).exit_code == 1
    assert (await session.run("cat", timeout_s=5)).exit_code == 0, "a command that reads finds an end"
    await session.close()
    await session.close()


@contract("an unclosed quote or heredoc is the error of one command, and swallows no other (G02)")
async def unclosed(bench: Bench) -> None:
    session = await (await bench.box()).session()
    for line in ('echo "unclosed', "cat <<EOF > a\nhello\n  EOF", "if true; then", "echo (", "ls # note", "echo \\"):
        await session.run(line, timeout_s=5)
        after = await session.run("echo fine", timeout_s=5)
        assert after.stdout == b"fine\n", (line, after)
    broken = await session.run('echo "unclosed', timeout_s=5)
    assert broken.exit_code != 0 and broken.stdout, broken
    await session.close()


@contract("a command that meddles with its session's shell gets a result: it can't make its box look broken")
async def session_meddling(bench: Bench) -> None:
    box = await bench.box()
    for code in ("9" * 30, "300", "no code"):
        session = await box.session()
        await session.run(f"command() {{ builtin printf '{code}\\n' >&8; }}", timeout_s=5)
        result = await session.run("true", timeout_s=5)
        assert 0 <= result.exit_code <= 255, result
        await session.close()
    assert await box.is_alive()


@contract("a session's limit ends all that it started; the next command finds a new shell, and is told")
async def session_limit(bench: Bench) -> None:
    box = await bench.box()
    session = await box.session()
    await session.run("cd /tmp; colour=red; setsid sleep 34.25 &", timeout_s=5)
    late = await session.run("echo begun; sleep 34.25", timeout_s=0.5)
    assert late.timed_out and late.shell_ended and late.stdout == b"begun\n", late
    after = await session.run("echo ${colour:-none}; pwd", timeout_s=5)
    assert after.stdout.startswith(b"none\n") and b"/tmp\n" not in after.stdout[5:10], after
    assert not after.timed_out and not await processes(box, "sleep\x0034.25")
    await session.close()


@contract("`exit` ends the shell with its code, and no more")
async def session_exit(bench: Bench) -> None:
    session = await (await bench.box()).session()
    result = await session.run("exit 7", timeout_s=5)
    assert (result.exit_code, result.shell_ended, result.timed_out) == (7, True, False), result
    assert (await session.run("echo back", timeout_s=5)).stdout == b"back\n"
    await session.close()


# ---------------------------------------------------------------------------------------------------------- files


@contract("files are written and read as they are; folders are made; relative paths start at workdir")
async def files(bench: Bench) -> None:
    async with bench.own_box(files={"given/ä.txt": b"given", f"{bench.spec.workdir}/b": b"b"}) as box:
        assert await box.read("given/ä.txt") == b"given" and await box.read("b") == b"b"
        data = bytes(range(256)) * 20_000
        await box.write("some/new/folder/data", data)
        assert await box.read("some/new/folder/data") == data
        await box.write("go", b"#!/bin/sh\necho gone\n", executable=True)
        assert await says(box, ["./go"]) == "gone"
        await box.write("data", b"longer")
        await box.write("data", b"short")
        assert await says(box, "cat data; echo; touch some/new/folder/mine && echo ours") == "short\nours"


@contract("a file that can't be had is Python's own error; one above the cap a ValueError")
async def file_errors(bench: Bench) -> None:
    box = await bench.box()
    await says(box, "mkdir -p d/sub && echo text > d/file && mkfifo d/pipe")
    wanted = {"nothing": FileNotFoundError, "d": IsADirectoryError, "d/pipe": OSError, "d/file/x": NotADirectoryError}
    for path, kind in wanted.items():
        await _raises(kind, box.read(path))
    await _raises(ValueError, box.read("d/file", max_bytes=4))
    assert await box.read("d/file", max_bytes=5) == b"text\n"
    await _raises(FileNotFoundError, box.read_tree("nothing"))
    await _raises(IsADirectoryError, box.write("d", b""))
    await _raises(ValueError, box.read_tree("d", max_bytes=100))


@contract("folders go in and out as archives, links as links, without pipes and devices")
async def trees(bench: Bench) -> None:
    box = await bench.box()
    await says(box, "mkdir -p t/a && echo one > t/a/b && ln -s ../x t/a/l && mkfifo t/p && chmod +x t/a/b")
    archive = await box.read_tree("t")
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        assert sorted(members.getnames()) == ["a", "a/b", "a/l"], members.getnames()
        assert members.getmember("a/l").linkname == "../x"
    await box.write_tree("copy/of/it", archive)
    assert (
        await says(box, "cat copy/of/it/a/b; readlink copy/of/it/a/l; test -x copy/of/it/a/b && echo x")
        == "one\n../x\nx"
    )


@contract("an archive with members that lead out is refused, and nothing of it is written")
async def bad_archives(bench: Bench) -> None:
    box = await bench.box()
    for name, link in (("../out", ""), ("/tmp/out", ""), ("l", "../../out"), ("l", "/etc"), ("a/../../out", "")):
        await _raises(ValueError, box.write_tree("into", _archive(name, link)))
    await _raises(ValueError, box.write_tree("into", b"no archive"))
    await _raises(FileNotFoundError, box.read("into/good"))


@contract("a folder of this machine is where workdir starts; the box changes a copy")
async def base(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sub").mkdir()
        Path(folder, "sub", "file").write_text("original")
        Path(folder, "gone").write_text("original")
        async with bench.own_box(base=folder) as box:
            assert await says(box, "cat sub/file; echo changed > sub/file; rm gone; cat sub/file") == "originalchanged"
        assert Path(folder, "sub", "file").read_text() == Path(folder, "gone").read_text() == "original"


# ----------------------------------------------------------------------------------------------------------- ends


@contract("a stopped box raises SandboxError, and can be stopped twice")
async def stopped(bench: Bench) -> None:
    async with bench.own_box() as box:
        session = await box.session()
        running = asyncio.create_task(box.exec("sleep 20", timeout_s=30))
        await asyncio.sleep(0.2)
        assert await box.is_alive()
        await box.stop()
        await box.stop()
        assert not await box.is_alive()
        await _raises(SandboxError, running)
        await _raises(SandboxError, box.exec("true", timeout_s=5))
        await _raises(SandboxError, box.read("x"))
        await _raises(SandboxError, session.run("true", timeout_s=5))


@contract("a box whose lifetime is over ends by itself")
async def lifetime(bench: Bench) -> None:
    async with bench.own_box(lifetime_s=2.0) as box:
        await _raises(SandboxError, box.exec("sleep 20", timeout_s=30))
        assert not await box.is_alive()


async def _raises(kind: type[BaseException], awaited: object) -> None:
    try:
        got = await awaited  # type: ignore[misc]
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was due, and there is {got!r:.200}")


def _archive(name: str, link: str) -> bytes:
    """One good file, then a bad one."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("good"))
        bad = tarfile.TarInfo(name)
        bad.type, bad.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
        archive.addfile(bad)
    return out.getvalue()
