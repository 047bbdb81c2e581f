"""Records of each kind → tasks, and what is told of those that aren't right. The fixtures are made by hand."""

from __future__ import annotations

import json
import logging
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from agentrl.cli.compose import load_config
from agentrl.config import RunConfig
from agentrl.envs.swe_bench import log_parsers, records
from agentrl.envs.swe_bench.data import MINI
from agentrl.envs.swe_bench.task import SweTask
from agentrl.errors import ConfigError

FIXTURES = Path(__file__).parent / "records"
F2P = ("tests/test_area.py::test_square_of_three",)
P2P = ("tests/test_area.py::test_square_of_two", "tests/test_line.py::test_length[a b-1]")
PYTHON = "/opt/miniconda3/envs/testbed/bin/python"


def tasks(name: str) -> list[SweTask]:
    found = records.load(FIXTURES / f"{name}.jsonl")
    assert {task.format for task in found} == {name}
    return found


def values(name: str, number: int = 0) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((FIXTURES / f"{name}.jsonl").read_text().splitlines()[number])
    return record


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refused(path: Path, *rows: dict[str, Any], format: str | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        records.load(written(path / "tasks.jsonl", *rows), format)
    return str(error.value)


@pytest.mark.parametrize("is_folder", [False, True])
def test_other_data_than_a_run_had_are_refused_when_it_is_resumed(is_folder: bool, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    file = written(folder / "train.jsonl", values("swe-bench"))
    config = load_config("swe_bench", [f"env.path={folder if is_folder else file}"])
    (folder / ".lock").write_text("what a tool left here is no data")
    stored = config.public()
    assert RunConfig.of_stored(stored, "x.db").env == config.env and stored["env"]["sha256"]
    written(file, values("swe-bench", 1))
    with pytest.raises(ValueError, match=r"data.*: other data than env\.sha256 says"):
        RunConfig.of_stored(stored, "x.db")
    shutil.rmtree(folder)
    with pytest.raises(ValueError, match="no file or folder there"):
        RunConfig.of_stored(stored, "x.db")
    assert RunConfig.of_stored(stored, "x.db", for_replay=True).env == config.env


def test_swe_bench() -> None:
    first, second = tasks("swe-bench")
    assert first.id == "psf__requests-99991" and first.repo == "psf/requests" and first.base_commit == "1" * 40
    assert first.image == "swebench/sweb.eval.x86_64.psf_1776_requests-99991:latest"
    assert (first.fail_to_pass, first.pass_to_pass) == (F2P, P2P)  # JSON in texts
    assert first.test_files == ("tests/test_area.py",) and "+    return side * side" in first.gold_patch
    assert (first.reports_by, first.python, first.workdir) == ("pytest", PYTHON, "/testbed")
    assert second.metadata["difficulty"] == "<15 min fix" and "patch" not in second.metadata


def test_swe_bench_5_by_pytest_where_that_runs_the_tests() -> None:
    first, second = tasks("swe-bench-5")
    assert first.image == "swebench/sweb.eval.x86_64.example_1776_shapes-13:latest"
    assert (first.reports_by, first.python) == ("pytest", PYTHON)
    assert first.test_arguments == first.test_files == ("tests/test_area.py", "tests/test_line.py")
    assert (second.reports_by, second.log_parser) == ("log", "parse_log_django")
    assert second.eval_script and "runtests.py" in second.eval_script and second.test_arguments == ()


def test_swe_bench_5_of_failures_only(tmp_path: Path) -> None:
    row = values("swe-bench-5", 1) | {"eval_type": "fail_only"}
    assert records.load(written(tmp_path / "tasks.jsonl", row))[0].fail_only
    assert "eval_type: 'all' is unknown" in refused(tmp_path, row | {"eval_type": "all"})


def test_swe_gym() -> None:
    (task,) = tasks("swe-gym")
    assert task.image == "xingyaoww/sweb.eval.x86_64.example_s_shapes-12:latest"
    assert (task.fail_to_pass, task.pass_to_pass) == (F2P, P2P)


def test_swe_smith_brings_the_fault_in() -> None:
    (task,) = tasks("swe-smith")
    assert task.image == "swebench/swesmith.x86_64.example_1776_shapes.1a2b3c4d"
    assert task.setup_patch == task.gold_patch and task.gold_is_reversed and task.base_commit is None
    assert "+    return side + side" in task.setup_patch
    assert task.hidden_files == ("tests/test_area.py",)
    assert task.test_files == ("tests/test_area.py", "tests/test_line.py")


def test_swe_smith_refuses_a_fault_in_a_test(tmp_path: Path) -> None:
    row = values("swe-smith")
    row["patch"] = row["patch"].replace("shapes/area.py", "tests/test_area.py")
    assert "patch: it changes tests/test_area.py" in refused(tmp_path, row)


def test_r2e_gym() -> None:
    (task,) = tasks("r2e-gym")
    assert task.id == task.image == "example/shapes_final:1a2b3c4d"
    assert task.expected == {"TestSquare.test_three": "passed", "test_odd": "failed", "test_line": "passed"}
    assert task.problem_statement.startswith("**Title**") and "ISSUE" not in task.problem_statement
    assert task.test_files == ("run_tests.sh", "r2e_tests/test_1.py")
    assert "+    assert area.square(3) == 9" in task.test_patch
    assert task.log_parser and log_parsers.is_ours(task.log_parser)


def test_r2e_gyms_names_are_those_of_its_parser() -> None:
    (task,) = tasks("r2e-gym")
    lines = ["PASSED r2e_tests/test_1.py::TestSquare::test_three", "FAILED r2e_tests/test_1.py::test_odd - assert 1"]
    lines += ["PASSED r2e_tests/test_1.py::test_line"]
    log = "\n".join(["=== short test summary info ===", *lines])
    assert task.log_parser and log_parsers.parse(task.log_parser, log).statuses == task.expected


def test_swe_rebench() -> None:
    first, second = tasks("swe-rebench")
    assert first.workdir == "/Shapes" and first.log_parser == "parse_log_pytest" and first.reports_by == "log"
    assert first.eval_script and "pytest -rA --color=no tests/test_area.py\n" in first.eval_script
    assert second.image == "docker.io/example/shapes-45:latest"
    assert second.eval_script and "cd area\ngo test -v ./...\n" in second.eval_script


def test_our_own(tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "agentrl.jsonl", tmp_path)
    with tarfile.open(tmp_path / "shapes-1.0.tar.gz", "w:gz"):
        pass
    (task,) = records.load(tmp_path / "agentrl.jsonl")
    assert task.format == "swe-mutate" and task.metadata == {"mutation": "operator"}
    assert task.source and task.source.path == str(tmp_path / "shapes-1.0.tar.gz") and len(task.source.sha256) == 64
    again = written(tmp_path / "again.jsonl", task.model_dump(mode="json"))
    assert records.load(again) == [task]


def test_a_source_takes_the_images_place(tmp_path: Path) -> None:
    (tmp_path / "shapes").mkdir()
    row = values("swe-bench") | {"source": {"kind": "tree", "path": "shapes"}}
    (task,) = records.load(written(tmp_path / "tasks.jsonl", row))
    assert task.image is None and task.source and task.source.path == str(tmp_path / "shapes")
    assert task.base_commit is None, "a tree has no commits to choose from"
    missing = refused(tmp_path, row | {"source": {"kind": "tree", "path": "gone"}})
    assert str(tmp_path / "gone") in missing and "restore it" in missing
    assert "source.kind" in refused(tmp_path, row | {"source": {"kind": "zip", "path": "shapes"}})


@pytest.mark.parametrize("kind", ["json", "parquet", "saved", "saved splits", "shards"])
def test_each_kind_of_file(kind: str, tmp_path: Path) -> None:
    rows = [values("swe-bench", 0) | {"difficulty": None, "eval_script": None}, values("swe-bench", 1)]
    expected = tasks("swe-bench")
    if kind == "json":
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps(rows))
    else:
        path = _with_datasets(kind, rows, tmp_path)
    assert records.load(path) == expected


def _with_datasets(kind: str, rows: list[dict[str, Any]], folder: Path) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    if kind == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "test.parquet")
        return folder / "test.parquet"
    if kind == "shards":  # as they lie in a copy of a repository of datasets
        (folder / "data").mkdir()
        for number, row in enumerate(rows):
            parquet.write_table(pyarrow.Table.from_pylist([row]), folder / f"data/test-{number:05}-of-00002.parquet")
        return folder
    datasets = pytest.importorskip("datasets")
    saved = datasets.Dataset.from_list(rows)
    (datasets.DatasetDict({"test": saved}) if kind == "saved splits" else saved).save_to_disk(folder / "saved")
    return folder / "saved"


