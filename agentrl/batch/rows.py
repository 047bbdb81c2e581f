"""Trajectory → Rows: the one place that aligns ids with masks, logprobs, versions and rewards.

A turn of the trajectory holds only what is new; a Row is one whole sequence that was really sampled from. A trained
turn ends a Row unless a later trained turn keeps all of it, and a sampled id has mask 1 in the first Row (in turn
order) that holds it. Five turns with numbers (`append`, then a branch that keeps 3 of turn 0's 4 ids)::

    turn 0: parent None, keep 0, prompt_ids [1, 2], sampled_ids [10, 11]              full  1 2 10 11
    turn 1: parent 0,    keep 4, prompt_ids [3],    sampled_ids [12, 13]              full  1 2 10 11 3 12 13
    turn 2: parent 0,    keep 3, prompt_ids [4],    sampled_ids [14]                  full  1 2 10 4 14
    turn 3: parent 2,    keep 5, prompt_ids [5],    sampled_ids [15]  (scripted)      full  1 2 10 4 14 5 15
    turn 4: parent 3,    keep 7, prompt_ids [6],    sampled_ids [16]                  full  1 2 10 4 14 5 15 6 16

    Row ending at turn 1            Row ending at turn 4
      ids         1 2 10 11 3 12 13   1 2 10 4 14 5 15 6 16
      mask        0 0  1  1 0  1  1   0 0  0 0  1 0  1 0  1     10 was counted in the first Row already
      weights     0 0  1  1 0  1  1   0 0  0 0  1 0  0 0  1     nobody's policy sampled 15
      turn_index  0 0  0  0 1  1  1   0 0  0 2  2 3  3 4  4
      rewards     0 0  0  0 0  0  0   0 0  0 0  0 0  0 0  r     r: the grade's reward
      runs        -                   (6, 7, 0.0, "sampler=scripted")

Turn 0 ends no Row (turn 1 keeps all of it), nor do 2 and 3. Every sampled id has mask 1 exactly once (T3), and what
stands before it in that Row is the context in which it was sampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from agentrl.errors import RowError
from agentrl.types import Sample, Sampler, Trajectory, Turn

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class WeightRun(NamedTuple):
    """[start, end) of a Row's ids has this weight, and why. All its ids have mask 1."""

    start: int
    end: int
    weight: float
    reason: str


@dataclass(kw_only=True, slots=True, eq=False)
class Row:
    """One sequence of a trajectory, up to the end of one turn. All arrays are [T]: one value per id."""

    trajectory: str
    end_turn: int
    group: str | None
    grade_id: int | None
    """The grade that the rewards came from, as numbered by the store."""
    ids: Ints
    mask: NDArray[np.int8]
    """1: this id was sampled in a trained turn and no earlier Row counts it. A fact, never changed."""
    weights: Floats
    """The decision: 0 wherever mask is 0; a 0 under mask 1 has a run that says why."""
    logprobs: Floats
    """Behaviour logprobs as recorded when sampling; NaN where mask is 0 or the sampler was no engine."""
    versions: Ints
    """Policy version of each id; -1 where `logprobs` is NaN."""
    temperature: Floats
    """Sampling temperature, > 0; 1.0 where nobody sampled."""
    turn_index: Ints
    """The turn that brought in the id, as prompt or as sample."""
    rewards: Floats
    """On the last sampled id of a turn, else 0; NaN there if the reward could not be measured (R2)."""
    advantages: Floats
    """0 until assigned, and wherever mask is 0."""
    proximal: Floats
    """The trainer's own logprobs before the step; NaN until scored."""
    runs: list[WeightRun] = field(default_factory=list)

    def __len__(self) -> int:
        """Number of ids."""
        return len(self.ids)

    @property
    def live(self) -> bool:
        """Does any id count in the loss?"""
        return bool(self.weights.any())

    @property
    def advantage(self) -> float:
        """The advantage of the Row's sampled ids (one number in GRPO); 0.0 if it has none."""
        sampled = self.advantages[self.mask == 1]
        return float(sampled[0]) if len(sampled) else 0.0

    @advantage.setter
    def advantage(self, value: float) -> None:
        self.advantages[:] = np.where(self.mask == 1, value, 0.0)

    def silence(self, reason: str, where: Bools | None = None) -> None:
        """Give weight 0 to the sampled ids `where` [T] (None: all). An id keeps the first reason it got."""
        chosen = (self.mask == 1) & (self.weights != 0)
        if where is not None:
            chosen &= where
        self.weights[chosen] = 0.0
        self.runs.extend(WeightRun(start, end, 0.0, reason) for start, end in _spans(chosen))

    def restore(self, advantage: float, runs: list[WeightRun]) -> None:
        """Put back what a stored step recorded, so that the step can be computed again (S3)."""
        self.advantage = advantage
        self.weights[:] = self.mask
        self.runs = [WeightRun(*run) for run in runs]
        for run in self.runs:
            self.weights[run.start : run.end] = run.weight


