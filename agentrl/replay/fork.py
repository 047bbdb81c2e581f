"""`--fork`: the recorded actions up to a turn, then somebody else. The new trajectory is a run's of its own.

What was copied is not sampled again: its replies are prompt ids (mask 0) of untrained turns, so that only what the
live policy samples can be trained on, while graders see every turn.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.config_servers import EngineConfig, SyncConfig
from agentrl.environment import Environment
from agentrl.errors import ReplayError
from agentrl.progress import Watcher
from agentrl.replay.difference import Difference
from agentrl.replay.environment import make_loop, spec_of
from agentrl.replay.recorded import Recorded
from agentrl.replay.samplers import RecordedChat, ReplaySampler
from agentrl.rollout.recorder import Recorder
from agentrl.rollout.renderer import Renderer
from agentrl.rollout.samplers import ReplySampler
from agentrl.run_folder import Run, open_run
from agentrl.standing import finish, register
from agentrl.store.records import RunRecord
from agentrl.train import checkpoint
from agentrl.types import Grade, Sample, Sampler, Trajectory, Turn
from agentrl.wiring import UNKNOWN_WINDOW, Player, load_renderer, open_player

DAY_S = 24 * 3600.0
"""A person's time limit."""
MakeHuman = Callable[[Environment, Renderer], ReplySampler]


@dataclass(kw_only=True, slots=True, frozen=True)
class Forked:
    """The new trajectory, as it is stored."""

    sample: Sample
    difference: Difference | None
    """Why it ended before the fork: the environment didn't go along."""


async def fork(
    recorded: Recorded, turn: int, model: Path, watcher: Watcher, *, seed: int = 0, human: MakeHuman | None = None
) -> Forked:
    """Play up to `turn` as recorded, then by the weights in `model`, or by a person with its tokenizer.

    Raises ReplayError where there is no such turn, or where the replies were recorded as text without ids.
    """
    trajectory = recorded.trajectory
    _check(trajectory, turn)
    config = _config(recorded, model, seed, is_human=human is not None)
    async with open_run(config, "fork", watcher, model) as run, _open(run, model, human) as player:
        await register(player)
        sample, difference = await _play(replace(recorded, config=config), turn, player)
        finish(player, 0, [], [])
        return Forked(sample=sample, difference=difference)


async def _play(recorded: Recorded, turn: int, player: Player) -> tuple[Sample, Difference | None]:
    run, trajectory, live = player.run, recorded.trajectory, player.sampler
    assert live is not None
    samplers: list[ReplaySampler] = []
    chat = RecordedChat(trajectory.turns[:turn], then=run.chat)

    def sampler(env: Environment, played: Trajectory) -> ReplySampler:
        samplers.append(ReplaySampler(trajectory, player.renderer.decode, live(env, played), until=turn))
        return samplers[0]

    recorder = CopiedPrefix(run.store.recorder, trajectory.turns[:turn])
    loop = make_loop(recorded, player.renderer, sampler, recorder, chat=chat, boxes=run.boxes, window=player.window)
    spec = replace(spec_of(recorded), run=run.id, run_seed=recorded.config.seed, forked_from=(trajectory.id, turn))
    sample = await loop.run(spec)
    differences = [*(its.difference for its in samplers), chat.difference]
    return sample, next(filter(None, differences), None)


def last_weights(run: RunRecord) -> Path:
    """The run's newest kept checkpoint, else what it started from."""
    return checkpoint.latest(Path(run.folder) / "checkpoints") or Path(run.config["model_folder"])


class CopiedPrefix:
    """A Recorder for a trajectory whose first turns are copies: nobody samples their replies here (T1)."""

    def __init__(self, recorder: Recorder, copied: list[Turn]) -> None:
        self.recorder = recorder
        self.copied = copied

    async def begin(self, trajectory: Trajectory, lease_generation: int) -> None:
        """See Recorder."""
        await self.recorder.begin(trajectory, lease_generation)

    async def add_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """See Recorder. The reply of a copied turn becomes the end of its prompt."""
        if turn.index < len(self.copied):
            _as_copy(turn, self.copied[turn.index])
        await self.recorder.add_turn(trajectory, turn)

    async def update_turn(self, trajectory: Trajectory, turn: Turn) -> None:
        """See Recorder."""
        await self.recorder.update_turn(trajectory, turn)

    async def finish(self, trajectory: Trajectory) -> None:
        """See Recorder."""
        await self.recorder.finish(trajectory)

    async def add_grade(self, trajectory: Trajectory, grade: Grade, lease_generation: int | None = None) -> int:
        """See Recorder."""
        return await self.recorder.add_grade(trajectory, grade, lease_generation)


def _as_copy(turn: Turn, recorded: Turn) -> None:
    if turn.agent != "main":  # text as it was, by who said it
        turn.calls = recorded.calls
        return
    turn.prompt_ids = turn.prompt_ids + turn.sampled_ids
    turn.sampled_ids, turn.logprobs, turn.trained = [], [], False
    for call in turn.tool_calls:
        call.span = (0, 0)  # it was a place among the sampled ids


def _check(trajectory: Trajectory, turn: int) -> None:
    mine = [one.index for one in trajectory.turns_of()]
    if turn not in mine:
        there = ", ".join(map(str, mine)) or "none"
        raise ReplayError(f"trajectory {trajectory.id} has no reply of the policy at turn {turn}; there are {there}")
    if any(one.sampler is Sampler.TEXT for one in trajectory.turns_of()):
        raise ReplayError(f"trajectory {trajectory.id} was given as text by a server: there are no ids to go on from")


def _config(recorded: Recorded, model: Path, seed: int, *, is_human: bool) -> RunConfig:
    """The run's, with the embedded engine on other weights."""
    config = recorded.config
    patience = {"turn_timeout_s": DAY_S, "episode_timeout_s": DAY_S} if is_human else {}
    return config.model_copy(
        update={
            "model": config.model.model_copy(update={"path": str(model)}),
            "engine": EngineConfig(threads=config.engine.threads),
            "sync": SyncConfig(),  # of the other engine
            "limits": config.limits.model_copy(update=patience),
            "runs_dir": str(Path(recorded.run.folder).parent),
            "name": None,
            "seed": seed,
        }
    )


@asynccontextmanager
async def _open(run: Run, model: Path, human: MakeHuman | None) -> AsyncIterator[Player]:
    if human is None:
        async with open_player(run, model) as player:
            yield player
        return
    renderer = await load_renderer(run, model)
    window = run.config.limits.max_context_tokens or UNKNOWN_WINDOW
    yield Player(run=run, renderer=renderer, window=window, sampler=lambda env, trajectory: human(env, renderer))
