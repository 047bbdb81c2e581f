"""Whole episodes by `agentrl env validate`: the gold patch is paid, and nothing isn't, wherever boxes come from."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.cli import main
from agentrl.envs.swe_bench.log_parsers import foreign
from agentrl.envs.swe_bench.task import SweTask
from tests.docker_engine import IMAGE, real_engine
from tests.envs.swe_bench.small import FILES, swe_task, write

WITH_REPOSITORY = "agentrl-test-sums:1"
FAILED_BEFORE = "test_add (tests.test_sums.Sums.test_add)"
PASSED_BEFORE = "test_double (tests.test_sums.Sums.test_double)"
UNITTEST = """\
import unittest

import sums


class Sums(unittest.TestCase):
    def test_double(self):
        self.assertEqual(sums.double(2), 4)
"""
MORE = """\
diff --git a/tests/test_sums.py b/tests/test_sums.py
--- a/tests/test_sums.py
+++ b/tests/test_sums.py
@@ -6,3 +6,6 @@
 class Sums(unittest.TestCase):
     def test_double(self):
         self.assertEqual(sums.double(2), 4)
+
+    def test_add(self):
+        self.assertEqual(sums.add(2, 3), 5)
"""
SCRIPT = """\
set -uxo pipefail
git apply --verbose nothing
: '>>>>> Start Test Output'
python3 -m unittest -v tests.test_sums
: '>>>>> End Test Output'
git checkout nothing
"""


def validated(folder: Path, *words: str, **tasks: SweTask) -> int:
    """The exit code, which is 1 unless each task's gold patch is paid and the policy that does nothing isn't."""
    path = folder / "tasks.jsonl"
    path.write_text("".join(task.model_copy(update={"id": id}).model_dump_json() + "\n" for id, task in tasks.items()))
    return main(["env", "validate", "swe_bench", f"env.path='{path}'", "--repeat", "1", *words])


def test_results_from_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(foreign.INTERPRETER, raising=False)
    files = {"sums/__init__.py": FILES["sums/__init__.py"], "sums/core.py": FILES["sums/core.py"]}
    folder = write(tmp_path / "sums", files | {"tests/__init__.py": "", "tests/test_sums.py": UNITTEST})
    task = swe_task(
        folder, reports_by="log", eval_script=SCRIPT, log_parser="parse_log_django", test_patch=MORE,
        test_files=("tests/test_sums.py",), hidden_files=(),
        fail_to_pass=(FAILED_BEFORE,), pass_to_pass=(PASSED_BEFORE,),
    )  # fmt: skip
    unreadable = task.model_copy(update={"log_parser": "parse_log_unheard"})
    local = ("sandbox.backend=local", "sandbox.options.unsafe=true")
    assert validated(tmp_path, *local, log=task, unreadable=unreadable) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 tasks" in out and "1 broken; 0 flaky" in out, out
    assert "✗ unreadable (train): the oracle: grade raised LogParserError: unreadable: the log parser" in out, out


@pytest.fixture
def image(tmp_path: Path) -> Iterator[str]:
    """The image of the tests with a repository in it that isn't clean, as SWE-bench's have them."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        archive.add(write(tmp_path / "in_image", FILES), "testbed")
    with real_engine() as client:
        made = client.create_container(IMAGE, ["true"])
        client.put_archive(made, "/", content.getvalue())
        client.commit(made, *WITH_REPOSITORY.split(":"))
        client.remove_container(made)
        yield WITH_REPOSITORY
        client.remove_image(WITH_REPOSITORY, force=True)


def test_docker(image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A task whose image has the repository, and one without an image, which gets the one of the settings."""
    of_image = swe_task(tmp_path, image=image, source=None)
    of_source = swe_task(write(tmp_path / "sums", FILES))
    words = ("sandbox=docker", f"sandbox.options.image={IMAGE}")
    assert validated(tmp_path, *words, image=of_image, source=of_source) == 0, capsys.readouterr().out
    assert "2 of 2 tasks" in capsys.readouterr().out
