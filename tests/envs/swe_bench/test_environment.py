"""The environment swe_bench: what the agent gets, what is taken of it, and how that is graded."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.envs.swe_bench import bundle
from agentrl.envs.swe_bench.environment import PATCH, SweBench, SweBenchConfig
from agentrl.envs.swe_bench.environment import swe_task as task_of
from agentrl.envs.swe_bench.patch import Change, not_allowed
from agentrl.envs.swe_bench.prepare import TaskError, prepare
from agentrl.errors import ConfigError, SandboxError
from agentrl.sandbox import ExecResult, Sandbox
from agentrl.tool import ToolContext
from agentrl.types import Grade, Message
from tests.boxes import best_box
from tests.envs.swe_bench.attacks import library
from tests.envs.swe_bench.small import (
    FILES,
    GOLD,
    WRONG,
    as_task,
    box_of,
    context,
    diff_of,
    grade_all,
    graded,
    new_file,
    swe_task,
    write,
)  # fmt: skip

FIX = "sed -i 's/a - b/a + b/' sums/core.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "sums", FILES)


# ------------------------------------------------------------------------------------------ the agent's box

FIXED_BEFORE = """
git init -q . && git add -A && git commit -qm first && git rev-parse HEAD > ../base
git checkout -q -b fix && sed -i 's/a - b/a + b/' sums/core.py && git commit -qam 'the fix: a plus b' && git tag v2
git checkout -q - && git stash list && echo x >> README.md && git stash -q && git notes add -m secret
git commit -q --allow-empty -m later && git reset -q --hard HEAD~1 && mkdir -p .git/hooks
"""
LOOK = """
git log --all --oneline | wc -l; git tag; git branch -a; git remote; git reflog; git stash list; git notes
git fsck --full --lost-found --unreachable 2>/dev/null; find .git -name '*.pack'; ls .git/hooks .git/logs 2>/dev/null
git log --all -S 'a + b' --oneline; git rev-list --all --objects | wc -l
git cat-file --batch-all-objects --batch-check | wc -l
grep -rl test_add . /tmp 2>/dev/null; git status --short; git count-objects | cut -d' ' -f1
"""


async def test_h11_nothing_of_the_history_and_no_hidden_test_is_left(folder: Path, tmp_path: Path) -> None:
    who = "-c user.name=a -c user.email=a@b"
    (folder / "tests" / "__pycache__").mkdir()
    (folder / "tests" / "__pycache__" / "test_hidden.cpython-311.pyc").write_bytes(b"test_add")
    made = await asyncio.create_subprocess_shell(
        "set -e; " + FIXED_BEFORE.replace("git ", f"git {who} "), cwd=folder, stdout=asyncio.subprocess.DEVNULL
    )
    assert await made.wait() == 0
    base = (tmp_path / "base").read_text().strip()
    task = as_task(swe_task(folder, base_commit=base, source=None, image=None))
    commits = []
    for _ in range(2):
        spec = SweBench.grading_sandbox(task)
        assert spec is not None
        async with best_box(dataclasses.replace(spec, base=str(folder))) as box:
            baseline = await prepare(box, task_of(task), context(box).deadline, for_agent=True)
            commits.append(baseline.commit)
            looked = (await box.exec(LOOK, timeout_s=120)).text.split("\n")
    objects = [line for line in looked if line.isdigit()]
    assert commits[0] == commits[1], "the same tree has the same commit"
    assert looked[0] == "1" and "main" in looked[1], looked
    assert objects[-3] == objects[-2] == objects[-1], "every object belongs to the one commit"
    assert not any(word in " ".join(looked) for word in ("fix", "v2", "stash", "unreachable", "test_hidden", ".pack"))


async def test_setup_comes_before_the_agent_and_is_no_change_of_its(folder: Path) -> None:
    """H04: what the image has changed or built isn't the agent's."""
    changes = {"setup_patch": new_file("notes.txt", "one"), "setup_commands": ("mkdir build; echo 1 > build/lib.py",)}
    task = as_task(swe_task(folder, **changes))
    patch, artifacts = await diff_of(
        task, f"cat notes.txt build/lib.py && {FIX} && rm .gitignore && touch sums/new.pyc"
    )
    assert patch.count(b"diff --git") == 2 and b"notes.txt" not in patch and b"build/lib" not in patch, patch
    grade = await graded(task, patch, baseline=artifacts.data["baseline"])
    assert (
        grade.reward == 1.0 and "left out: .gitignore" in str(grade.output) and "not the one" not in str(grade.output)
    )


async def test_a_setup_that_fails_names_the_task_and_is_unmeasured(folder: Path) -> None:
    task = as_task(swe_task(folder, setup_commands=("echo oh no; false",)))
    with pytest.raises(TaskError, match="sums-1: the set-up command 'echo oh no; false' failed: oh no"):
        await graded(task, GOLD.encode())
    with pytest.raises(TaskError, match="sums-1: finish: git apply: error"):
        await graded(as_task(swe_task(folder, test_patch=GOLD.replace("a - b", "a * b"))), GOLD.encode())


async def test_without_git_or_python_it_is_said_what_to_do(folder: Path) -> None:
    task = as_task(swe_task(folder, python="python9"))
    with pytest.raises(SandboxError, match=r"sums-1: python9 doesn't run in the box: .*`python`"):
        await graded(task, GOLD.encode())
    async with box_of(task) as box:
        without = NoGit(box)
        with pytest.raises(SandboxError, match=r"sums-1: git isn't there in the box.*: apt-get install it"):
            await prepare(without, task_of(task), context(box).deadline, for_agent=True)  # type: ignore[arg-type]


class NoGit:
    """A box on whose PATH there is Python alone."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    async def exec(self, command: list[str], **more: Any) -> ExecResult:
        found = (await self.box.exec("command -v python3", timeout_s=10)).text.strip()
        return await self.box.exec([found, *command[1:]], environment={"PATH": "/nowhere"}, **more)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------ the patch

