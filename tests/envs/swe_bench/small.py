"""One small task for the tests of swe_bench, and what is needed to have it played and graded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentrl.environment import EnvironmentContext
from agentrl.envs.swe_bench.environment import PATCH, SweBench, SweBenchConfig, make_task
from agentrl.envs.swe_bench.task import Source, SweTask
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.boxes import CheckBoxes, NoBox
from agentrl.types import Artifacts, Grade, Task, Trajectory
from tests.boxes import CONFIGS, best_box

WRONG, RIGHT = "    return a - b\n", "    return a + b\n"
FILES = {
    "sums/__init__.py": '"""Sums."""\n\nfrom sums.core import add, double\n\n__all__ = ["add", "double"]\n',
    "sums/core.py": f"def add(a, b):\n{WRONG}\n\ndef double(a):\n    return 2 * a\n",
    "tests/test_core.py": "from sums import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "tests/test_hidden.py": "import sums\n\n\ndef test_add():\n    assert sums.add(2, 3) == 5\n",
    "conftest.py": "",
    "README.md": "Sums of two numbers.\n",
    ".gitignore": "build/\n",
}
TEST_PATCH = """\
diff --git a/tests/test_core.py b/tests/test_core.py
--- a/tests/test_core.py
+++ b/tests/test_core.py
@@ -1,5 +1,9 @@
-from sums import double
+from sums import add, double
 
 
 def test_double():
     assert double(2) == 4
+
+
+def test_add_more():
+    assert add(0, 7) == 7
"""
GOLD = """\
diff --git a/sums/core.py b/sums/core.py
--- a/sums/core.py
+++ b/sums/core.py
@@ -1,5 +1,5 @@
 def add(a, b):
-    return a - b
+    return a + b
 
 
 def double(a):
"""
F2P = ("tests/test_core.py::test_add_more", "tests/test_hidden.py::test_add")
P2P = ("tests/test_core.py::test_double",)


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def swe_task(folder: Path, **changes: Any) -> SweTask:
    fields = {
        "id": "sums-1",
        "format": "agentrl",
        "problem_statement": "add(2, 3) gives -1.",
        "source": Source(kind="tree", path=str(folder)),
        "gold_patch": GOLD,
        "test_patch": TEST_PATCH,
        "test_files": ("tests/test_core.py", "tests/test_hidden.py"),
        "hidden_files": ("tests/test_hidden.py",),
        "fail_to_pass": F2P,
        "pass_to_pass": P2P,
        "timeout_s": 60.0,
    }
    return SweTask.model_validate(fields | changes)


def as_task(task: SweTask, **options: Any) -> Task:
    return make_task(SweBenchConfig(**options), task, "train")


@asynccontextmanager
async def box_of(task: Task) -> AsyncIterator[Sandbox]:
    spec = SweBench.grading_sandbox(task)
    assert spec is not None
    async with best_box(spec) as box:
        yield box


def grade_all(
    task: Task, patches: Mapping[str, bytes], *, at_once: int = 3, timeout_s: float = 300.0
) -> dict[str, Grade]:
    """The grade of each patch, by its name. The boxes are of one backend, so it is looked at once alone."""

    async def all_of_them() -> dict[str, Grade]:
        room, boxes = asyncio.Semaphore(at_once), await best_boxes()

        async def one(patch: bytes) -> Grade:
            async with room:
                box = await boxes.start(SweBench.grading_sandbox(task), hold_s=600)
                assert box is not None
                try:
                    return await graded(task, patch, box=box)
                finally:
                    await box.stop()

        try:
            grades = await asyncio.gather(*map(one, patches.values()))
            return dict(zip(patches, grades, strict=True))
        finally:
            await boxes.close()

    return asyncio.run(all_of_them())


async def best_boxes() -> CheckBoxes:
    for config in CONFIGS:
        boxes = CheckBoxes(config)
        try:
            box = await boxes.start(SandboxSpec(), hold_s=60)
        except NoBox:
            continue
        assert box is not None
        await box.stop()
        return boxes
    raise AssertionError("local always gives boxes")


async def graded(
    task: Task, patch: bytes, *, timeout_s: float = 300.0, box: Sandbox | None = None, **data: Any
) -> Grade:
    """Of a patch, in a new box where none is given."""
    if box is None:
        async with box_of(task) as fresh:
            return await graded(task, patch, timeout_s=timeout_s, box=fresh, **data)
    known = {"baseline": None, "submitted": True, "problem": None, "too_large": False, "reward": "resolved"}
    artifacts = Artifacts(data=known | {"grade_unsubmitted": True} | data, files={PATCH: patch})
    trajectory = Trajectory(id="t", run="r", task=task, group=None)
    return await SweBench.grade(task, trajectory, artifacts, context(box, timeout_s))


def context(box: Sandbox | None, timeout_s: float = 300.0) -> EnvironmentContext:
    return EnvironmentContext(sandbox=box, seed=0, deadline=time.monotonic() + timeout_s)


async def diff_of(task: Task, command: str, **options: Any) -> tuple[bytes, Artifacts]:
    """What an agent's box gives after a command of the shell."""
    env = SweBench(SweBenchConfig(**options))
    spec = env.sandbox(task)
    assert isinstance(spec, SandboxSpec)
    async with best_box(spec) as box:
        await env.reset(task, context(box))
        ran = await box.exec(command, timeout_s=120)
        assert ran.exit_code == 0, ran.text
        artifacts = await env.collect()
    return artifacts.files[PATCH], artifacts


def new_file(path: str, text: str) -> str:
    """A section of a patch that makes a file."""
    lines = text.splitlines()
    body = "".join(f"+{line}\n" for line in lines)
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return f"{head}@@ -0,0 +1,{len(lines)} @@\n{body}"
