"""What `agentrl sft sft.run=RUN` learns from: rollouts that are stored, an import's or those of any run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentrl.batch.rows import Row, build_rows
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.tokenizer import recorded_vocabulary, vocabulary_hash
from agentrl.store.records import RunRecord, RunStatus
from agentrl.store.store import Store
from agentrl.tasks import excluded_keys
from agentrl.types import Purpose, Sample


def stored_rows(store: Store, config: RunConfig, template_hash: str, model: Path, window: int) -> list[Row]:
    """The Rows of the run `sft.run` that have a weight in imitation, without the tasks that `tasks.exclude` leaves out
    and the run's evaluations: they measure.

    Raises ConfigError where the model that learns them has another tokenizer or template, or takes less than `window`
    ids, and where there is nothing to learn; StoreError for a run that isn't there.
    """
    name, excluded = str(config.sft.run), excluded_keys(config)
    run = store.find_run(name)
    _check(run, model)
    samples = (sample for sample in _samples(store, run) if sample.trajectory.task.key not in excluded)
    rows = [row for sample in samples for row in _live_rows(run, sample, template_hash)]
    too_long = next((row for row in rows if len(row) > window), None)
    if too_long is not None:
        what = f"trajectory {too_long.trajectory} has a Row of {len(too_long)} ids, the model takes {window}"
        raise ConfigError(f"sft.run={name}: {what}; leave it out of the run, or choose another model")
    if not rows:
        raise ConfigError(f"sft.run={name}: run {run.id} holds nothing to imitate; see agentrl runs {run.id}")
    return rows


def _check(run: RunRecord, model: Path) -> None:
    if run.config.get("command") == "import" and run.status is not RunStatus.COMPLETED:
        raise ConfigError(
            f"sft.run={run.id}: this import is going on, or was killed: wait for it, or take it away by "
            f"agentrl db gc --run {run.id} --yes and import again"
        )
    was, now = recorded_vocabulary(run.config), vocabulary_hash(model)
    if was and now and was != now:
        raise ConfigError(
            f"sft.run={run.id}: its ids are of another tokenizer than that of {model}; export it as messages, and "
            f"import that with --model {model}"
        )


def _samples(store: Store, run: RunRecord) -> Iterator[Sample]:
    found = store.find_trajectories(run=run.id, oldest_first=True)
    ids = [one.id for one in found if one.purpose is not Purpose.EVAL and one.stop_reason is not None]
    for id in ids:
        yield store.load_sample(id)


def _live_rows(run: RunRecord, sample: Sample, template_hash: str) -> list[Row]:
    rows = [row for row in build_rows(sample, for_sft=True) if row.live]
    if rows and sample.trajectory.template_hash != template_hash:
        raise ConfigError(
            f"sft.run={run.id}: trajectory {sample.trajectory.id} was rendered by another chat template than the "
            "model's; export the run as messages, and import that with --model"
        )
    return rows