MANY = r"""
printf 'a\r\nB\r\n' > crlf.txt
printf 'no end' > README.md
printf '\000\001\377' > x.png
chmod +x sums/core.py; mkdir -p 'odd name'; printf x > 'odd name/tab	"quote" ä.txt'; ln -s core.py sums/link.py
git rm -q --cached sums/__init__.py; git mv conftest.py moved.txt; git commit -qm mine; git checkout -q -b other
mkdir nested && cd nested && git init -q . && echo 1 > in.py && cd ..
echo '* filter=evil diff=evil text eol=crlf' > .gitattributes
git config filter.evil.clean 'tr a b'; git config diff.evil.command false; git config core.fsmonitor false
mkfifo pipe; mkdir bin; printf '#!/bin/sh\nexit 1\n' > bin/git; chmod +x bin/git
"""


async def test_h02_h03_a_patch_keeps_every_byte(folder: Path) -> None:
    """CRLF, no final newline, binary, modes, names, links, nested repositories; the agent's own git has no say."""
    write(folder, {"crlf.txt": b"a\r\nb\r\n", ".gitattributes": "*.txt text\n"})
    task = as_task(swe_task(folder))
    patch, _ = await diff_of(task, FIX + MANY)
    async with box_of(task) as box:
        grade = await graded(task, patch, box=box)
        shown = await box.exec(
            "head -c 9 crlf.txt README.md x.png; stat -c %A sums/core.py; ls 'odd name' nested; readlink sums/link.py",
            timeout_s=10,
        )
    assert grade.reward == 1.0, grade.output
    out = shown.stdout
    assert b"a\r\nB\r\n" in out and b"no end" in out and b"\0\1\xff" in out and b"-rwxr-xr-x" in out
    assert 'tab\t"quote" ä.txt'.encode() in out and b"in.py" in out and b"core.py" in out


async def test_the_agents_git_may_be_gone(folder: Path) -> None:
    patch, _ = await diff_of(as_task(swe_task(folder)), f"{FIX}; rm -rf .git /tmp/*; git init -q .; touch extra.py")
    assert patch.count(b"diff --git") == 2 and b"+    return a + b" in patch
    task = as_task(swe_task(folder))
    none, artifacts = await diff_of(task, f"{FIX}; rm -rf .git /tmp/.agentrl*")
    assert none == b"" and "what the repository was like is gone" in str(artifacts.data["problem"])
    grade = await graded(task, none, **artifacts.data)
    assert grade.reward == 0.0 and grade.parts["empty_patch"] == 0.0