def build_rows(sample: Sample, *, for_sft: bool = False) -> list[Row]:
    """The Rows of a finished trajectory, in the order of their end turns; none if no turn is trained.

    Ids that no engine sampled (a script, a human, an import) get weight 0 with a reason, unless `for_sft`: imitation
    needs no behaviour logprobs, so there every trained turn has weight 1. Trajectories whose ending isn't trained and
    ids that were made from a server's text get weight 0 in both cases. Raises RowError, naming trajectory and turn,
    where lengths or references don't agree (T5).
    """
    trajectory = sample.trajectory
    lengths = _check(trajectory)
    rewards = _turn_rewards(sample)
    claimed = [0] * len(trajectory.turns)
    rows = []
    for end_turn in _end_turns(trajectory, lengths):
        columns = _columns(trajectory, _pieces(trajectory, lengths, end_turn), claimed, rewards)
        row = _row(sample, end_turn, columns)
        _silence(row, trajectory, for_sft=for_sft)
        rows.append(row)
    return rows


def _check(trajectory: Trajectory) -> list[int]:
    """The length of full(turn) for every turn, once everything that alignment relies on is known to hold."""
    if trajectory.stop_reason is None:
        raise RowError(f"trajectory {trajectory.id} is not finished: Rows are built from finished trajectories")
    lengths: list[int] = []
    for position, turn in enumerate(trajectory.turns):
        if turn.index != position:
            _refuse(trajectory, turn, f"stands at place {position}")
        context = _kept(trajectory, turn, lengths) + len(turn.prompt_ids)
        if turn.trained and turn.sampled_ids and context == 0:
            _refuse(trajectory, turn, "has an empty context: its first sampled id has no logprob")
        _check_sampled(trajectory, turn)
        lengths.append(context + len(turn.sampled_ids))
    return lengths


def _kept(trajectory: Trajectory, turn: Turn, lengths: list[int]) -> int:
    """How many ids of its parent the turn keeps, checked."""
    if turn.parent is None:
        if turn.keep != 0:
            _refuse(trajectory, turn, f"keeps {turn.keep} ids of no parent")
        return 0
    if not 0 <= turn.parent < len(lengths):
        _refuse(trajectory, turn, f"has parent {turn.parent}, which is not an earlier turn")
    if not 0 <= turn.keep <= lengths[turn.parent]:
        _refuse(trajectory, turn, f"keeps {turn.keep} of the {lengths[turn.parent]} ids of turn {turn.parent}")
    if trajectory.turns[turn.parent].agent != turn.agent:
        _refuse(trajectory, turn, f"of agent {turn.agent!r} continues a turn of another agent")
    return turn.keep


