"""`agentrl replay TRAJECTORY [--env | --regrade | --rescore CHECKPOINT | --fork TURN]`, `agentrl replay RUN --step N`

Exit code 0: as recorded. 1: something differs. 2: what was asked for isn't there.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentrl.cli.common import add_db_argument, existing_database, need_extra, run_async
from agentrl.cli.display import Display
from agentrl.cli.show import add_show_arguments, show, use_line
from agentrl.cli.transcript import transcript
from agentrl.config import TrainConfig
from agentrl.errors import ReplayError, StoreError
from agentrl.replay.tokens import Decode, decoder
from agentrl.visible import visible

if TYPE_CHECKING:
    from agentrl.replay.recorded import Recorded
    from agentrl.replay.rescore import Score
    from agentrl.store.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="of a trajectory (with --step of a run), or the beginning of it")
    add_db_argument(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--env", action="store_const", const=True, help="play the recorded actions in a fresh environment, and compare"
    )
    what.add_argument("--regrade", action="store_const", const=True, help="grade again, and append the grade")
    what.add_argument("--rescore", metavar="CHECKPOINT", help="logprobs under these weights: a folder, or step-N")
    what.add_argument("--step", type=int, metavar="N", help="of a run: compute its step with this id again")
    what.add_argument("--fork", type=int, metavar="TURN", help="play its actions up to this turn, then go on live")
    parser.add_argument("--policy", metavar="CHECKPOINT", help="with --fork: who goes on (the run's last weights)")
    parser.add_argument("--human", action="store_true", help="with --fork: you go on, at the keyboard")
    parser.add_argument("--seed", type=int, help="with --fork: of the sampling (0)")
    parser.add_argument("--top", type=int, help="with --rescore: the tokens that differ most (20)")
    add_show_arguments(parser)


def run(options: argparse.Namespace) -> int:
    from agentrl.store.store import Store

    _check(options)
    try:
        database = existing_database(options.db)
    except StoreError as error:
        raise ReplayError(str(error)) from None
    with Store.open(database) as store:
        return _chosen(options)(store, options)


def _check(options: argparse.Namespace) -> None:
    """An option that would do nothing is a mistake. Raises ReplayError."""
    belong = {"fork": ("policy", "human", "seed"), "rescore": ("top",)}
    for mode, names in belong.items():
        given = [name for name in names if getattr(options, name)]
        if given and getattr(options, mode) is None:
            raise ReplayError(f"--{given[0]} goes with --{mode}; add that, or leave it out")
    if options.human and options.policy:
        raise ReplayError("--human and --policy: either a person goes on, or these weights")


def _chosen(options: argparse.Namespace) -> Callable[[Store, argparse.Namespace], int]:
    actions = {"env": play_again, "regrade": grade_again, "rescore": score_again, "step": compute_again}
    actions["fork"] = go_on
    given = (name for name in actions if getattr(options, name) is not None)
    return actions.get(next(given, ""), look)


def look(store: Store, options: argparse.Namespace) -> int:
    """Print the trajectory as the model saw it, every id on a line."""
    from agentrl.replay.recorded import find

    show(store, find(store, options.id), options, every_id=True)
    return 0


def play_again(store: Store, options: argparse.Namespace) -> int:
    """Print the first difference."""
    need_extra("train")
    from agentrl.replay.environment import check_environment
    from agentrl.replay.recorded import renderer_of

    recorded = _load(store, options.id)
    outcome = run_async(check_environment(recorded, renderer_of(recorded, options.model)))
    if outcome.difference is None:
        print(f"equal: {outcome.num_turns} replies, what followed each, ending and artifacts")
        return 0
    for line in outcome.difference.lines():
        print(visible(line))
    if outcome.is_repeated:
        print("a second replay met the same difference: the environment or its surroundings have changed since")
    else:
        print("a second replay went yet another way: the environment isn't deterministic")
    return 1


def grade_again(store: Store, options: argparse.Namespace) -> int:
    """Print what changed."""
    from agentrl.replay.grading import regrade

    done = run_async(regrade(store, _load(store, options.id)))
    for name, before, now in done.changes:
        print(visible(f"  {name}: {before} → {now}"))
    if done.grade_id is None:
        print("not appended: nothing could be measured, and the trajectory has a measured grade")
    else:
        print(f"grade {done.grade_id} appended" + ("" if done.changes else ", equal to the one before"))
    return 1 if done.changes else 0


def score_again(store: Store, options: argparse.Namespace) -> int:
    """Print the tokens that differ most, and the ratios."""
    need_extra("train")
    from agentrl.replay.models import model_folder
    from agentrl.replay.recorded import find, fitting
    from agentrl.replay.rescore import rescore
    from agentrl.replay.rows import shown_step

    id = find(store, options.id)
    sample = store.load_sample(id)
    its_run = store.find_run(sample.trajectory.run)
    model, top = model_folder(options.rescore, its_run), options.top or 20
    with fitting(its_run):
        config = TrainConfig.model_validate(its_run.config.get("train", {}))
    scores = rescore(sample, config, model)
    decode = decoder(options.model or its_run.config.get("model_folder"))
    print(f"{len(scores)} sampled ids under {model}; the {min(top, len(scores))} that differ most:")
    for score in scores[:top]:
        print(visible(_score_line(score, decode)))
    sizes = [abs(score.difference) for score in scores]
    ratios = [score.ratio for score in scores]
    print(f"difference: mean {sum(sizes) / len(sizes):.6f}, largest {max(sizes):.6f} nats")
    print(f"ratio: mean {sum(ratios) / len(ratios):.4f}, largest {max(ratios):.4f}")
    for use in shown_step(store.steps_of(id)):
        print(use_line(use))
    return 0


def compute_again(store: Store, options: argparse.Namespace) -> int:
    """Print what was stored beside what comes out now."""
    need_extra("train")
    from agentrl.replay.recorded import find_run
    from agentrl.replay.step import Line, recompute

    plan = Line(store, find_run(store, options.id)).plan(options.step)
    steps = "".join(f"step {step.id}, " for step in plan.between)
    print(f"step {plan.target.id} (ordinal {plan.target.ordinal}) of run {plan.run.id}")
    print(f"  from version {plan.version} in {plan.start}: {steps}step {plan.target.id}")
    compared = recompute(store, plan)
    for one in compared:
        end = "equal" if one.is_equal else f"DIFFERENT, now {one.now}"
        print(f"  {one.name:22} {str(one.recorded)[:20]:20}  {end}")
    return 0 if all(one.is_equal for one in compared) else 1


def go_on(store: Store, options: argparse.Namespace) -> int:
    """Print the new trajectory's transcript and its id."""
    need_extra("train")
    from agentrl.replay.fork import fork, last_weights
    from agentrl.replay.human import HumanSampler
    from agentrl.replay.models import model_folder

    recorded = _load(store, options.id)
    human = HumanSampler if options.human else None
    named = options.model if options.human else options.policy
    model = model_folder(named, recorded.run) if named else last_weights(recorded.run)
    with Display() as display:
        done = run_async(fork(recorded, options.fork, model, display, seed=options.seed or 0, human=human))
    if done.difference is not None:
        print(visible("\n".join(done.difference.lines())))
        return 1
    print(transcript(done.sample))
    print(f"next: agentrl replay {done.sample.trajectory.id[:8]} --db {store.location}")
    return 0


def _score_line(score: Score, decode: Decode | None) -> str:
    text = "" if decode is None else f"  {decode([score.id])!r}"
    logprobs = f"recorded {score.recorded:8.4f}  now {score.now:8.4f}  difference {score.difference:+.6f}"
    place = f"turn {score.turn:2d} {score.place:3d}  id {score.id:6d}"
    return f"  {place}  {logprobs}  ratio {score.ratio:.4f}  version {score.version}{text}"


def _load(store: Store, id: str) -> Recorded:
    from agentrl.replay.recorded import load

    recorded = load(store, id)
    for warning in recorded.warnings:
        print(f"agentrl replay: warning: {visible(warning)}", file=sys.stderr)
    return recorded
