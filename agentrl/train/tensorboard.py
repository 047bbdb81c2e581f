"""A run's numbers for TensorBoard: one scalar per number of each step, evaluation and supervised update.

The same as in metrics.jsonl, which stays the record; `tensorboard --logdir runs` shows them beside other runs.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.estimate import Interval

FOLDER = "tensorboard"
"""In the run's folder."""


def check_installed() -> None:
    """Raises ConfigError, with what to do, where the package is missing."""
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "log.tensorboard=true: the package tensorboard is missing; "
            "install it with: pip install 'agentrl[tensorboard]'"
        )


class Scalars:
    """Writes the scalars of one run. Use from one thread; `close` when done."""

    def __init__(self, run_folder: Path) -> None:
        """Nothing is made until there is something to write."""
        self.folder = run_folder / FOLDER
        self._writer: Any = None

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """The numbers of an event, at the number of steps done; events without an ordinal are no curve."""
        if "ordinal" not in values:
            return
        # An evaluation after n steps has ordinal n, the nth step n - 1.
        place = values["ordinal"] + (0 if kind == "eval" else 1)
        prefix = f"eval/{values['sampling']}" if kind == "eval" else kind
        if self._writer is None:
            self._writer = self._open(place)
        for name, value in _numbers(values, prefix):
            self._writer.add_scalar(name, value, place)
        self._writer.flush()

    def _open(self, place: int) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run measures some steps again: TensorBoard then hides the older file's from here on.
        return SummaryWriter(str(self.folder), purge_step=place)

    def close(self) -> None:
        """Finish the file. Calling it again does nothing."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _numbers(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """(tag, value) of each finite number, nested ones under their path."""
    for name, value in values.items():
        tag = f"{prefix}/{name}"
        if isinstance(value, Interval):
            yield from _numbers(value._asdict(), tag)
        elif isinstance(value, Mapping):
            yield from _numbers(value, tag)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield tag, float(value)
