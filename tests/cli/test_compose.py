"""The command line's keys: a mistake is one line that names the key and the nearest right one (exit code 2)."""

from __future__ import annotations

import pytest
import yaml

from agentrl.cli import main
from agentrl.cli.compose import load_config
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.transport import key_of


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("trainer.lr_rate=1e-6", "train.learning_rate"),
        ("train.lr=1e-6", "train.learning_rate"),
        ("env.max_tunrs=5", "limits.max_turns"),
        ("env.lvel=2", "env.level"),
        ("engine.url=http://x", "engine.urls"),
        ("+train.learning_rate=1", "train.learning_rate"),
        ("++train.new=1", "can't be added"),
        ("~train.steps", "train.steps"),
        ("train.learning_rate=abc", "train.learning_rate='abc'"),
        ("train.steps=1.5", "train.steps=1.5"),
        ("train.steps=1,2", "one value per key"),
        ("env.level=9", "env.level=9"),
        ("model=tny", "nearest: tiny"),
        ("engine=vlm", "embedded"),
        ("algorithm.group_size=1", "at least 2"),
        ("algorithm.aggregation=mean", "'token' or 'trajectory'"),
        ("limits.max_turns=[1", "can't read"),
        ("limits.max_turns.x=1", "limits.max_turns"),
        ("train", "key=value"),
    ],
)
def test_K01_a_mistake_is_one_line_and_exit_code_2(
    override: str, says: str, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    code = main(["train", "--env", "calculator", override, f"runs_dir={tmp_path}"])
    out, err = capsys.readouterr()
    assert code == 2 and out == ""
    assert says in err and len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "runs"),
    [
        ("12345678e901", ["12345678e901"]),
        ("[799231080042, demo]", ["799231080042", "demo"]),
        ("['a b',c]", ["a b", "c"]),
        ("20261129-184809-train-calculator", ["20261129-184809-train-calculator"]),
    ],
)
def test_a_run_is_named_by_text_whatever_it_looks_like(given: str, runs: list[str]) -> None:
    assert load_config("calculator", ["source=replay", f"source.runs={given}"]).source.runs == runs


@pytest.mark.parametrize(
    "text", ["239538133059", "012345678901", "12345678e901", "20261130", "1.5", "a 5", "demo", "null"]
)
def test_a_name_is_text_whatever_it_looks_like(text: str) -> None:
    named = load_config("calculator", [f"name={text}", f"sft.run={text}"])
    assert named.name == named.sft.run == (None if text == "null" else text)


@pytest.mark.parametrize(("name", "meant"), [("calculater", "calculator"), ("swe_bensh", "swe_bench")])
def test_K01_an_unknown_environment_lists_the_known(name: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", name]) == 2
    err = capsys.readouterr().err
    assert repr(name) in err and meant in err


def test_no_environment_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "--env NAME" in capsys.readouterr().err


def test_env_can_be_given_as_a_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--cfg", "env=calculator", "env.level=3"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["env"] == {
        "name": "calculator", "level": 3, "max_operand": 20, "train_tasks": 4096, "held_out_tasks": 512, "task_seed": 0,
            "hasty": 0.65, "lying": False,
    }  # fmt: skip


def test_cfg_prints_every_key_and_its_output_is_a_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "calculator", "--cfg", "train.steps=7"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed == load_config("calculator", ["train.steps=7"]).public()
    assert RunConfig.model_validate(printed).train.steps == 7


def test_the_environments_yaml_sets_keys_and_the_command_line_wins() -> None:
    assert load_config("calculator").limits.max_turns == 5
    assert load_config("calculator", ["limits.max_turns=9"]).limits.max_turns == 9


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("engine", ["embedded", "vllm", "scripted"])
def test_any_model_goes_with_any_engine(model: str, engine: str) -> None:
    config = load_config("calculator", [f"model={model}", f"engine={engine}"])
    assert (config.model.path, config.engine.name) == (model, engine)


def test_an_option_that_is_a_mapping_takes_any_key() -> None:
    overrides = ["env.kwargs.is_slippery=false", "env.kwargs.desc=[SF,FG]", "env.kwargs.deep.er=1"]
    options = load_config("gymnasium", overrides).public()["env"]
    assert options["kwargs"] == {"is_slippery": False, "desc": ["SF", "FG"], "deep": {"er": 1}}
    assert load_config("gymnasium", ["env.kwargs={a: 1}"]).public()["env"]["kwargs"] == {"a": 1}
    with pytest.raises(ConfigError, match=r"unknown key 'env\.kwarg\.a'"):
        load_config("gymnasium", ["env.kwarg.a=1"])


def test_secrets_are_not_in_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "hush")
    config = load_config("calculator", ["engine.key_env=MY_KEY", "store.url='postgresql://me:hush@localhost/x'"])
    assert key_of(config.engine) == "hush" and "hush" not in str(config.public())


def test_a_group_of_one_is_refused_D02() -> None:
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        load_config("calculator", ["algorithm.group_size=1"])


def test_keys_may_stand_before_and_after_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "train.steps=7", "--env", "calculator", "seed=3", "--cfg", "env.level=3"]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert (printed["train"]["steps"], printed["seed"], printed["env"]["level"]) == (7, 3, 3)
    with pytest.raises(SystemExit):
        main(["train", "--env", "calculator", "--no-such-option"])
    with pytest.raises(SystemExit):
        main(["env", "list", "train.steps=7"])
