"""The dataset environment: files, columns, splits, reward functions, tools, and what each mistake says."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from agentrl import plugins
from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.envs import rewards
from agentrl.envs.dataset import Dataset, DatasetConfig
from agentrl.errors import ConfigError
from agentrl.rollout.loop import RolloutSpec
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ScriptedSampler
from agentrl.types import Message, Sample, StopReason, Task, Trajectory
from tests.envs import reward_functions
from tests.rollout.loops import TextClient, call, make_loop

HERE = "tests.envs.reward_functions"


def jsonl(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def sums(path: Path, count: int = 200) -> str:
    return jsonl(path, *({"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(count)))


def both(config: DatasetConfig) -> tuple[list[Task], list[Task]]:
    return list(Dataset.tasks(config, "train")), list(Dataset.tasks(config, "held_out"))


def all_of(path: str, **options: Any) -> list[Task]:
    return list(Dataset.tasks(DatasetConfig(path=path, held_out_fraction=0, **options), "train"))


# ----------------------------------------------------------------------------------------------- files, columns


@pytest.mark.parametrize("prompt", ["prompt", "question", "problem", "instruction"])
@pytest.mark.parametrize("answer", ["answer", "solution"])
def test_the_usual_columns_are_found(prompt: str, answer: str, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", {"id": 1, prompt: "1 + 1?", answer: 2})
    (task,) = all_of(path)
    assert task.messages == [Message(role="user", content="1 + 1?")] and task.data == {"answer": 2}
    assert (task.id, task.split, task.env) == ("line-1", "train", "dataset")


def test_conversations_system_message_and_further_columns(tmp_path: Path) -> None:
    talk = [{"role": "system", "content": "own"}, {"role": "user", "content": "hi"}]
    path = jsonl(tmp_path / "x.jsonl", {"messages": talk, "level": 3}, {"messages": talk[1:], "level": [1, {"a": 2}]})
    one, two = all_of(path, system="Be brief.", columns=("level",))
    assert [m.text for m in one.messages] == ["own", "hi"] and [m.text for m in two.messages] == ["Be brief.", "hi"]
    assert one.data == {"columns": {"level": 3}} and two.data == {"columns": {"level": [1, {"a": 2}]}}
    assert Dataset(DatasetConfig(path=path)).oracle(one) is None


def test_parquet_and_jsonl_are_the_same(tmp_path: Path) -> None:
    records = [
        {"question": f"q{n}", "answer": n, "x": n, "messages": [{"role": "user", "content": f"m{n}"}]} for n in range(9)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(records), tmp_path / "x.parquet")
    path = jsonl(tmp_path / "x.jsonl", *records)
    for options in ({"prompt": "question"}, {"prompt": "messages", "columns": ("x",)}):
        ours, theirs = all_of(path, **options), all_of(str(tmp_path / "x.parquet"), **options)
        assert [task.model_dump() for task in ours] == [task.model_dump() for task in theirs] and len(ours) == 9


def test_a_byte_order_mark_blank_lines_and_odd_text(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = ['{"prompt": "é", "answer": "1"}', "", '{"prompt": "\\ud800\\u0000", "answer": null}', "  "]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    one, two = all_of(str(path))
    assert one.messages[0].text == "é" and two.messages[0].text == "\ud800\0" and two.id == "line-3"


GOOD = {"prompt": "1 + 1?", "answer": "2"}


@pytest.mark.parametrize(
    ("lines", "options", "says"),
    [
        ([GOOD, "{"], {}, "x.jsonl:2: no JSON"),
        (["[1]"], {}, "x.jsonl:1: a list, not an object; write one JSON object per line"),
        ([GOOD, '{"prompt": NaN}'], {}, "x.jsonl:2: no JSON: NaN"),
        ([GOOD, "[" * 100_000], {}, "x.jsonl:2: no JSON"),
        ([GOOD, {"prompt": "x"}], {}, "x.jsonl:2: no column 'answer'. Columns: prompt"),
        ([{"text": "x", "answer": "y"}], {}, "x.jsonl:1: no column named prompt or question"),
        (
            [{**GOOD, "question": "x"}],
            {},
            "prompt and question may be the prompt; say which with env.prompt. Columns: p",
        ),
        ([{**GOOD, "solution": "x"}], {}, "answer and solution may be the answer; say which with env.answer. Columns"),
        ([GOOD], {"prompt": "promt"}, "env.prompt=promt is no column. Columns: prompt, answer"),
        ([GOOD], {"answer": "anser"}, "env.answer=anser is no column. Columns: prompt, answer"),
        ([GOOD], {"columns": ("level",)}, "env.columns names 'level'. Columns: prompt, answer"),
        ([GOOD, {"prompt": " ", "answer": "1"}], {}, "x.jsonl:2: prompt is empty"),
        ([GOOD, {"prompt": 3, "answer": "1"}], {}, "x.jsonl:2: prompt: Input should be a valid list"),
        ([{"prompt": [{"role": "boss", "content": "x"}]}], {}, "x.jsonl:1: prompt.0.role"),
        ([{"prompt": []}], {}, "x.jsonl:1: the last of prompt is none"),
        ([{"prompt": [{"role": "assistant", "content": "x"}]}], {}, "the last of prompt is assistant"),
        ([], {}, "the file holds no examples"),
        ([""], {}, "the file holds no examples"),
    ],
)
def test_a_bad_file_names_the_line(
    lines: list[Any], options: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    with pytest.raises(ConfigError) as caught:
        all_of(str(path), **options)
    assert says in str(caught.value) and str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_that_is_not_utf_8_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"prompt": "caf\xe9"}\n')
    with pytest.raises(ConfigError, match=r"x\.jsonl:2: not UTF-8 \(byte 16 of the line\)"):
        all_of(str(path))


def test_bad_parquet_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(ConfigError, match=r"x\.parquet: no Parquet file"):
        all_of(str(path))
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"], "answer": [datetime(2026, 1, 1)] * 2}), path)
    with pytest.raises(ConfigError, match=r"x\.parquet:1: answer holds a datetime"):
        all_of(str(path))
    parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    with pytest.raises(ConfigError, match=r"no column named prompt .* Columns: text"):
        all_of(str(path))
    parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(ConfigError, match="holds no examples"):
        all_of(str(path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[data\]'"):
        all_of(str(path), split_seed=1)


# ------------------------------------------------------------------------------------------------------ splits


def test_the_split_is_disjoint_seeded_and_stable_when_lines_are_added(tmp_path: Path) -> None:
    config = DatasetConfig(path=sums(tmp_path / "x.jsonl"))
    train, held_out = both(config)
    assert len(train) + len(held_out) == 200 and 8 <= len(held_out) <= 36
    assert not {task.key for task in train} & {task.key for task in held_out}
    assert {task.split for task in train} == {"train"} and {task.split for task in held_out} == {"held_out"}
    longer_train, longer_held_out = both(DatasetConfig(path=sums(tmp_path / "y.jsonl", 300)))
    assert {task.key for task in train} <= {task.key for task in longer_train}
    assert {task.key for task in held_out} <= {task.key for task in longer_held_out}
    _, other = both(DatasetConfig(path=config.path, split_seed=1))
    assert {task.key for task in other} != {task.key for task in held_out}


def test_the_same_prompt_is_never_on_both_sides(tmp_path: Path) -> None:
    records = [{"prompt": f"p{n % 50}", "answer": n} for n in range(200)]
    train, held_out = both(DatasetConfig(path=jsonl(tmp_path / "x.jsonl", *records), held_out_fraction=0.5))
    assert len(train) + len(held_out) == 200  # another answer makes another task …
    assert not {t.messages[0].text for t in train} & {t.messages[0].text for t in held_out}  # … on the same side


def test_duplicates_are_left_out_and_counted(tmp_path: Path) -> None:
    records = [{"prompt": f"p{n % 40}", "answer": 0, "source": n} for n in range(100)]
    config = DatasetConfig(path=jsonl(tmp_path / "x.jsonl", *records), held_out_fraction=0.3)
    train, held_out = both(config)
    assert len(train) + len(held_out) == 40 and len({task.id for task in [*train, *held_out]}) == 40
    references = Dataset.references(config, held_out)
    assert references == {"num_train": len(train), "num_held_out": len(held_out), "num_duplicates": 60}


def test_held_out_prompts_are_taken_out_of_the_train_file(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "x.jsonl", *({"prompt": f"p{n}", "answer": 0} for n in range(10)))
    test = jsonl(tmp_path / "y.jsonl", *({"question": f"p{n}", "solution": 1} for n in (3, 4, 20)))
    config = DatasetConfig(path=path, held_out_path=test)
    train, held_out = both(config)
    assert [task.messages[0].text for task in held_out] == ["p3", "p4", "p20"]
    assert [task.messages[0].text for task in train] == [f"p{n}" for n in (0, 1, 2, 5, 6, 7, 8, 9)]
    assert Dataset.references(config, held_out)["num_duplicates"] == 2


@pytest.mark.parametrize(("fraction", "split"), [(0.0, "held_out"), (1.0, "train")])
def test_an_empty_split_says_what_to_change(fraction: float, split: str, tmp_path: Path) -> None:
    config = DatasetConfig(path=sums(tmp_path / "x.jsonl", 5), held_out_fraction=fraction)
    with pytest.raises(ConfigError, match=rf"none is {split}; change it, or name .* env\.held_out_path"):
        Dataset.tasks(config, split)


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = sums(tmp_path / "x.jsonl", 5)
    config = load_config("dataset", [f"env.path={path}"])
    assert type(config).model_validate(config.public()) == config  # as a resumed run reads it
    sums(tmp_path / "x.jsonl", 6)
    with pytest.raises(ValueError, match=r"other data than env\.sha256"):
        type(config).model_validate(config.public())
    assert load_config("dataset", [f"env.path={path}"]) != config


# ----------------------------------------------------------------------------------------------------- rewards


async def play(renderer: Renderer, config: DatasetConfig, *texts: str, oracle: bool = False, **limits: Any) -> Sample:
    def scripted(env: Dataset, trajectory: Trajectory) -> ScriptedSampler:
        player = env.oracle(trajectory.task)
        assert player is not None
        return ScriptedSampler(player, renderer)

    loop = make_loop(
        renderer, TextClient(renderer, *texts), env=Dataset, config=config,  # type: ignore[arg-type]
        sampler=scripted if oracle else None, **limits,
    )  # fmt: skip
    return await loop.run(RolloutSpec(run="run", task=Dataset.tasks(config, "train")[0], group=None))


def config_of(tmp_path: Path, reward: str, **options: Any) -> DatasetConfig:
    path = jsonl(tmp_path / "x.jsonl", {"prompt": "Say red.", "answer": "red", "level": 2})
    return DatasetConfig(path=path, held_out_fraction=0, reward=reward, columns=("level",), **options)


@pytest.mark.parametrize(
    ("reward", "text", "expected"),
    [("exact", " red ", 1.0), ("exact", "red.", 0.0), ("contains", "It is red.", 1.0), (f"{HERE}:length", "four", 4.0),
     (f"{HERE}:slowly", "red", 1.0), (f"{HERE}:everything", "x", 1.0), (f"{HERE}:in_a_thread", "x", 1.0)],
)  # fmt: skip
async def test_reward_functions(reward: str, text: str, expected: float, renderer: Renderer, tmp_path: Path) -> None:
    sample = await play(renderer, config_of(tmp_path, reward), text)
    assert sample.reward == expected and sample.grade is not None and sample.grade.grader == reward
    assert sample.trajectory.artifacts.data == {"reward": reward}  # so that it can be graded again without a config
    if reward.endswith("slowly"):
        assert sample.grade.parts == {"level": 2.0}


@pytest.mark.parametrize(
    ("function", "says"),
    [("nothing", "it returned None"), ("words", "returned a str"), ("broken", "ZeroDivisionError: broken on purpose")],
)
async def test_R2_what_is_not_measured_is_no_zero(function: str, says: str, renderer: Renderer, tmp_path: Path) -> None:
    sample = await play(renderer, config_of(tmp_path, f"{HERE}:{function}"), "red")
    assert sample.reward is None and sample.grade is not None and says in str(sample.grade.unmeasured)


async def test_r4_a_reward_function_that_hangs_is_unmeasured(renderer: Renderer, tmp_path: Path) -> None:
    reward_functions.RELEASED.clear()
    config = config_of(tmp_path, f"{HERE}:hangs")
    hanging = asyncio.create_task(play(renderer, config, "red", grade_timeout_s=3))
    other = await play(renderer, config.model_copy(update={"reward": "exact"}), "red")
    assert other.reward == 1.0 and not hanging.done()
    sample = await hanging
    assert sample.reward is None and sample.grade is not None and "longer than 3 s" in str(sample.grade.unmeasured)
    reward_functions.RELEASED.set()


async def test_the_oracle_says_the_answer(renderer: Renderer, tmp_path: Path) -> None:
    sample = await play(renderer, config_of(tmp_path, "exact"), oracle=True)
    assert sample.reward == 1.0 and sample.trajectory.turns[-1].message.text == "red"


async def test_with_tools_there_are_several_turns(renderer: Renderer, tmp_path: Path) -> None:
    config = config_of(tmp_path, f"{HERE}:num_calls", tools=("calculator", f"{HERE}:shout"))
    texts = [call("calculator", '{"expression": "1 + 1"}'), call("shout", '{"text": "hey"}'), "red"]
    sample = await play(renderer, config, *texts)
    assert sample.trajectory.stop_reason is StopReason.COMPLETED and sample.reward == 2.0
    results = [call.result for turn in sample.trajectory.turns for call in turn.tool_calls]
    assert results == ["2", "HEY"]


async def test_a_reply_that_never_came_is_graded_as_an_empty_one(renderer: Renderer, tmp_path: Path) -> None:
    sample = await play(renderer, config_of(tmp_path, f"{HERE}:length"), "x", max_context_tokens=3)
    assert sample.trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW and sample.reward == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("so -1.5.", Fraction(-3, 2)), ("1,000,000 in all", 10**6), ("3/4", Fraction(3, 4)), ("2e3", 2000),
     ("$12.50", Fraction(25, 2)), ("5-3", 3), ("a−2", 2), ("is −2", -2), (".5", Fraction(1, 2)), ("1,2", 2),
     ("12,3456", 3456), ("#### 72", 72), ("72kg", 72), ("x2", None), ("no", None), ("", None), ("- 5", 5),
     ("1/0", None), ("7 of 8", 8), ("٣", None)],
)  # fmt: skip
def test_last_number(text: str, value: Any) -> None:
    assert rewards.last_number(text) == value


@settings(deadline=None)
@given(st.integers(-(10**12), 10**12), st.integers(0, 6), st.text(alphabet="abc ,.!?", max_size=9))
def test_a_number_is_read_as_it_is_written(number: int, places: int, before: str) -> None:
    value = Fraction(number, 10**places)
    decimal = f"{'-' if number < 0 else ''}{abs(number) // 10**places}.{abs(number) % 10**places:0{places}d}"
    for text in (decimal if places else str(number), f"{value}", f"{number:,}"):
        expected = Fraction(number) if text == f"{number:,}" else value
        assert rewards.last_number(f"1 2 {before} {text}.") == expected


@settings(deadline=None)
@given(st.text())
def test_any_reply_can_be_graded(text: str) -> None:
    for function in rewards.BUILT_IN.values():
        assert function(text, "4") in (True, False, None) and function("4", text) in (True, False, None)


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [("The answer is (B).", "B", True), ("answer: b", "B", False), ("Answer: **C**", "C", True), ("B", "(B)", True),
     ("B) because A is wrong", "B", True), ("(A) or (B)? (A)", "A", True), ("I think so", "B", False),
     ("Bananas", "B", False), ("The answer is A. No, the answer is D", "D", True), ("", "A", False),
     ("A", "pear", None)],
)  # fmt: skip
def test_choice(reply: str, answer: str, right: bool | None) -> None:
    assert rewards.choice(reply, answer) is right


@pytest.mark.parametrize(
    ("reply", "answer", "right"),
    [("It is 1,234.0", "1234", True), ("1/2", 0.5, True), ("41 42 43", 42, False), ("none", "4", False),
     ("72", "6 * 12 = 72\n#### 72", True), ("3", "three", None)],
)  # fmt: skip
def test_number(reply: str, answer: Any, right: bool | None) -> None:
    assert rewards.number(reply, answer) is right


# ------------------------------------------------------------------------------------------ mistakes at start


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["env.reward=exakt"], "env.reward=exakt: nearest: exact; known: exact, contains, number, choice"),
        (
            ["env.reward=no.such.module:f"],
            "env.reward=no.such.module:f: importing no.such.module failed: ModuleNotFound",
        ),
        (["env.reward=tests.envs.broken_module:f"], "RuntimeError: this module is broken on purpose"),
        ([f"env.reward={HERE}:lenght"], "has no 'lenght'; nearest: length"),
        ([f"env.reward={HERE}:NOT_A_FUNCTION"], "that is a int, no function"),
        ([f"env.reward={HERE}:wants_too_much"], "it takes 'mood'; a reward function may name reply, answer, columns"),
        (["env.tools=[calculater]"], "unknown tool 'calculater'; known: calculator"),
        ([f"env.tools=[{HERE}:untyped]"], "parameter text needs a type annotation"),
        ([f"env.tools=[{HERE}:NOT_A_FUNCTION]"], "is a int; name a function or a Tool"),
        (["env.tools=[calculator,calculator]"], "two tools have the same name"),
        (["env.path=nowhere.jsonl"], "env.path='nowhere.jsonl': no file there"),
        (["env.path=null"], "Name a JSONL or Parquet file with env.path"),
        (["env.held_out_path=nowhere.jsonl"], "env.held_out_path='nowhere.jsonl': no file there"),
        (["env.held_out_fraction=0"], "none is held_out"),
        (["env.rewrad=exact"], "unknown key 'env.rewrad'; nearest: env.reward"),
        (["env.sha256=abc"], "other data than env.sha256 says"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sums(tmp_path / "x.jsonl", 20)
    code = main(["train", "--env", "dataset", f"env.path={path}", *options, f"runs_dir={tmp_path}/runs"])
    err = capsys.readouterr().err
    assert code == 2 and says in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


SMALL = ["sft.demonstrations=4", "sft.steps=1", "sft.batch_size=2", "env.held_out_fraction=0"]


@pytest.mark.parametrize(
    ("record", "option", "code", "says"),
    [
        ({"prompt": "hello"}, "limits.max_turns=1", 2, "no demonstrator and no oracle, so there is nothing to imitate"),
        ({"prompt": "hello", "answer": "you"}, "limits.max_context_tokens=2", 1, "none of 4 demonstrations gave"),
    ],
)
def test_a_warm_start_without_anything_to_imitate_says_so(
    record: dict[str, str], option: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*SMALL, f"env.path={jsonl(tmp_path / 'x.jsonl', record)}", f"runs_dir={tmp_path}", option]
    assert main(["sft", "--env", "dataset", *options, f"model.cache_dir={tmp_path}"]) == code
    err = capsys.readouterr().err
    assert says in err and len(err.strip().splitlines()) == 1


def test_it_is_listed_and_loads_neither_pyarrow_nor_gymnasium() -> None:
    code = (
        "import sys\nfrom agentrl.cli import main\nmain(['env', 'list'])\n"
        "print([name for name in ('pyarrow', 'gymnasium', 'torch') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.splitlines()
    states = {line.split()[0]: line.split()[-1] for line in out[:-1]}
    assert states["dataset"] == states["gymnasium"] == "ok" and out[-1] == "[]"


def test_it_is_found_by_its_entry_point() -> None:
    assert plugins.environment("dataset") is Dataset
