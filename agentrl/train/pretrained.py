"""Where the weights of a model that was trained elsewhere lie: a folder, or a Hugging Face id."""

from __future__ import annotations

from pathlib import Path

from agentrl.errors import ModelError

FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What is downloaded: weights as safetensors only, since other formats run code when they are read."""


def local_folder(path: str | Path) -> Path:
    """A folder as it is; a Hugging Face id from the local cache, or downloaded. Raises ModelError."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(path), allow_patterns=FILES))
    except Exception as error:  # the hub client raises a dozen unrelated types, network ones included
        raise ModelError(
            f"no model at {path}: not a folder, and not to be had from Hugging Face ({error}). "
            "Check the path or id, or download it first and name the folder"
        ) from error
