"""What both ends of a weight transfer must agree on: a tensor's checksum, and how a file and a broadcast are read.

The trainer's end is in `agentrl.sync`, the engine's in `agentrl.engine`, and neither imports the other.
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import safe_open
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, FileStore, ProcessGroupGloo, Work
from torch.storage import TypedStorage

MAX_PENDING_BYTES = 1 << 28
"""Of broadcasts that are on their way at once, or two tensors: what travels while one is loaded."""
_DTYPE_NAMES = {"float64": "F64", "float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""torch's names, and those of a safetensors file."""


def checksum(tensor: Tensor) -> str:
    """BLAKE3 (hex) of the tensor's bytes in C order; four times as fast as SHA-256 with the CPU's own instructions."""
    return blake3(_bytes_of(tensor)).hexdigest()


def _bytes_of(tensor: Tensor) -> Any:
    """The tensor's bytes, without a copy where it is on the CPU and contiguous."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The tensors of an update in the order in which they travel. The three lists agree in length."""

    names: list[str]
    dtype_names: list[str]
    """As torch names them: float32."""
    shapes: list[list[int]]
    tied: dict[str, str]
    """Further names, and the name above whose bytes each shares."""

    @classmethod
    def of(cls, tensors: dict[str, Tensor], tied: dict[str, str]) -> Manifest:
        """What an engine must know before the bytes."""
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()]
        shapes = [list(tensor.shape) for tensor in tensors.values()]
        return cls(names=list(tensors), dtype_names=dtypes, shapes=shapes, tied=tied)

    def check_names(self) -> None:
        """Raises ValueError where a name comes twice."""
        doubled = [name for name, count in Counter([*self.names, *self.tied]).items() if count > 1]
        if doubled:
            raise ValueError(f"sent more than once: {listed(doubled)}")

    def named_shapes(self) -> dict[str, list[int]]:
        """The shape of every tensor under all its names."""
        shapes = dict(zip(self.names, self.shapes, strict=True))
        return shapes | {other: shapes[name] for other, name in self.tied.items()}

    def empty(self) -> Iterator[Tensor]:
        """Memory for each tensor, on the CPU, one after the other."""
        for dtype, shape in zip(self.dtype_names, self.shapes, strict=True):
            yield torch.empty(shape, dtype=getattr(torch, dtype))


# ------------------------------------------------------------------------------------------------------- file