async def test_empty_and_too_large_patches_are_outcomes_of_their_own(folder: Path) -> None:
    task = as_task(swe_task(folder))
    empty, artifacts = await diff_of(task, "mkdir build; touch build/x; git gc -q")
    grade = await graded(task, empty, **artifacts.data)
    assert empty == b"" and grade.reward == 0.0 and grade.parts["empty_patch"] == 1.0
    large, artifacts = await diff_of(task, "head -c 5000 /dev/urandom > x.bin", max_patch_bytes=2000)
    grade = await graded(task, large, **artifacts.data)
    assert grade.parts["patch_too_large"] == 1.0 and "too large: the patch has" in str(grade.output)
    huge, artifacts = await diff_of(task, "truncate -s 300M x.bin")
    assert huge == b"" and "the files that changed have 314572800 bytes" in str(artifacts.data["problem"])


# ------------------------------------------------------------------------------------------ the grade

HANGS = library("import time", add="    while True: time.sleep(1)\n")
HARMLESS = """\
diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -3,3 +3,4 @@
 
 def test_double():
     assert double(2) == 4
+    assert double(3) == 6
"""
FUZZY = GOLD.replace(" def add(a, b):", " def add(a,  b):")


@pytest.fixture(scope="module")
def grades(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Grade]:
    task = as_task(swe_task(write(tmp_path_factory.mktemp("sums"), FILES), timeout_s=20.0))
    half = library("", add="    return 7 if a == 0 else a - b\n")
    patches = {
        "right": GOLD, "no final newline": GOLD.strip(), "with tests": GOLD + HARMLESS, "half": half, "hangs": HANGS,
        "garbage": "this is no patch\n", "for another tree": GOLD.replace("a - b", "a * b"), "fuzzy": FUZZY,
        "breaks": GOLD + GOLD.replace("core.py", "__init__.py"), "no code": library("", add="    return a +\n"),
        "floods": library("import sys\nfor _ in range(3000): sys.stderr.write('x' * 10**4)", add="    return a + b\n"),
    }  # fmt: skip
    return grade_all(task, {name: patch.encode() for name, patch in patches.items()})


@pytest.mark.parametrize(
    ("name", "reward", "words"),
    [
        ("right", 1.0, "resolved"),
        ("no final newline", 1.0, "resolved"),  # H01
        ("with tests", 1.0, "left out: tests/test_core.py: the tests are the task's own"),  # H05
        ("half", 0.0, "failed: tests/test_hidden.py::test_add\n\ntests/test_hidden.py::test_add\ntests/test_hidden.py"),
        ("hangs", 0.0, "the tests took longer than"),  # H14
        ("garbage", 0.0, "the patch doesn't apply: git apply"),
        ("for another tree", 0.0, "the patch doesn't apply: git apply"),
        ("fuzzy", 1.0, "resolved"),
        ("no code", 0.0, "missing: tests/test_core.py::test_double"),
        ("floods", 1.0, "resolved"),  # H13
    ],
)
def test_grades(grades: dict[str, Grade], name: str, reward: float, words: str) -> None:
    grade = grades[name]
    assert grade.reward == reward and words in str(grade.output), grade.output
    assert grade.parts["tests_timed_out"] == float(name == "hangs")
    assert grade.parts["patch_applies"] == float("apply" not in words) and grade.parts["tampered"] == 0.0
    assert len(str(grade.output)) < 10_000


def test_shares(grades: dict[str, Grade]) -> None:
    half = grades["half"]
    assert half.parts["fail_to_pass"] == 0.5 and half.parts["pass_to_pass"] == 1.0


async def test_reward_modes_follow_from_the_artifacts(folder: Path) -> None:
    task, half = as_task(swe_task(folder)), library("", add="    return 7 if a == 0 else a - b\n").encode()
    for mode, reward in (("fraction", 0.5), ("shaped", 0.1)):
        assert (await graded(task, half, reward=mode)).reward == pytest.approx(reward)
    late = await graded(task, GOLD.encode(), submitted=False, grade_unsubmitted=False)
    assert late.reward == 0.0 and "was not submitted" in str(late.output)


async def test_names_count_as_the_dataset_writes_them(folder: Path) -> None:
    """Its names were once read from a log, whose parser cut paths off."""
    marked = "@pytest.mark.parametrize('path', ['/x/y/z'])"
    tests = f"import pytest, sums\n{marked}\ndef test_path(path):\n    assert sums.add(1, 1) == 2"
    names = {"test_files": ("tests/test_path.py",), "hidden_files": (), "pass_to_pass": ()}
    named = {"log_parser": "pytest_options", "fail_to_pass": ("tests/test_path.py::test_path[/z]",)}
    task = as_task(swe_task(folder, test_patch=new_file("tests/test_path.py", tests), **names, **named))
    grade = await graded(task, GOLD.encode())
    assert grade.reward == 1.0, grade.output


