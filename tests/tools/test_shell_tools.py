"""`bash` and `python` in real boxes: what is kept between calls, and what a call can't break."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import pytest

from agentrl.sandbox import Sandbox
from agentrl.tools.bash import Bash, bash
from agentrl.tools.python import Python, python
from agentrl.types import CallStatus
from tests.tools.use import say, use

FLOODS = {
    "yes": "yes",
    "a great many lines": "yes | head -c 200000000",
    "random bytes": "cat /dev/urandom | head -c 50000000",
}

UNFINISHED = (
    "cat <<EOF > a\nhello\n  EOF", 'echo "unclosed', "echo 'unclosed", "ls # note", "if true; then", "f() {", "cat",
    "read x", "((", "\\",
)  # fmt: skip
COUNT_SLEEPERS = 'cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep [9]87"; true'
"""Of `sleep 987`, in the whole box."""


async def test_a_shell_keeps_folder_variables_and_jobs(box: Sandbox) -> None:
    await say(bash, box, command="mkdir -p a && cd a && COLOUR=red && sleep 100 &")
    assert await say(bash, box, command="mkdir -p b; cd b; COLOUR=red") == "[no output]"
    assert await say(bash, box, command='echo "$COLOUR ${PWD##*/} $(jobs | grep -c sleep)"') == "red b 1"


async def test_a_command_that_fails_is_told_and_nothing_else_happens(box: Sandbox) -> None:
    await say(bash, box, command="COLOUR=red")
    failed = await use(bash, box, command="echo out; echo err >&2; false")
    assert (failed.status, failed.result) == (CallStatus.ERROR, "out\nerr\n[exit code 1]")
    assert await say(bash, box, command="echo $COLOUR") == "red"


async def test_G02_an_unfinished_command_is_over_at_once_and_swallows_nothing(box: Sandbox) -> None:
    await say(bash, box, command="COLOUR=red")
    for command in UNFINISHED:
        started = time.monotonic()
        unfinished = await use(bash, box, command=command)
        assert unfinished.status is not CallStatus.TIMEOUT and time.monotonic() - started < 10, command
        assert await say(bash, box, command='echo "$COLOUR"; echo next') == "red\nnext", command


async def test_at_its_time_limit_a_command_ends_with_all_it_started_and_the_shell_is_new(box: Sandbox) -> None:
    """R4, F07: what was printed until then is there, and the words say which limit it was."""
    await say(bash, box, command="COLOUR=red; mkdir -p a; cd a")
    late = await use(bash, box, timeout_s=1.0, command="echo before; (setsid sleep 987 &) ; sleep 987")
    assert late.status is CallStatus.TIMEOUT
    assert late.result is not None and late.result.startswith("before\n[stopped after 1 s, with all it had started")
    assert "the shell is new" in late.result
    after = await say(
        bash,
        box,
        command='echo "<$COLOUR> ${PWD##*/}"; cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep [9]87"; true',
    )
    assert after.startswith("<> ") and not after.startswith("<> a\n") and after.endswith("\n0")


async def test_the_tools_own_limit_counts_where_it_is_the_shorter_one(box: Sandbox) -> None:
    late = await use(Bash(timeout_s=0.5), box, command="sleep 20")
    assert late.status is CallStatus.TIMEOUT and "stopped after 0.5 s" in (late.result or "")


async def test_exit_ends_the_shell_and_says_so(box: Sandbox) -> None:
    await say(bash, box, command="COLOUR=red")
    left = await use(bash, box, command="exit 3")
    assert left.result is not None and left.result.startswith("[exit code 3; the shell is new")
    assert await say(bash, box, command='echo "<$COLOUR>"') == "<>"


@pytest.mark.parametrize("name", FLOODS)
async def test_E07_of_a_flood_head_and_tail_are_kept_in_little_memory(box: Sandbox, name: str) -> None:
    tool = Bash(max_output_bytes=2000)
    await say(tool, box, command=":")
    tracemalloc.start()
    flood = await use(
        tool, box, timeout_s=3.0 if name == "yes" else 60.0, command=f"echo first; {FLOODS[name]}; echo last"
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    text = flood.result or ""
    assert text.startswith("first\n") and "bytes of the output are left out" in text.rpartition("[")[2]
    assert "last\n" in text or name == "yes"
    assert len(text) < 3000 and peak_bytes < 4 * 1024**2


async def test_G12_bytes_that_are_no_utf_8_can_be_restored(box: Sandbox) -> None:
    odd = await say(bash, box, command=r"printf '\377\376\200abc\000'")
    assert odd.encode("utf-8", "surrogateescape") == b"\xff\xfe\x80abc\0"
    split = await say(bash, box, command=r"printf '\303'; sleep 0.1; printf '\244'")
    assert split == "ä"
    binary = await say(bash, box, command="head -c 300 /bin/ls")
    assert binary.encode("utf-8", "surrogateescape").startswith(b"\x7fELF")
    assert await say(bash, box, command="echo fine") == "fine"


async def test_a_call_that_is_given_up_leaves_nothing_running_in_the_shell(box: Sandbox) -> None:
    """R4: an episode's time limit cancels the call."""
    call = asyncio.ensure_future(use(bash, box, command="echo begun > begun; sleep 987"))
    while not (await box.exec("cat begun", timeout_s=10)).stdout:
        await asyncio.sleep(0.02)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert await say(bash, box, command=COUNT_SLEEPERS) == "0"