def _check_sampled(trajectory: Trajectory, turn: Turn) -> None:
    """One logprob, one call and so one version and temperature per sampled id; finite where an engine sampled."""
    num_sampled = len(turn.sampled_ids)
    if len(turn.logprobs) != num_sampled:
        _refuse(trajectory, turn, f"has {num_sampled} sampled ids but {len(turn.logprobs)} logprobs")
    if turn.sampler is not Sampler.ENGINE:
        return
    end = 0
    for call in turn.calls:
        if call.start != end or call.end < call.start:
            _refuse(trajectory, turn, f"has a call over [{call.start}, {call.end}) where one from {end} was due")
        temperature = call.sampling.get("temperature")
        if not isinstance(temperature, int | float) or temperature < 0:
            _refuse(trajectory, turn, f"has a call with temperature {temperature!r}")
        end = call.end
    if end != num_sampled:
        _refuse(trajectory, turn, f"has {num_sampled} sampled ids but calls over {end}")
    if not all(math.isfinite(logprob) for logprob in turn.logprobs):
        _refuse(trajectory, turn, "was sampled by an engine but has a logprob that is not finite")


def _refuse(trajectory: Trajectory, turn: Turn, problem: str) -> NoReturn:
    raise RowError(f"trajectory {trajectory.id}, turn {turn.index}: {problem}")


def _turn_rewards(sample: Sample) -> list[float]:
    """One reward per turn, non-zero only on trained turns with sampled ids; their sum is the grade's.

    What `turn_rewards` gives to another turn (of a simulator, or an empty reply) goes to the last trained turn before
    it, or to the first one, so that nothing is lost.
    """
    turns = sample.trajectory.turns
    rewards = [0.0] * len(turns)
    slots = [turn.index for turn in turns if turn.trained and turn.sampled_ids]
    grade = sample.grade
    if not slots or grade is None or grade.reward is None:
        return [math.nan] * len(turns)
    if grade.turn_rewards is None:
        rewards[slots[-1]] = grade.reward
        return rewards
    if len(grade.turn_rewards) != len(turns):
        raise RowError(
            f"trajectory {sample.trajectory.id}: the grade has {len(grade.turn_rewards)} turn rewards "
            f"for {len(turns)} turns"
        )
    for index, reward in enumerate(grade.turn_rewards):
        earlier = [slot for slot in slots if slot <= index]
        rewards[earlier[-1] if earlier else slots[0]] += reward
    return rewards


def _end_turns(trajectory: Trajectory, lengths: list[int]) -> list[int]:
    """Trained turns that no later trained turn holds whole.

    An untrained turn in between doesn't hide one: what counts is whether some Row holds all of it.
    """
    held: set[int] = set()
    for turn in trajectory.turns:
        if not turn.trained:
            continue
        kept, parent = turn.keep, turn.parent
        while parent is not None:
            if kept >= lengths[parent]:
                held.add(parent)
            ancestor = trajectory.turns[parent]
            kept, parent = min(kept, ancestor.keep), ancestor.parent
    return [turn.index for turn in trajectory.turns if turn.trained and turn.index not in held]


class _Piece(NamedTuple):
    """What a Row holds of one turn: its first prompt ids and its first sampled ids."""

    turn: Turn
    num_prompt: int
    num_sampled: int


def _pieces(trajectory: Trajectory, lengths: list[int], end_turn: int) -> list[_Piece]:
    """The Row that ends at `end_turn`, cut into what each turn on its line brought in."""
    pieces = []
    index: int | None = end_turn
    limit = lengths[end_turn]
    while index is not None:
        turn = trajectory.turns[index]
        new = max(limit - turn.keep, 0)
        num_prompt = min(new, len(turn.prompt_ids))
        pieces.append(_Piece(turn, num_prompt, new - num_prompt))
        limit, index = min(limit, turn.keep), turn.parent
    return pieces[::-1]