def test_two_splits_are_never_mixed(tmp_path: Path) -> None:
    for split in ("dev", "test"):
        written(tmp_path / f"{split}.jsonl", values("swe-bench"))
    with pytest.raises(ConfigError, match=r"splits dev, test; name one.*dev\.jsonl"):
        records.load(tmp_path)


def test_a_repository_of_tasks(tmp_path: Path) -> None:
    shutil.copytree(MINI, tmp_path / "mini")
    task = tmp_path / "mini/tasks/agentrl-mini__daybook-8"
    config = task / "task.yaml"
    config.write_text(config.read_text().replace("split: test", "split: deprecated"))
    assert len(records.load(tmp_path / "mini")) == len(records.load(MINI)) - 1 == 11
    (tmp_path / "mini/tasks/agentrl-mini__daybook-14/gold.patch").unlink()
    (tmp_path / "mini/tasks/agentrl-mini__gridtext-31/tests.json").write_text("[]")
    kept, faults = records.read(tmp_path / "mini")
    assert len(kept) == 9
    assert "daybook-14/gold.patch: can't be read" in str(faults[0])
    assert "gridtext-31/tests.json: write one object" in str(faults[1])


@pytest.mark.parametrize(
    "change, told",
    [
        ({"FAIL_TO_PASS": "[oops"}, "FAIL_TO_PASS: no JSON"),
        ({"FAIL_TO_PASS": {"a": 1}}, "FAIL_TO_PASS: a dict; write a list of names of tests"),
        ({"PASS_TO_PASS": ["a", 3]}, "PASS_TO_PASS: a list with something else than texts"),
        ({"problem_statement": ""}, "problem_statement: empty; add it, or leave the record out"),
        ({"base_commit": 7}, "base_commit: a int, not a text"),
        ({"image_assets": {"test_patch": [{"path": "a.png"}]}}, "image_assets: its tests need pictures"),
    ],
)
def test_a_record_that_isnt_right_is_named(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    message = refused(tmp_path, values("swe-bench-5") | change)
    assert message.startswith(f"{tmp_path}/tasks.jsonl:1 (example__shapes-13): ") and told in message


def test_a_record_that_isnt_right_is_left_out_and_the_others_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = values("swe-bench"), values("swe-bench", 1) | {"FAIL_TO_PASS": 3}
    with caplog.at_level(logging.WARNING):
        (task,) = records.load(written(tmp_path / "tasks.jsonl", {"a": 1}, good, bad, good))
    assert task.id == good["instance_id"]
    told = [record.getMessage() for record in caplog.records]
    assert "tasks.jsonl:1" in told[0] and "no known kind" in told[0]
    assert "tasks.jsonl:3 (psf__requests-99992): FAIL_TO_PASS" in told[1]
    assert "tasks.jsonl:4" in told[2] and "an earlier task is called" in told[2]
    assert told[3].endswith("3 of 4 records are left out")


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("tasks.jsonl", b'{"a": \n%s\n', "tasks.jsonl:1: no JSON"),
        ("tasks.jsonl", b"\xff\n%s\n", "tasks.jsonl:1: not UTF-8"),
        ("tasks.json", b"[7, %s]", "tasks.json:1: a int, not an object"),
    ],
)
def test_what_is_no_record_at_all_is_left_out_like_one(name: str, text: bytes, told: str, tmp_path: Path) -> None:
    path, good = tmp_path / name, values("swe-bench")
    path.write_bytes(text % json.dumps(good).encode())
    ((task,), (fault,)) = records.read(path)
    assert task.id == good["instance_id"] and told in str(fault)


def test_an_unknown_kind_lists_the_known_ones(tmp_path: Path) -> None:
    row = values("swe-bench")
    del row["FAIL_TO_PASS"]
    message = refused(tmp_path, row)
    assert "swe-bench: FAIL_TO_PASS;" in message and "swe-gym: FAIL_TO_PASS, no environment_setup_commit" in message
    assert "(psf__requests-99991): FAIL_TO_PASS: missing" in refused(tmp_path, row, format="swe-bench")
    message = refused(tmp_path, row, format="swe-bench-6")
    assert "format=swe-bench-6: unknown" in message and "swe-bench-5" in message


def test_nothing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="never downloaded"):
        records.load("SWE-bench/SWE-bench_Lite")
    (tmp_path / "tasks.csv").write_text("a")
    with pytest.raises(ConfigError, match=r"\.jsonl, \.json, \.parquet"):
        records.load("tasks.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no dataset there"):
        records.load("empty")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ConfigError, match="no records in it"):
        records.load("empty.jsonl")