# ------------------------------------------------------------------------------------------ the rest


def test_what_a_patch_may_not_change() -> None:
    files = ["lib/__init__.py", "lib/a.py", "src/app/main.py", "tests/test_a.py", "types.py", "setup.cfg"]

    def refused(*paths: str, allowed: tuple[str, ...] = (), leads_to: str | None = None) -> set[str]:
        changes = [Change(path=path, is_new=path not in files, leads_to=leads_to) for path in paths]
        return set(not_allowed(changes, files=files, test_files=["tests/test_a.py"], allowed=allowed))

    fine = ["lib/json.py", "lib/sub/types.py", "types.py", "docs/pytest.md.txt", "lib/a.py", "src/app/x.py", "Makefile"]
    assert refused(*fine) == set()
    bad = ["json.py", "src/types.py", "tests/_pytest/x.py", "re.cpython-311-x86_64-linux-gnu.so", "a/conftest.py",
           "setup.cfg", "lib/__pycache__/a.cpython-311.pyc", "x.pth", "x.egg-info/entry_points.txt", ".github/x",
           "tests/test_a.py", "tests"]  # fmt: skip
    assert refused(*bad) == set(bad)
    assert refused("setup.cfg", "tests/test_a.py", allowed=("setup.cfg", "tests/test_a.py")) == {"tests/test_a.py"}
    for target in ("/etc/passwd", "../../x", "../.git/config"):
        assert refused("lib/link", leads_to=target) == {"lib/link"}, target
    assert refused("lib/link", leads_to="../README.md") == set()


async def test_a_box_without_pytest_gets_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain interpreter of Debian has none, as a rule; one that is told to see no packages never has."""
    write(folder, {"bare": '#!/bin/sh\nexec python3 -S "$@"\n'})
    (folder / "bare").chmod(0o755)
    task = as_task(swe_task(folder, python="/testbed/bare"))
    async with box_of(task) as box:
        grade = await graded(task, GOLD.encode(), box=box)
    assert grade.reward == 1.0, grade.output
    assert len(bundle.pytest_bundle()) < 4 * 1024**2


async def test_an_oracle_plays_it_through(folder: Path) -> None:
    for changes in (
        {},
        {
            "gold_patch": GOLD.replace("-    return a - b\n+    return a + b", "-    return a + b\n+    return a - b"),
            "gold_is_reversed": True,
        },
    ):
        task = as_task(swe_task(folder, **changes))
        env = SweBench(SweBenchConfig())
        oracle = env.oracle(task)
        assert oracle is not None
        spec = env.sandbox(task)
        assert spec is not None and not spec.network
        async with best_box(spec) as box:
            messages = await env.reset(task, context(box))
            assert "add(2, 3) gives -1" in messages[-1].text
            is_over = False
            while not is_over:
                reply = oracle(messages)
                messages.append(reply)
                results = []
                for call in reply.tool_calls:
                    (tool,) = [tool for tool in env.tools if tool.name == call.name]
                    ctx = ToolContext(sandbox=box, seed=0, deadline=context(box).deadline)
                    results.append(await tool.call(json.loads(call.arguments), ctx))
                step = await env.step(reply, results)
                messages += step.messages
                is_over = step.terminated
            artifacts = await env.collect()
        assert artifacts.data["submitted"] is True
        assert b"+    return a + b" in artifacts.files[PATCH]
    assert SweBench(SweBenchConfig(tools=("view",))).oracle(task) is None
    assert oracle([Message(role="user", content="x")]).tool_calls[0].name == "bash"


def test_tasks_are_split_by_their_ids() -> None:
    train, held_out = (SweBench.tasks(SweBenchConfig(), split) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 12 and {task.id for task in train}.isdisjoint(task.id for task in held_out)
    with pytest.raises(ConfigError, match="splits train, held_out"):
        SweBench.tasks(SweBenchConfig(), "test")
    with pytest.raises(ConfigError, match="none is held_out"):
        SweBench.tasks(SweBenchConfig(held_out_fraction=0), "held_out")
    assert WRONG not in train[0].messages[1].text