def _columns(
    trajectory: Trajectory, pieces: list[_Piece], claimed: list[int], rewards: list[float]
) -> dict[str, list[Any]]:
    """The Row's columns as lists. `claimed[t]`: how many sampled ids of turn t earlier Rows count; updated here."""
    names = ("ids", "mask", "logprobs", "versions", "temperature", "turn_index", "rewards")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for turn, num_prompt, num_sampled in pieces:
        first = claimed[turn.index] if turn.trained else num_sampled
        unclaimed = range(first, num_sampled)
        num_before = num_prompt + num_sampled - len(unclaimed)
        versions, temperatures = turn.versions, _temperatures(turn)
        values = [turn.logprobs[i] if turn.sampler is Sampler.ENGINE else math.nan for i in unclaimed]
        last = [rewards[turn.index] if i == len(turn.sampled_ids) - 1 else 0.0 for i in unclaimed]
        columns["ids"] += turn.prompt_ids[:num_prompt] + turn.sampled_ids[:num_sampled]
        columns["mask"] += [0] * num_before + [1] * len(unclaimed)
        columns["logprobs"] += [math.nan] * num_before + values
        columns["versions"] += [-1] * num_before + [versions[i] for i in unclaimed]
        columns["temperature"] += [1.0] * num_before + [temperatures[i] for i in unclaimed]
        columns["turn_index"] += [turn.index] * (num_prompt + num_sampled)
        columns["rewards"] += [0.0] * num_before + last
        if turn.trained:
            claimed[turn.index] = max(first, num_sampled)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1:
        raise RowError(f"trajectory {trajectory.id}, turn {pieces[-1].turn.index}: lengths don't agree: {lengths}")
    return columns


def _temperatures(turn: Turn) -> list[float]:
    """The temperature of every sampled id; 1.0 where the sampler is no engine."""
    temperatures = [1.0] * len(turn.sampled_ids)
    if turn.sampler is Sampler.ENGINE:
        for call in turn.calls:
            temperatures[call.start : call.end] = [float(call.sampling["temperature"])] * (call.end - call.start)
    return temperatures


def _row(sample: Sample, end_turn: int, columns: dict[str, list[Any]]) -> Row:
    mask = np.array(columns["mask"], dtype=np.int8)
    return Row(
        trajectory=sample.trajectory.id,
        end_turn=end_turn,
        group=sample.trajectory.group,
        grade_id=sample.grade_id,
        ids=np.array(columns["ids"], dtype=np.int64),
        mask=mask,
        weights=mask.astype(np.float64),
        logprobs=np.array(columns["logprobs"], dtype=np.float64),
        versions=np.array(columns["versions"], dtype=np.int64),
        temperature=np.array(columns["temperature"], dtype=np.float64),
        turn_index=np.array(columns["turn_index"], dtype=np.int64),
        rewards=np.array(columns["rewards"], dtype=np.float64),
        advantages=np.zeros(len(mask)),
        proximal=np.full(len(mask), np.nan),
    )


def _silence(row: Row, trajectory: Trajectory, *, for_sft: bool) -> None:
    """Weight 0, with its reason, for everything that can't be trained on whatever its advantage."""
    reason = trajectory.stop_reason
    if reason is not None and not reason.ending.trained:
        row.silence(f"ending={reason}")
    for turn in trajectory.turns:
        # Nobody knows which ids a text server sampled, so nothing is learnt from it, not even by imitation (T1).
        if turn.sampler is Sampler.TEXT or (turn.sampler is not Sampler.ENGINE and not for_sft):
            row.silence(f"sampler={turn.sampler}", row.turn_index == turn.index)
    if not for_sft:
        # A greedy choice has probability 1 under what sampled it: there is no ratio to the policy's own.
        row.silence("temperature=0", row.temperature == 0)
    row.temperature[row.temperature == 0] = 1.0


def _spans(chosen: Bools) -> list[tuple[int, int]]:
    """[start, end) of each run of True."""
    edges = np.diff(np.concatenate(([0], chosen.astype(np.int8), [0])))
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
