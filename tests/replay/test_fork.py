"""`agentrl replay TRAJECTORY --fork TURN`: a copied prefix that nobody sampled, then a live policy or a person."""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path

import pytest

from agentrl.batch.rows import build_rows
from agentrl.cli import main
from agentrl.replay.human import HumanSampler
from agentrl.rollout.client import SamplingParams
from agentrl.rollout.renderer import Renderer
from agentrl.store import RunStatus, Store
from agentrl.testing.audit import audit
from agentrl.testing.chat import ScriptedChat
from agentrl.testing.toy import Toy, ToyConfig
from agentrl.train import tiny
from agentrl.types import Sample, Sampler, StopReason, Trajectory
from tests.cli.test_commands import in_thread
from tests.replay.stage import Stage, replay
from tests.replay.test_environment import CALL, Customer, Live, Louder
from tests.rollout.loops import call

LIMITS = {"max_turn_tokens": 40, "max_turns": 3}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that was never trained."""
    return tiny.make(tmp_path_factory.mktemp("weights") / "model", ["Say red for task 0.", CALL], seed=3)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Path) -> Stage:
    (tmp_path / "model").symlink_to(weights)
    return Stage(tmp_path, monkeypatch)


def newest(stage: Stage) -> Sample:
    with Store.open(stage.database) as store:
        return store.load_sample(store.find_trajectories(limit=1)[0].id)


def fork(stage: Stage, trajectory: Trajectory, turn: int, *words: str, rc: int = 0) -> Sample:
    assert replay(stage, trajectory.id, "--fork", str(turn), *words) == rc
    return newest(stage)


def test_a_live_policy_goes_on_where_the_turn_was(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    sample = fork(stage, origin, 1)
    made = sample.trajectory
    assert made.forked_from == (origin.id, 1) and made.group is None and made.env_seed == origin.env_seed
    assert made.run != origin.run and sample.grade is not None
    copied, live = made.turns[:2]
    assert copied.prompt_ids == origin.full(0) and copied.sampled_ids == [] and not copied.trained
    assert copied.message == origin.turns[0].message and copied.tool_calls[0].result == "red"
    assert made.context(1) == origin.context(1) and live.prompt_messages == origin.turns[1].prompt_messages
    assert live.sampler is Sampler.ENGINE and set(live.versions) == {0}
    assert all(math.isfinite(logprob) for logprob in live.logprobs) and live.sampled_ids
    out = capsys.readouterr().out
    assert made.id in out and f"fork: run {made.run}" in out


def test_the_fork_of_a_vllm_run_can_be_replayed(stage: Stage) -> None:
    """It is played by the embedded engine, which has no keys of vLLM's."""
    theirs = {"engine": {"name": "vllm", "cache_gib": 2}, "sync": {"transport": "file", "in_flight": "wait"}}
    (origin,) = stage.record(CALL, "red", limits=LIMITS, **theirs)
    assert replay(stage, fork(stage, origin, 1).trajectory.id, "--regrade") == 0


def test_only_what_was_sampled_live_has_mask_1(stage: Stage) -> None:
    (origin,) = stage.record(CALL, CALL, "red", limits=LIMITS)
    sample = fork(stage, origin, 2)
    (row,) = build_rows(sample)
    start = len(origin.context(2))
    assert not row.mask[:start].any() and row.mask[start:].all() and row.weights[start:].all()
    assert row.ids.tolist() == origin.context(2) + sample.trajectory.turns[2].sampled_ids


def test_the_run_of_a_fork_is_whole(stage: Stage) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    made = fork(stage, origin, 1).trajectory
    with Store.open(stage.database) as store:
        run = store.find_run(made.run)
        assert run.status is RunStatus.COMPLETED and run.config["command"] == "fork"
        assert len(store.versions(run.id)) == 1 and Path(run.folder).parent == stage.folder / "runs"
        assert store.load_trajectory(origin.id).turns == origin.turns
    assert audit(stage.database, made.run) == []


def test_seeds_decide_what_is_sampled(stage: Stage) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    ids = [fork(stage, origin, 1, "--seed", seed).trajectory.turns[1].sampled_ids for seed in ("1", "1", "2")]
    assert ids[0] == ids[1] != ids[2]


def test_from_turn_0_everything_is_live(stage: Stage) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    made = fork(stage, origin, 0).trajectory
    assert made.context(0) == origin.context(0) and made.turns[0].sampler is Sampler.ENGINE