def write_file(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, flushed to the disk; the whole file or none, so that nobody reads half of one.

    The library's own writer copies every tensor first. Raises OSError.
    """
    header, end = {}, 0
    for name, tensor in tensors.items():
        dtype = _DTYPE_NAMES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [end, end + tensor.nbytes]}
        end += tensor.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the bytes of tensors start at a multiple of 8
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with partial.open("wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors.values():
                file.write(_bytes_of(tensor))
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    finally:
        partial.unlink(missing_ok=True)


def read_file(path: Path, manifest: Manifest) -> Iterator[Tensor]:
    """The tensors of a file. Raises ValueError where they aren't those of the manifest, and where it is torn."""
    with _opened(path) as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        check_shapes(shapes, dict(zip(manifest.names, manifest.shapes, strict=True)), f"the file {path.name}")
        for name in manifest.names:
            yield file.get_tensor(name)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except Exception as error:  # the library's own type isn't one that a server's answer would name
        raise ValueError(f"the file {path} can't be read, it is torn or gone: {error}") from error


def local_folder(model: str, *, revision: str | None, cache: str | None) -> Path:
    """A model folder as it is; that of a Hugging Face id in the `cache` (None: the usual one), which holds it already.

    Raises ValueError where it isn't there.
    """
    if (folder := Path(model)).is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(model, revision=revision, cache_dir=cache, local_files_only=True))
    except (OSError, ValueError) as error:
        raise ValueError(f"the weights of {model} are in no folder here: {error}") from error


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """The shapes of all tensors in a model folder."""
    shapes: dict[str, list[int]] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            shapes |= {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    return shapes


def check_shapes(sent: dict[str, list[int]], expected: dict[str, list[int]], what: str) -> None:
    """Raises ValueError, which lists the names on either side that the other lacks, and unequal shapes."""
    kinds = {
        "missing": expected.keys() - sent.keys(),
        "unexpected": sent.keys() - expected.keys(),
        "of another shape": {n for n in sent.keys() & expected.keys() if list(sent[n]) != list(expected[n])},
    }
    problems = [f"{kind}: {listed(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise ValueError(f"{what} doesn't hold the tensors that it should; {'; '.join(problems)}")


def listed(names: Iterable[str], limit: int = 4) -> str:
    """The first names in order, and how many more there are."""
    ordered = sorted(names)
    return ", ".join(ordered[:limit]) + (f" and {len(ordered) - limit} more" if len(ordered) > limit else "")


# ------------------------------------------------------------------------------------------------------- gloo


class GlooGroup:
    """Processes of one machine among which rank 0 broadcasts. They meet through a file, and talk over loopback."""

    def __init__(self, meeting_file: Path, *, rank: int, size: int, timeout_s: float) -> None:
        """Blocks until all have come. `meeting_file`: in a folder that only this user can read, not there yet.

        Raises RuntimeError where somebody doesn't come within the time limit, which holds for each tensor as well.
        """
        store = FileStore(str(meeting_file), -1)  # the folder's owner removes the file, not the last of us
        store.set_timeout(timedelta(seconds=timeout_s))
        kind: Any = ProcessGroupGloo
        options = kind._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = kind(store, rank, size, options)
        self._pending: deque[tuple[Tensor, Work]] = deque()

    def broadcast(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """Send each tensor from rank 0, or fill it on another rank; yields it when that is done.

        The next ones are on their way meanwhile. Blocks; raises RuntimeError where a peer is gone or too slow, and
        where the group is closed: close it then, so that the others find out as well.
        """
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        pending_bytes = 0
        for tensor in tensors:
            if self._group is None:
                raise RuntimeError("the group is closed")
            self._pending.append((tensor, self._group.broadcast([tensor], options)))
            pending_bytes += tensor.nbytes
            while pending_bytes > MAX_PENDING_BYTES and len(self._pending) > 1:
                done = self._next_done()
                pending_bytes -= done.nbytes
                yield done
        while self._pending:
            yield self._next_done()

    def send(self, tensors: Iterable[Tensor]) -> None:
        """Broadcast all from rank 0; see `broadcast`."""
        deque(self.broadcast(tensors), maxlen=0)

    def close(self) -> None:
        """Hang up: what others wait for fails. May be called more than once."""
        # Nothing but the end of the object closes its sockets, and works that are pending keep them open too.
        self._pending.clear()
        self._group = None

    def _next_done(self) -> Tensor:
        tensor, work = self._pending.popleft()
        work.wait()
        return tensor


# -------------------------------------------------------------------------------------------------------- ipc


def write_handle(arguments: Sequence[Any]) -> list[Any]:
    """A handle of CUDA memory, as `torch.multiprocessing` makes it, in JSON: nothing is pickled, so nothing unpickled.

    `arguments`: those of `rebuild_cuda_tensor`.
    """
    return [_written(argument) for argument in arguments]


def read_handle(written: Sequence[Any]) -> tuple[Any, ...]:
    """The other direction. Raises ValueError for what `write_handle` doesn't write."""
    return tuple(_read(value) for value in written)


_KINDS = {"tensor": Tensor, "storage": TypedStorage} | {f"torch.{name}": getattr(torch, name) for name in _DTYPE_NAMES}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def _written(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return {"base64": base64.b64encode(argument).decode()}
    if isinstance(argument, type | torch.dtype):
        return {"kind": _NAMES[argument]}
    return list(argument) if isinstance(argument, tuple) else argument


def _read(value: Any) -> Any:
    match value:
        case {"base64": str(text)}:
            return base64.b64decode(text)
        case {"kind": str(name)} if name in _KINDS:
            return _KINDS[name]
        case list():
            return tuple(value)
        case int() | None:
            return value
    raise ValueError(f"{value!r} is no part of a handle of CUDA memory")