# ------------------------------------------------------------------------------------------ python


async def test_an_interpreter_keeps_its_state_and_shows_the_last_value(box: Sandbox) -> None:
    assert await say(python, box, code="import math\nx = 9\ndef f(n):\n    return math.sqrt(n)") == "[no output]"
    assert await say(python, box, code="print('so:')\nf(x)") == "so:\n3.0"
    assert await say(python, box, code="_ + 1") == "4.0"
    assert await say(python, box, code="x = 1; x;") == "1"
    assert (
        await say(python, box, code="import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A")
        == "True"
    )


async def test_what_code_raises_is_a_short_traceback_and_the_state_stays(box: Sandbox) -> None:
    await say(python, box, code="x = 1\ndef f(n):\n    return n / 0")
    raised = await use(python, box, code="y = 2\nf(x)")
    assert raised.status is CallStatus.ERROR and raised.result is not None
    lines = raised.result.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ZeroDivisionError: division by zero"
    assert "    return n / 0" in lines and "interpreter" not in raised.result
    wrong = await use(python, box, code="def (:")
    assert wrong.result is not None and wrong.result.startswith('  File "<cell 3>", line 1\n    def (:')
    deep = await use(python, box, code="def g(): g()\ng()")
    assert "RecursionError" in (deep.result or "") and len(deep.result or "") < 2000
    assert await say(python, box, code="x + y") == "3"


async def test_code_that_takes_too_long_is_stopped_and_the_next_call_has_a_new_interpreter(box: Sandbox) -> None:
    await say(python, box, code="x = 1")
    late = await use(
        python,
        box,
        timeout_s=2.0,
        code="import subprocess\nprint('begun')\nsubprocess.Popen(['sleep', '987'])\nwhile True: pass",
    )
    assert late.status is CallStatus.TIMEOUT and late.result is not None
    assert late.result.startswith("begun\n[stopped after 2 s") and "new interpreter" in late.result
    assert "NameError" in ((await use(python, box, code="x")).result or "")
    assert (await box.exec(COUNT_SLEEPERS, timeout_s=10)).stdout == b"0\n"


async def test_an_interpreter_that_ends_is_replaced(box: Sandbox) -> None:
    await say(python, box, code="x = 1")
    ended = await use(python, box, code="import os\nprint('bye', flush=True)\nos._exit(0)")
    assert ended.status is CallStatus.ERROR and (ended.result or "").startswith("bye\n[the interpreter ended;")
    assert await say(python, box, code="1 + 1") == "2"
    assert "SystemExit" in ((await use(python, box, code="y = 5\nexit()")).result or "")
    assert await say(python, box, code="y") == "5"


async def test_what_children_print_is_shown_and_a_fork_ends_with_its_code(box: Sandbox) -> None:
    code = "import os, subprocess\nsubprocess.run(['echo', 'child'])\npid = os.fork()\n"
    code += "if pid: os.waitpid(pid, 0)\nprint('both', flush=True)"
    assert await say(python, box, code=code) == "child\nboth\nboth"
    assert await say(python, box, code="1") == "1"


async def test_E07_G12_a_flood_of_odd_bytes_from_python(box: Sandbox) -> None:
    code = "import sys\nprint('first')\nfor _ in range(300): sys.stdout.buffer.write(b'\\xff' * 10**5)\nprint('last')"
    text = await say(Python(max_output_bytes=2000), box, code=code)
    assert text.startswith("first\n\udcff") and "last\n[" in text and "bytes of the output are left out" in text
    assert len(text) < 3000


async def test_two_boxes_have_two_interpreters_and_code_is_never_read_by_the_shell(box: Sandbox) -> None:
    text = "$HOME `id` 'EOF' \\n END"
    assert await say(python, box, code=f"x = {text!r}\nprint(x)") == text
    assert "NUL" in ((await use(python, box, code="'\0'")).result or "")
    assert "there is no box" in ((await use(python, None, code="x")).result or "")
