"""The gymnasium environment on real ones: returns against published figures, seeds, invalid actions, faults."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from agentrl import plugins
from agentrl.cli import main
from agentrl.environment import null_policy
from agentrl.envs.gymnasium_env import GymnasiumEnvironment
from agentrl.envs.gymnasium_play import GymnasiumConfig, best_play, random_return, transition_table
from agentrl.envs.tabular import Table
from agentrl.errors import ConfigError
from agentrl.rollout.loop import RolloutSpec
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ScriptedSampler
from agentrl.types import Message, Sample, StopReason, Task, Trajectory
from tests.envs import gymnasium_fakes as fakes
from tests.rollout.loops import TextClient, make_loop

IDS = ["FrozenLake-v1", "Blackjack-v1", "Taxi-v4", "CliffWalking-v1"]
STEADY = {"is_slippery": False}


def table_of(config: GymnasiumConfig) -> tuple[Table, int | None]:
    found = transition_table(config)
    assert found is not None
    return found


def starts(config: GymnasiumConfig) -> np.ndarray[Any, Any]:
    """The distribution of start states that the environment declares."""
    env = gymnasium.make(config.id, **config.kwargs)  # type: ignore[arg-type]
    return np.asarray(env.unwrapped.initial_state_distrib)  # type: ignore[attr-defined]


async def play(
    renderer: Renderer,
    config: GymnasiumConfig,
    task: Task,
    sampler: Callable[..., Any] | None = None,
    client: Any = None,
    **limits: Any,
) -> Sample:
    loop = make_loop(
        renderer, client, env=GymnasiumEnvironment, config=config, sampler=sampler,  # type: ignore[arg-type]
        window=100_000, **({"max_turns": 200, "max_episode_tokens": 100_000} | limits),
    )  # fmt: skip
    return await loop.run(RolloutSpec(run="run", task=task, group=None))


async def say(renderer: Renderer, config: GymnasiumConfig, *texts: str, task: int = 0, **limits: Any) -> Sample:
    """Play with the texts, the last one over and over."""
    tasks = GymnasiumEnvironment.tasks(config, "train")
    return await play(renderer, config, tasks[task], client=TextClient(renderer, *texts), **limits)


async def oracle_return(renderer: Renderer, config: GymnasiumConfig) -> float:
    tasks = GymnasiumEnvironment.tasks(config, "train")

    def sampler(env: GymnasiumEnvironment, trajectory: Trajectory) -> ScriptedSampler:
        oracle = env.oracle(trajectory.task)
        assert oracle is not None
        return ScriptedSampler(oracle, renderer)

    samples = [await play(renderer, config, task, sampler) for task in tasks]
    assert {sample.trajectory.stop_reason for sample in samples} <= {StopReason.COMPLETED, StopReason.ENV_TRUNCATED}
    return float(np.mean([sample.reward for sample in samples]))


# ------------------------------------------------------------------- what random and optimal play are worth


@pytest.mark.parametrize(
    ("id", "kwargs", "optimum"),
    [
        ("FrozenLake-v1", STEADY, 1.0),
        ("FrozenLake-v1", {}, 14 / 17),  # 0.82, as the literature has it for episodes without a limit
        ("Taxi-v4", {}, 7.93),
        ("CliffWalking-v1", {}, -13.0),
    ],
)
def test_the_optimum_is_the_published_one(id: str, kwargs: dict[str, Any], optimum: float) -> None:
    config = GymnasiumConfig(id=id, kwargs=kwargs)
    values = table_of(config)[0].optimal_values(None)
    assert values is not None and values @ starts(config) == pytest.approx(optimum, abs=1e-4)


def test_a_step_limit_lowers_the_optimum() -> None:
    optima = []
    for max_steps in (5, 6, 20, 100, None):
        config = GymnasiumConfig(max_steps=max_steps)
        tasks = GymnasiumEnvironment.tasks(config, "held_out")
        optima.append(GymnasiumEnvironment.references(config, tasks)["optimal"])
    assert optima[0] == 0 and optima == sorted(optima) and optima[-1] == optima[-2] < 14 / 17


def simulated(config: GymnasiumConfig, num_episodes: int) -> tuple[float, float]:
    """Mean and standard error of the return of random play, by a loop that shares nothing with ours."""
    env = gymnasium.make(config.id, **config.kwargs)  # type: ignore[arg-type]
    rng = np.random.default_rng(3)
    returns = np.zeros(num_episodes)
    for seed in range(num_episodes):
        env.reset(seed=seed)
        done = False
        while not done:
            _, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))  # type: ignore[attr-defined]
            returns[seed] += reward
            done = terminated or truncated
    return float(returns.mean()), float(returns.std() / num_episodes**0.5)


@pytest.mark.parametrize(("id", "num_episodes"), [("FrozenLake-v1", 3000), ("Taxi-v4", 300)])
def test_the_random_figure_is_what_random_play_gets(id: str, num_episodes: int) -> None:
    config = GymnasiumConfig(id=id, held_out_tasks=1000)
    figure = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "held_out"))["random"]
    mean, error = simulated(config, num_episodes)
    assert abs(figure - mean) < 3 * error < 0.5 * abs(mean)


def test_random_play_without_a_limit_by_linear_equations() -> None:
    config = GymnasiumConfig(id="CliffWalking-v1", held_out_tasks=2)
    env = gymnasium.make("CliffWalking-v1").unwrapped
    moves, rewards = np.zeros((48, 48)), np.zeros(48)
    for state, actions in env.P.items():  # type: ignore[attr-defined]
        for ((probability, after, reward, done),) in actions.values():
            moves[state, after] += probability / 4 * (not done)
            rewards[state] += probability / 4 * reward
    alive = [state for state in range(48) if state not in range(37, 48)]  # the cliff and the goal are never stood on
    solved = np.linalg.solve(np.eye(len(alive)) - moves[np.ix_(alive, alive)], rewards[alive])
    figure = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "held_out"))["random"]
    assert figure == pytest.approx(solved[alive.index(36)], rel=1e-4)


def test_blackjack_loses_at_random_and_hardly_by_the_book() -> None:
    config = GymnasiumConfig(id="Blackjack-v1")
    references = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "held_out"))
    assert set(references) == {"random"} and -0.55 < references["random"] < -0.25
    play_by_book = best_play(config)
    assert play_by_book is not None
    env, total = gymnasium.make("Blackjack-v1"), 0.0
    for seed in range(5000):
        observation, _ = env.reset(seed=seed)
        done = False
        while not done:
            observation, reward, done, _, _ = env.step(play_by_book(observation, 0))
            total += float(reward)
    assert -0.09 < total / 5000 < 0.0  # the optimum is about -0.05, the standard error here 0.013


def test_an_endless_gain_has_no_optimum() -> None:
    table = Table({0: {0: [(1.0, 0, 1.0, False)], 1: [(1.0, 0, 0.0, True)]}})
    assert table.optimal_values(7) == pytest.approx([7.0])
    assert table.random_values(None) == pytest.approx([1.0])


def test_a_table_that_does_not_hold_is_not_used() -> None:
    assert transition_table(GymnasiumConfig(id="Taxi-v4", kwargs={"fickle_passenger": True})) is None
    assert best_play(GymnasiumConfig(id="Taxi-v4", kwargs={"fickle_passenger": True})) is None


# ----------------------------------------------------------------------------------- the oracle, in the loop


@pytest.mark.parametrize(
    ("id", "kwargs", "num_tasks"),
    [("FrozenLake-v1", STEADY, 3), ("CliffWalking-v1", {}, 2), ("Taxi-v4", {}, 12)],
)
async def test_the_oracle_gets_the_optimum(renderer: Renderer, id: str, kwargs: dict[str, Any], num_tasks: int) -> None:
    config = GymnasiumConfig(id=id, kwargs=kwargs, train_tasks=num_tasks)
    references = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "train"))
    assert await oracle_return(renderer, config) == pytest.approx(references["optimal"]) != references["random"]


async def test_the_oracle_on_slippery_ice(renderer: Renderer) -> None:
    config = GymnasiumConfig(max_steps=20, train_tasks=60)
    optimum = GymnasiumEnvironment.references(config, GymnasiumEnvironment.tasks(config, "train"))["optimal"]
    assert await oracle_return(renderer, config) == pytest.approx(
        optimum, abs=3 * (optimum * (1 - optimum) / 60) ** 0.5
    )


async def test_the_demonstrator_errs_in_the_share_that_was_asked_for(renderer: Renderer) -> None:
    config = GymnasiumConfig(kwargs=STEADY, train_tasks=400, noise=0.4)
    tasks = GymnasiumEnvironment.tasks(config, "train")
    first = [_first_reply(GymnasiumEnvironment(config).demonstrator(task), task) for task in tasks]
    assert first == [_first_reply(GymnasiumEnvironment(config).demonstrator(task), task) for task in tasks]
    best = _first_reply(GymnasiumEnvironment(config).oracle(tasks[0]), tasks[0])
    assert first.count(best) / 400 == pytest.approx(1 - 0.4 * 3 / 4, abs=0.08)


def _first_reply(player: Any, task: Task) -> str:
    return str(player(task.messages).text)


async def test_the_null_policy_moves_nothing(renderer: Renderer) -> None:
    config = GymnasiumConfig(kwargs=STEADY)
    task = GymnasiumEnvironment.tasks(config, "train")[0]
    sample = await play(
        renderer, config, task, lambda env, trajectory: ScriptedSampler(null_policy, renderer), max_turns=3
    )
    assert sample.reward == 0.0 and sample.grade is not None
    assert sample.grade.parts == {"num_steps": 0.0, "num_invalid": 3.0, "finished": 0.0}


# --------------------------------------------------------------------------------------------- tasks and seeds


@pytest.mark.parametrize("id", IDS)
def test_splits_are_disjoint_and_the_same_seed_gives_the_same_tasks(id: str) -> None:
    config = GymnasiumConfig(id=id, train_tasks=40, held_out_tasks=30)
    train, held_out = (GymnasiumEnvironment.tasks(config, split) for split in ("train", "held_out"))
    assert (len(train), len(held_out)) == (40, 30)
    assert len({task.key for task in [*train, *held_out]}) == 70
    assert not {task.data["seed"] for task in train} & {task.data["seed"] for task in held_out}
    more = GymnasiumEnvironment.tasks(config.model_copy(update={"train_tasks": 50}), "train")
    assert [task.model_dump() for task in more[:40]] == [task.model_dump() for task in train]
    other = GymnasiumEnvironment.tasks(config.model_copy(update={"first_seed": 5}), "train")
    assert [task.key for task in other[:35]] == [task.key for task in train[5:]]


@pytest.mark.parametrize(
    ("id", "replies"),
    [
        ("FrozenLake-v1", ["<action>down</action>", "<action>right</action>"]),
        ("Blackjack-v1", ["<action>hit</action>"]),
    ],
)
async def test_the_same_seed_gives_the_same_episode(renderer: Renderer, id: str, replies: list[str]) -> None:
    config = GymnasiumConfig(id=id, train_tasks=30)

    async def texts(task: int) -> list[str]:
        sample = await say(renderer, config, *replies, task=task)
        return [message.text for turn in sample.trajectory.turns for message in turn.prompt_messages]

    episodes = [await texts(task) for task in range(20)]
    assert episodes == [await texts(task) for task in range(20)]
    assert len({tuple(episode) for episode in episodes}) > 5  # and other seeds others: chance is in it


async def test_the_first_messages_are_the_tasks(renderer: Renderer) -> None:
    for id in IDS:
        config = GymnasiumConfig(id=id)
        task = GymnasiumEnvironment.tasks(config, "train")[3]
        sample = await play(renderer, config, task, client=TextClient(renderer, "?"), max_turns=1)
        assert sample.trajectory.turns[0].prompt_messages == task.messages


# ------------------------------------------------------------------------------------------------------- turns


async def test_an_invalid_action_is_answered_without_a_step(renderer: Renderer) -> None:
    config = GymnasiumConfig(kwargs=STEADY, invalid_reward=-0.25)
    texts = ["hm", "<action>right</action>", "<action>fly</action>", "<action>left</action>"]
    sample = await say(renderer, config, *texts, max_turns=5)
    seen = [turn.prompt_messages[-1].text for turn in sample.trajectory.turns]
    assert seen[1].startswith("Invalid: no action. Write <action>left</action> or") and "(Right)\nS[F]FF" in seen[2]
    assert seen[3].startswith("Invalid: there is no such action") and "(Left)\n[S]FFF" in seen[4]
    grade = sample.grade
    assert grade is not None and grade.turn_rewards == [-0.25, 0, -0.25, 0, 0] and grade.reward == -0.5
    assert grade.parts == {"num_steps": 3.0, "num_invalid": 2.0, "finished": 0.0}


async def test_rewards_are_the_environments_own(renderer: Renderer) -> None:
    sample = await say(renderer, GymnasiumConfig(id="CliffWalking-v1"), "<action>right</action>", "<action>up</action>",
                       max_turns=3)  # fmt: skip
    assert [turn.reward for turn in sample.trajectory.turns] == [-100, -1, -1]
    assert sample.reward == -102 and sample.grade is not None and sample.grade.turn_rewards == [-100, -1, -1]


@pytest.mark.parametrize(
    ("texts", "limits", "finished", "reward"),
    [
        (["<action>up</action>", "<action>right</action>…"], {}, False, -1 - 50),
        (["<action>up</action>"], {"max_turns": 4}, False, -4 - 50),
        (["<action>up</action>"], {}, True, -10),  # the environment's own limit
    ],
)
async def test_an_episode_that_is_left_early_can_cost(
    renderer: Renderer, texts: list[str], limits: dict[str, Any], finished: bool, reward: float
) -> None:
    config = GymnasiumConfig(id="CliffWalking-v1", max_steps=10, unfinished_reward=-50)
    sample = await say(renderer, config, *texts, **limits)
    assert sample.reward == reward and sample.grade is not None
    assert sample.grade.parts["finished"] == finished and sum(sample.grade.turn_rewards or []) == reward
    assert (sample.trajectory.stop_reason is StopReason.ENV_TRUNCATED) == finished


async def test_a_call_of_a_tool_that_is_not_there_gets_an_answer_too(renderer: Renderer) -> None:
    call = '<tool_call>{"name": "go", "arguments": {}}</tool_call>'
    sample = await say(renderer, GymnasiumConfig(kwargs=STEADY), call, "<action>right</action>", max_turns=2)
    answers = sample.trajectory.turns[1].prompt_messages
    assert [message.role for message in answers] == ["tool", "user"] and answers[1].text.startswith("Invalid")


def test_numbers_where_no_names_are_known_and_names_by_option() -> None:
    config = GymnasiumConfig(id="CartPole-v1", train_tasks=2)
    first = GymnasiumEnvironment.tasks(config, "train")[0]
    assert first.messages[0].text.endswith("Reply with <action>0</action> with a whole number from 0 to 1.")
    assert re.fullmatch(r"\[(-?\d\.\d+(e-\d+)?(, |\])){4}", first.messages[1].text)
    named = GymnasiumConfig(id="CartPole-v1", actions=("left", "right"), system="Balance.", train_tasks=2)
    assert GymnasiumEnvironment.tasks(named, "train")[0].messages[0].text == "Balance."
    assert GymnasiumEnvironment.tasks(named, "train")[0].data == first.data
    assert GymnasiumEnvironment(config).oracle(first) is None
    assert 10 < random_return(config, range(50)) < 40


# ------------------------------------------------------------------------------------------- faults and threads


@pytest.fixture
def fake() -> Iterator[type[fakes.Fake]]:
    fakes.register()
    fakes.Fake.log.clear()
    fakes.Fake.released.clear()
    yield fakes.Fake
    fakes.Fake.released.set()


def fake_config(**kwargs: Any) -> GymnasiumConfig:
    return GymnasiumConfig(id=fakes.ID, kwargs=kwargs, train_tasks=1)


async def test_it_runs_in_threads_and_is_closed(fake: type[fakes.Fake], renderer: Renderer) -> None:
    sample = await say(renderer, fake_config(), "<action>0</action>")
    assert sample.reward == 2.0
    assert fake.log == ["reset", "step", "step", "close"]


@pytest.mark.parametrize("fault", ["reset", "step"])
async def test_one_that_raises_ends_its_episode_and_is_closed(
    fault: str, fake: type[fakes.Fake], renderer: Renderer
) -> None:
    sample = await say(renderer, fake_config(fault=fault), "<action>0</action>")
    assert sample.trajectory.stop_reason is StopReason.ENV_ERROR and sample.reward is None
    assert f"{fault} is broken on purpose" in str(sample.trajectory.error)
    assert fake.log[-1] == "close"


async def test_g14_episodes_of_one_task_share_no_state(renderer: Renderer) -> None:
    config = GymnasiumConfig(kwargs=STEADY)
    right, down = await asyncio.gather(
        say(renderer, config, "<action>right</action>", max_turns=4),
        say(renderer, config, "<action>down</action>", max_turns=4),
    )
    assert right.trajectory.turns[3].prompt_messages[-1].text == "  (Right)\nSFF[F]\nFHFH\nFFFH\nHFFG"
    assert down.trajectory.turns[2].prompt_messages[-1].text == "  (Down)\nSFFF\nFHFH\n[F]FFH\nHFFG"


async def test_f09_a_blocking_step_stalls_nobody(fake: type[fakes.Fake], renderer: Renderer) -> None:
    blocked = asyncio.create_task(say(renderer, fake_config(fault="block"), "<action>0</action>"))
    other = await say(renderer, fake_config(fault="nested"), "<action>0</action>")  # which starts a loop of its own
    assert other.reward == 2.0 and not blocked.done()
    fake.released.set()
    assert (await blocked).reward == 2.0


async def test_r4_a_step_that_hangs_is_left_and_closes_when_it_is_done(
    fake: type[fakes.Fake], renderer: Renderer
) -> None:
    config = fake_config(fault="block")
    sample = await say(renderer, config, "<action>0</action>", episode_timeout_s=2, tool_timeout_s=0.5)
    assert sample.trajectory.stop_reason is StopReason.EPISODE_TIMEOUT
    assert fake.log == ["reset", "step"]  # nothing calls it in the middle of a step
    fake.released.set()
    while len(fake.log) < 3:
        await asyncio.sleep(0.01)
    assert fake.log[2] == "close"


# ------------------------------------------------------------------------------------------- mistakes at start


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["env.id=FrozenLke-v1"], "Did you mean: `FrozenLake`?"),
        (["env.kwargs.foo=1"], "unexpected keyword argument 'foo'"),
        (["env.kwargs.render_mode=human"], "env.text"),
        (["env.id=Pendulum-v1", "env.actions=[a,b]"], "Discrete space; Pendulum-v1 has Box"),
        (["env.actions=[a,b]"], "2 names; FrozenLake-v1 has 4 actions"),
        (["env.id=Blackjack-v1", "env.text=ansi"], "no ansi rendering"),
        (["env.kwargs.map_name=null"], "same seed start differently"),
        (["env.kwarg.x=1"], "unknown key 'env.kwarg.x'"),
        (["env.noise=2"], "env.noise=2"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    options: list[str], says: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", "--env", "gymnasium", *options, f"runs_dir={tmp_path}/runs"])
    err = capsys.readouterr().err
    assert code == 2 and says in err and len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())  # before anything was made


@pytest.mark.filterwarnings("ignore:.*out of date:DeprecationWarning")
def test_an_old_version_names_the_new_one(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--env", "gymnasium", "env.id=Taxi-v3", f"runs_dir={tmp_path}"]) == 2
    assert "Taxi-v4" in capsys.readouterr().err


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    with pytest.raises(ConfigError, match=r"pip install 'agentrl\[gymnasium\]'"):
        GymnasiumEnvironment.tasks(GymnasiumConfig(first_seed=99), "train")


def test_a_seed_that_is_no_task_is_refused(fake: type[fakes.Fake]) -> None:
    with pytest.raises(ConfigError, match="same seed start differently"):
        GymnasiumEnvironment.tasks(fake_config(fault="seed"), "train")


def test_it_is_found_by_its_entry_point() -> None:
    assert plugins.environment("gymnasium") is GymnasiumEnvironment


def test_where_nobody_can_show_how_the_warm_start_says_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["env.id=CartPole-v1", "env.train_tasks=4", f"runs_dir={tmp_path}", f"model.cache_dir={tmp_path}"]
    assert main(["train", "--env", "gymnasium", *options]) == 2
    err = capsys.readouterr().err
    assert "no demonstrator and no oracle" in err and "model.path=" in err and len(err.strip().splitlines()) == 1


def test_messages_are_plain_data() -> None:
    (task,) = GymnasiumEnvironment.tasks(GymnasiumConfig(id="Taxi-v4", train_tasks=1), "train")
    assert Task.model_validate_json(task.model_dump_json()) == task
    assert [message.role for message in task.messages] == ["system", "user"]
    assert isinstance(task.messages[1], Message) and "\x1b" not in task.messages[1].text
