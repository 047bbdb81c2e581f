"""Checkpoints: a folder that is either whole or not there, and that holds nothing pickled.

    <folder>/   config.json, model.safetensors, tokenizer files    a Hugging Face folder: `Policy.load(folder)`
                optimizer.tensors                                  the optimizer's moments by parameter name, in the
                                                                   format of safetensors: a server that is given the
                                                                   folder loads every *.safetensors as weights
                state.json                                         counters, and size and hash of every other file

It is written beside its place under a name that `latest` skips, flushed to disk, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from agentrl.errors import ModelError
from agentrl.train.policy import Policy
from agentrl.train.trainer import Trainer

FORMAT = 1
OPTIMIZER_FILE = "optimizer.tensors"
STATE_FILE = "state.json"
PARTIAL = ".partial-"


def save(folder: str | Path, policy: Policy, trainer: Trainer, state: dict[str, Any]) -> Path:
    """Write policy, optimizer and `state` (JSON) to `folder`, replacing what is there, and return it.

    A crash at any instant leaves the old folder, the new one, or a partial one that `latest` skips.
    """
    folder = Path(folder).absolute()
    partial = folder.with_name(f"{PARTIAL}{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    policy.save(partial)
    state_tensors = {name: tensor.cpu().clone().contiguous() for name, tensor in trainer.optimizer_tensors()}
    save_file(state_tensors, partial / OPTIMIZER_FILE)
    record = {
        "format": FORMAT,
        "saved_at_ns": time.time_ns(),
        "state": state,
        "num_bad_updates": trainer.num_bad_updates,
        "weights_hash": policy.weights_hash(),
        "files": {path.name: _describe(path) for path in sorted(partial.iterdir())},
    }
    (partial / STATE_FILE).write_text(json.dumps(record, indent=2, allow_nan=False))
    for path in [*partial.iterdir(), partial]:
        _flush(path)
    _replace(partial, folder)
    return folder


def load(folder: str | Path, trainer: Trainer) -> dict[str, Any]:
    """Put the optimizer's state back into a trainer whose policy was loaded from this folder; returns `state`.

    Raises ModelError if anything is missing or altered, or if the policy's weights are not the checkpoint's.
    """
    folder = Path(folder)
    record = verify(folder)
    if trainer.policy.weights_hash() != record["weights_hash"]:
        raise ModelError(f"the policy doesn't hold the weights of checkpoint {folder}: load it from there first")
    # Checkpoints of earlier days call it optimizer.safetensors.
    trainer.load_optimizer(folder / next(name for name in record["files"] if name.startswith("optimizer.")))
    trainer.num_bad_updates = record["num_bad_updates"]
    state: dict[str, Any] = record["state"]
    return state


def verify(folder: str | Path) -> dict[str, Any]:
    """The record of a checkpoint whose files all have the recorded hash. Raises ModelError."""
    folder = Path(folder)
    record = _record(folder)
    if record is None:
        raise ModelError(f"{folder} is not a complete checkpoint: files are missing or cut short")
    altered = [name for name, entry in record["files"].items() if _describe(folder / name) != entry]
    if altered:
        raise ModelError(f"checkpoint {folder} was altered after it was written: {', '.join(altered)}")
    return record


def latest(run_folder: str | Path) -> Path | None:
    """The complete checkpoint that was saved last among the folders in `run_folder`, or None."""
    records = _records(Path(run_folder))
    return max(records, key=lambda path: records[path]["saved_at_ns"], default=None)


def kept(run_folder: str | Path) -> dict[Path, dict[str, Any]]:
    """The complete checkpoints among the folders in `run_folder` with the `state` of each, the oldest first."""
    records = _records(Path(run_folder))
    oldest_first = sorted(records, key=lambda path: records[path]["saved_at_ns"])
    return {path: records[path]["state"] for path in oldest_first}


def is_checkpoint(folder: str | Path) -> bool:
    """Is it one of ours, rather than a model folder from elsewhere?"""
    return (Path(folder) / STATE_FILE).exists()


def origin(folder: str | Path) -> tuple[str, int] | None:
    """The run and version whose weights a checkpoint of ours holds; None for any other folder."""
    record = _record(Path(folder).expanduser())
    return None if record is None else (record["state"]["run"], record["state"]["version"])


def prune(run_folder: str | Path, *, keep_last: int, keep_best: bool) -> None:
    """Delete all complete checkpoints but the newest `keep_last` and, if asked, the best: highest `held_out`.

    What a crash left half written goes too: one process at a time works on a run.
    """
    for path in Path(run_folder).glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)
    records = _records(Path(run_folder))
    newest = sorted(records, key=lambda path: records[path]["saved_at_ns"])
    kept = set(newest[-keep_last:])
    measured = [path for path in newest if records[path]["state"].get("held_out") is not None]
    if keep_best and measured:
        kept.add(max(measured, key=lambda path: records[path]["state"]["held_out"]))
    for path in set(records) - kept:
        # First out of sight: a deletion that is cut off leaves nothing that looks like a checkpoint.
        gone = path.with_name(f"{PARTIAL}{path.name}-{os.getpid()}-old")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _records(run_folder: Path) -> dict[Path, dict[str, Any]]:
    """The complete checkpoints in a folder, with their records."""
    if not run_folder.is_dir():
        return {}
    paths = [path for path in run_folder.iterdir() if not path.name.startswith(PARTIAL)]
    return {path: record for path in paths if (record := _record(path)) is not None}


def _record(folder: Path) -> dict[str, Any] | None:
    """state.json, if all the files it lists are there in full size; else None."""
    try:
        record: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
        files = record["files"].items()
        whole = all((folder / name).stat().st_size == entry["bytes"] for name, entry in files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if whole and record.get("format") == FORMAT else None


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _flush(path: Path) -> None:
    """Force a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replace(partial: Path, folder: Path) -> None:
    """Rename `partial` to `folder`. A folder that is there is moved aside first: rename can't replace a full one."""
    old = folder.with_name(f"{PARTIAL}{folder.name}-{os.getpid()}-old")
    if folder.exists():
        folder.rename(old)
    partial.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(old, ignore_errors=True)
