"""`agentrl data swe-mutate`: small faults in a real package's source, kept where its own tests notice them."""

from __future__ import annotations

import ast
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.cli import main
from agentrl.envs.swe_bench import records
from agentrl.envs.swe_bench.mutants.faults import faults_of

CODE = '''"""Small things."""


def clamp(value, low, high):
    """Keep a value between two others.

    More about it.
    """
    if low > high:
        raise ValueError("low is above high")
    if value < low or value > high:
        return low if value < low else high
    return value


def middle(items):
    """All but the first and the last."""
    return items[1 : len(items) - 1]
'''
TESTS = """import pytest
from small import clamp, middle

@pytest.mark.parametrize("value", range(2, 8))
def test_inside(value):
    assert clamp(value, 1, 9) == value

def test_outside():
    assert (clamp(0, 1, 9), clamp(10, 1, 9)) == (1, 9)

def test_bounds():
    with pytest.raises(ValueError):
        clamp(1, 3, 2)

def test_middle():
    assert middle([1, 2, 3, 4]) == [2, 3]
"""


def sdist(folder: Path) -> Path:
    """Its code is in src, its tests aren't."""
    path = folder / "small-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in {"src/small.py": CODE, "tests/test_small.py": TESTS, "README": "Small.\n"}.items():
            member = tarfile.TarInfo(f"small-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def test_a_fault_changes_one_line_to_another_program() -> None:
    faults = [fault for fault in faults_of("small.py", CODE) if fault.makes_another_program(CODE)]
    kinds = {fault.kind for fault in faults}
    assert kinds == {
        "comparison", "and/or", "constant", "off by one", "negated condition", "dropped guard", "arithmetic"
    }  # fmt: skip
    assert {fault.where for fault in faults} == {"small.clamp", "small.middle"}
    for fault in faults:
        pairs = zip(CODE.split("\n"), fault.put_into(CODE).split("\n"), strict=True)
        assert sum(one != other for one, other in pairs) == 1
        assert ast.dump(ast.parse(fault.put_into(CODE))) != ast.dump(ast.parse(CODE))
        changed = [
            line for line in fault.patch(CODE).splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")
        ]
        assert [line[0] for line in changed] == ["-", "+"]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.sampled_from(["a", "é", "<", "==", "1", "(", ")", "+", "[", ":", "]", "not ", " and ", "-"]), max_size=9
    )
)
def test_odd_expressions_give_programs_or_nothing(parts: list[str]) -> None:
    source = f"x = {''.join(parts)}\n"
    try:
        ast.parse(source)
    except (SyntaxError, MemoryError):
        return
    for fault in faults_of("x.py", source):
        if fault.makes_another_program(source):
            ast.parse(fault.put_into(source))


def test_tasks_are_made_again_the_same_and_a_larger_number_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run by the tests in a box, read as any data and solved; the statement names no line and no operator."""
    out = tmp_path / "made" / "x.jsonl"
    out.parent.mkdir()
    words = ["data", "swe-mutate", "--sdist", str(sdist(tmp_path)), "--seed", "3", "--out", str(out)]
    assert main([*words, "--num", "1"]) == 0
    first = out.read_text()
    assert main(["env", "validate", "swe_bench", f"env.path={out}", "--repeat", "1"]) == 0
    assert "1 of 1 tasks" in capsys.readouterr().out
    assert main([*words, "--num", "2"]) == 0
    both, tried = out.read_text(), out.with_name("x.jsonl.tried").read_text()
    assert both.startswith(first) and len(both.splitlines()) == 2
    out.unlink()
    assert main([*words, "--num", "2"]) == 0 and out.read_text() == both
    assert out.with_name("x.jsonl.tried").read_text() == tried
    for task in records.load(out):
        assert task.python_path == ("src",) and task.hidden_files == ("tests/test_small.py",)
        assert 1 <= len(task.fail_to_pass) <= 15 and len(task.pass_to_pass) >= 5
        assert task.gold_patch == task.setup_patch and task.gold_is_reversed
        assert task.problem_statement.startswith("`small.") and "small.py:" not in task.problem_statement


def test_what_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sdist_word, says in (("nothing-here", "name a .tar.gz, or NAME==VERSION"), (str(tmp_path), "no file there")):
        assert main(["data", "swe-mutate", "--sdist", sdist_word, "--out", str(tmp_path / "x.jsonl")]) == 2
        assert says in capsys.readouterr().err
    assert main(["data", "swe-mutat"]) == 2
    assert "known: swe-mutate" in capsys.readouterr().err
