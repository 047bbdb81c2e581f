"""Which weights a replay asks for: a model folder, or a checkpoint of a run by its name."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import ReplayError
from agentrl.store.records import RunRecord
from agentrl.train import checkpoint


def model_folder(name: str, run: RunRecord) -> Path:
    """`name`: a folder, or that of one of the run's kept checkpoints, e.g. step-20. Raises ReplayError."""
    folder = Path(run.folder) / "checkpoints"
    for path in (Path(name).expanduser(), folder / name):
        if (path / "config.json").is_file():
            return path
    kept = ", ".join(path.name for path in checkpoint.kept(folder)) or "none"
    raise ReplayError(
        f"{name} is no model folder and no checkpoint of run {run.id}; kept in {folder}: {kept}. "
        f"The run was made with {run.made_with}"
    )
