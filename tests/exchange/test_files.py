"""The three kinds of files: they hold the same, are whole or not there, and others can read them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentrl.cli import main
from agentrl.errors import ConfigError, ExchangeError
from agentrl.exchange.examples import Form
from agentrl.exchange.exporting import CHUNK
from agentrl.exchange.files import reading, writing
from agentrl.types import Message, ToolCall
from tests.exchange.helpers import lines, stored
from tests.store.builders import sql, trajectory, turn
from tests.store.disks import small_disk
from tests.store.test_round_trip import any_text

KINDS = [".jsonl", ".parquet", ""]
FORMS = ["messages", "tokens", "trajectories"]


def export(database: str, form: str, target: Path, *words: str) -> int:
    return main(["export", form, str(target), "--db", database, "--tools", "none", *words])


def examples(path: Path) -> list[dict[str, Any]]:
    return [without_none(example) for _, example in reading(path)]


def without_none(value: Any) -> Any:
    """Columns give what isn't there as null, or not at all."""
    if isinstance(value, dict):
        return {name: without_none(item) for name, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


def saying(*texts: str, **changes: Any) -> Any:
    """A trajectory whose replies are these texts, each with a call."""
    turns = [
        turn(
            place,
            parent=place - 1 if place else None,
            keep=5 * place,
            prompt_messages=[Message(role="user", content=text)],
            message=Message(role="assistant", content=text, tool_calls=[ToolCall(id="c", name=text, arguments=text)]),
        )
        for place, text in enumerate(texts)
    ]
    return trajectory("", turns=turns, **changes)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """70 trajectories: more than a batch."""
    own = [saying("a", '{"x": [1, "é"]}') for _ in range(70)]
    return stored(tmp_path_factory.mktemp("stored") / "s.db", *own)


@pytest.mark.parametrize("form", FORMS)
def test_each_kind_holds_the_same(form: str, database: str, tmp_path: Path) -> None:
    for kind in KINDS:
        assert export(database, form, tmp_path / f"out{kind}") == 0
    found = [examples(tmp_path / f"out{kind}") for kind in KINDS]
    assert len(found[0]) == 70 and found[0] == found[1] == found[2]


@pytest.mark.parametrize("form", FORMS)
def test_datasets_loads_the_folder_and_the_parquet_file(form: str, database: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    expected = without_none(lines_of(database, form, tmp_path))
    assert export(database, form, tmp_path / "folder") == 0 == export(database, form, tmp_path / "out.parquet")
    folder = datasets.load_from_disk(str(tmp_path / "folder"))
    file = datasets.Dataset.from_parquet(str(tmp_path / "out.parquet"), cache_dir=str(tmp_path / "cache"))
    assert [without_none(example) for example in folder] == expected == [without_none(example) for example in file]


def lines_of(database: str, form: str, folder: Path) -> list[dict[str, Any]]:
    assert export(database, form, folder / "lines.jsonl") == 0
    return lines(folder / "lines.jsonl")


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(st.tuples(any_text, any_text), min_size=1, max_size=40))
def test_j03_any_text_is_kept_or_its_loss_is_told(kind: str, texts: list[tuple[str, str]], tmp_path: Path) -> None:
    """NUL is kept; a lone surrogate, which is no Unicode, becomes what tokenizers make of it, and is counted."""
    examples = [
        {"messages": [{"role": "user", "content": text}], "tools": [{key: text}], "provenance": {"env": text}}
        for text, key in texts
    ]
    target = tmp_path / f"out{kind}"
    with writing(target, Form.MESSAGES, overwrite=True) as sink:
        for example in examples:
            sink.write(example)
    clean = [json.loads(as_unicode(json.dumps(example, ensure_ascii=False))) for example in examples]
    assert [example for _, example in reading(target)] == clean
    assert sink.num_cleaned == sum(now != was for now, was in zip(clean, examples, strict=True))


def as_unicode(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)


def test_text_that_is_no_unicode_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = stored(tmp_path / "s.db", saying("a\udcff\x00"), saying("b"))
    assert export(database, "messages", tmp_path / "out.jsonl") == 0
    assert "cleaned   1: text that is no Unicode" in capsys.readouterr().out
    assert lines(tmp_path / "out.jsonl")[0]["messages"][0]["content"] == "a\ufffd\x00"
    assert export(database, "trajectories", tmp_path / "whole.jsonl") == 0
    assert "cleaned" not in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- whole or not there


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize("kind", KINDS)
def test_a_target_that_is_there_is_replaced_only_when_told(
    kind: str, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / f"out{kind}"
    assert export(database, "messages", target) == 0
    before = examples(target)
    assert export(database, "tokens", target) == 2
    assert f"{target} is there already; add --overwrite" in one_line(capsys)
    assert examples(target) == before
    assert export(database, "tokens", target, "--overwrite") == 0
    assert examples(target) != before and os.listdir(tmp_path) == [target.name]


def test_a_folder_of_somebody_is_never_replaced(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("years of work")
    assert export(database, "messages", tmp_path / "home", "--overwrite") == 2
    assert "a folder that no export made" in one_line(capsys)
    assert (tmp_path / "home" / "thesis").read_text() == "years of work"


@pytest.mark.parametrize(("name", "says"), [("out.csv", ".csv is no kind"), ("no/out.jsonl", "there is no folder")])
def test_a_target_that_cannot_be_is_named(
    name: str, says: str, database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(database, "messages", tmp_path / name) == 2
    assert says in one_line(capsys)


@pytest.mark.parametrize("name", ["a.jsonl", "a"])
def test_what_another_export_made_meanwhile_stays(name: str, tmp_path: Path) -> None:
    target = tmp_path / name
    with (
        pytest.raises(ConfigError, match="is there already; add --overwrite"),
        writing(target, Form.TRAJECTORIES),
        writing(target, Form.TRAJECTORIES) as other,
    ):
        other.write({"trajectory": {}, "grades": [], "provenance": {"run": "other"}})
    assert [one["provenance"]["run"] for _, one in reading(target)] == ["other"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_stop_between_the_two_renames_leaves_the_older_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "a", Path.rename
    with writing(target, Form.TRAJECTORIES) as sink:
        sink.write({"trajectory": {}, "grades": [], "provenance": {"run": "old"}})

    def stopped(path: Path, to: Path) -> Path:
        if path.suffix == ".part":
            raise KeyboardInterrupt
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(KeyboardInterrupt), writing(target, Form.TRAJECTORIES, overwrite=True):
        pass
    assert [one["provenance"]["run"] for _, one in reading(target)] == ["old"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fills_up_leaves_the_older_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = [saying(os.urandom(20_000).hex()) for _ in range(60)]
    database = stored(tmp_path / "s.db", *noise)
    with small_disk(tmp_path / "disk", "1m") as disk:
        target = disk.folder / f"out{kind}"
        assert export(database, "messages", target) == 1
        assert f"{target}: No space left on device; nothing was written. Free some space" in one_line(capsys)
        assert os.listdir(disk.folder) == []
        small = noise[0].id
        assert export(database, "tokens", target, "--id", small) == 0
        before = examples(target)
        assert export(database, "messages", target, "--overwrite") == 1
        capsys.readouterr()
        assert examples(target) == before and os.listdir(disk.folder) == [target.name]


def test_a_folder_that_cannot_be_written_to_is_named(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        disk.mount("remount", "ro")
        assert export(database, "messages", disk.folder / "out.jsonl") == 1
        assert "Read-only file system; nothing was written" in one_line(capsys)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_j07_a_stop_leaves_the_older_file_and_nothing_else(number: signal.Signals, code: int, tmp_path: Path) -> None:
    one = saying("x" * 20_000)
    copies = [saying("x" * 20_000) for _ in range(400)]
    database = stored(tmp_path / "s.db", one, *copies)
    target = tmp_path / "out.jsonl"
    assert export(database, "messages", target, "--id", one.id) == 0
    before = target.read_bytes()
    words = ["export", "messages", str(target), "--db", database, "--tools", "none", "--overwrite"]
    program = "import sys; from agentrl.cli import main; sys.exit(main(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        while not list(tmp_path.glob(".out.jsonl.*.part")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, "agentrl export: stopped\n")
    assert target.read_bytes() == before and not list(tmp_path.glob(".*"))


# -------------------------------------------------------------------------------------------------------- damaged


@pytest.fixture
def damaged(tmp_path: Path) -> str:
    path = stored(tmp_path / "s.db", *(saying("a", id=id) for id in ("good1", "bad", "good2")))
    sql(path, "update turns set message = 'no json' where trajectory_id = 'bad'")
    return path


def test_a_damaged_record_is_named_and_stops_the_export(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(damaged, "messages", tmp_path / "out.jsonl") == 1
    assert "turns: trajectory_id=bad, turn=0" in one_line(capsys)
    assert os.listdir(tmp_path) == ["s.db"]


def test_the_rest_is_exported_where_damaged_records_are_skipped(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(damaged, "trajectories", tmp_path / "out.jsonl", "--skip-damaged") == 0
    captured = capsys.readouterr()
    assert "left out: " in captured.err and "trajectory_id=bad" in captured.err
    assert "wrote 2 examples from 3 trajectories" in captured.out and "left out  1: damaged" in captured.out
    assert [one["trajectory"]["id"] for one in lines(tmp_path / "out.jsonl")] == ["good1", "good2"]


def test_a_damaged_grade_counts_as_the_trajectorys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path / "s.db", saying("a", id="bad"), saying("a", id="good"))
    sql(path, "update grades set parts = 'no json' where trajectory_id = 'bad'")
    assert export(path, "messages", tmp_path / "out.jsonl", "--skip-damaged") == 0
    assert "grades: " in capsys.readouterr().err
    assert [one["provenance"]["trajectory"] for one in lines(tmp_path / "out.jsonl")] == ["good"]


@pytest.mark.parametrize(
    ("name", "content", "error", "says"),
    [
        ("a.jsonl", b'{"a": 1}\nno\n', ExchangeError, "line 2: no JSON"),
        ("a.jsonl", b"[1]\n", ExchangeError, "line 1: a list where an object was due"),
        ("a.jsonl", b'{"a": "\xff"}\n', ExchangeError, "line 1: invalid start byte at byte 7; save the file as UTF-8"),
        ("a.parquet", b"PAR1 no", ExchangeError, "can't be read behind example 0"),
        ("a.csv", b"a,b", ConfigError, ".csv is no kind of file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    name: str, content: bytes, error: type[Exception], says: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=says):
        list(reading(tmp_path / name))


def test_a_folder_that_is_no_data_set_and_a_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    for path, says in ((tmp_path, "state.json is missing"), (tmp_path / "no.jsonl", "there is no such file")):
        with pytest.raises(ConfigError, match=says):
            list(reading(path))


def test_only_a_part_of_the_trajectories_is_in_memory(tmp_path: Path) -> None:
    """Three times the trajectories need no more memory: what is read and not yet written is bounded."""

    def peak(database: str) -> int:
        tracemalloc.start()
        assert export(database, "messages", tmp_path / "out.jsonl", "--overwrite") == 0
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = (
        stored(tmp_path / f"{num}.db", *(saying("x" * 40_000) for _ in range(num))) for num in (2 * CHUNK, 6 * CHUNK)
    )
    assert peak(few) and peak(many) < 1.3 * peak(few)