def test_a_fork_is_replayed_and_forked_itself(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    first = fork(stage, origin, 1).trajectory
    capsys.readouterr()
    assert replay(stage, first.id, "--env") == 0
    assert f"equal: {len(first.turns)} replies" in capsys.readouterr().out
    again = fork(stage, first, 1, "--seed", "5").trajectory
    assert again.forked_from == (first.id, 1) and again.context(1) == origin.context(1)
    assert main(["replay", again.id, "--db", stage.database]) == 0
    assert f"forked from trajectory {first.id} at turn 1" in capsys.readouterr().out


def test_it_stops_at_the_first_difference(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    stage.use(Louder)
    made = fork(stage, origin, 1, rc=1).trajectory
    out = capsys.readouterr().out
    assert "first difference: turn 1, tool message 1 of 1, character 3" in out and "'red!'" in out
    assert made.stop_reason is StopReason.INTERRUPTED and len(made.turns) == 1
    assert "'red!'" in (made.error or "") and made.forked_from == (origin.id, 1)


def test_other_agents_are_asked_live_after_the_fork(stage: Stage) -> None:
    with in_thread(ScriptedChat(lambda messages: "scripted")) as server:
        config = {"url": server.url, "model": "m"}
        (origin,) = stage.record("one", "two", env=Customer, endpoint=Live(), chat=config, limits=LIMITS)
        made = fork(stage, origin, 3).trajectory
    assert [turn.agent for turn in origin.turns][:4] == ["user", "main", "user", "main"]
    said = [turn.message.text for turn in made.turns if turn.agent != "main"]
    assert said[:2] == ["live 0", "live 1"] and set(said[2:]) == {"scripted"}
    assert made.turns[0].calls == origin.turns[0].calls and made.context(3) == origin.context(3)


# ------------------------------------------------------------------------------------------------------- --human


def fork_by_hand(stage: Stage, origin: Trajectory, text: str) -> Sample:
    """By a person who types `text`."""
    (stage.folder / "typed").write_text(text)
    with (stage.folder / "typed").open() as keyboard, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", keyboard)
        return fork(stage, origin, 1, "--human")


def test_a_person_goes_on(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record(CALL, "green", limits=LIMITS)
    typed = call("repeat", '{"text": "re"}') + "\n\nred,\nI think\n\n"
    sample = fork_by_hand(stage, origin, typed)
    made = sample.trajectory
    assert [turn.sampler for turn in made.turns] == [Sampler.IMPORT, Sampler.HUMAN, Sampler.HUMAN]
    assert made.turns[1].tool_calls[0].result == "re" and made.turns[2].message.text == "red,\nI think"
    assert made.context(1) == origin.context(1) and sample.reward == 1.0
    out = capsys.readouterr().out
    assert out.index("user: Say red") < out.index("tool: red") < out.index("your reply") < out.index("tool: re\n")
    assert all(not row.weights.any() for row in build_rows(sample))


def test_a_person_who_gives_up_leaves_an_ending(stage: Stage) -> None:
    (origin,) = stage.record(CALL, "green", limits=LIMITS)
    made = fork_by_hand(stage, origin, "half a rep").trajectory
    assert made.stop_reason is StopReason.CANCELLED and "gave up" in (made.error or "")


async def test_while_a_person_thinks_everything_else_goes_on(
    renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two lines that come at once, cut in the middle of a letter; and who waits can be stopped."""
    read, write = os.pipe()
    human = HumanSampler(Toy(ToyConfig()), renderer)
    params = SamplingParams(max_tokens=50, temperature=1.0, seed=0)
    with os.fdopen(read) as keyboard, os.fdopen(write, "wb", buffering=0) as fingers:
        monkeypatch.setattr("sys.stdin", keyboard)
        reply = asyncio.create_task(human.sample([], [], params, "r"))
        await asyncio.sleep(0.1)
        assert not reply.done()
        typed = "grün\n\nmore\n".encode()
        fingers.write(typed[:3])
        await asyncio.sleep(0.1)
        fingers.write(typed[3:])
        assert renderer.decode((await reply).ids).startswith("grün")
        second = asyncio.create_task(human.sample([], [], params, "r"))
        await asyncio.sleep(0.1)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second


# ------------------------------------------------------------------------------------------------------ bad input

WRONG = {
    ("--fork", "7"): "no reply of the policy at turn 7; there are 0, 1",
    ("--fork", "1", "--policy", "step-9"): "step-9 is no model folder",
    ("--fork", "1", "--policy", "step-9", "--human"): "either a person goes on, or these weights",
    ("--human",): "--human goes with --fork",
    ("--env", "--seed", "3"): "--seed goes with --fork",
    ("--top", "3"): "--top goes with --rescore",
}


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_bad_input(stage: Stage, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record(CALL, "red", limits=LIMITS)
    assert replay(stage, origin.id, *words) == 2
    assert WRONG[words] in capsys.readouterr().err
    assert newest(stage).trajectory.id == origin.id


def test_a_turn_of_another_agent_is_no_place_to_fork(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    (origin,) = stage.record("one", "two", env=Customer, endpoint=Live(), limits=LIMITS)
    assert replay(stage, origin.id, "--fork", "0") == 2
    assert "there are 1, 3" in capsys.readouterr().err
