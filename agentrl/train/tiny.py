"""The tiny model: shape, tokenizer and chat template. Its weights come from `agentrl sft`.

Small enough to learn on a laptop, yet with everything that a real model has: byte-level BPE (so that the same text
has several splits), control tokens, a chat template with tools.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from agentrl.train.checkpoint import OPTIMIZER_FILE, STATE_FILE
from agentrl.train.policy import Policy

NAME = "tiny"
CORPUS_TASKS = 2000
"""Train tasks whose texts the tokenizer is made from."""
ORIGIN_FILE = "origin.json"
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAG_TOKENS = ("<tool_call>", "</tool_call>")
"""Added tokens that are not special, as Qwen ships them."""
VOCAB_SIZE = 2048
MAX_POSITIONS = 1024

WORDS = 100 * "system\nuser\nassistant\ntool\n"
"""Text for the tokenizer: each role becomes a word."""
TEMPLATE = """\
{%- for message in messages %}
{%- if loop.first and tools %}
{{- '<|im_start|>system\\n' }}
{%- if message.role == 'system' %}{{- message.content + '\\n' }}{%- endif %}
{%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
{{- 'Call: <tool_call>{"name": name, "arguments": {...}}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- if message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif not (loop.first and tools and message.role == 'system') %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def build_tokenizer(texts: Iterable[str]) -> Any:
    """A byte-level BPE tokenizer over WORDS and `texts`: any text encodes, and decodes to itself.

    Each digit is a token of its own: ten that are seen all the time, not a thousand of which most are rare.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(r"\d|\n|[^\d\n]+"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pieces, pre_tokenizers.ByteLevel(False, use_regex=False)])
    backend.decoder = decoders.ByteLevel()
    added = len(CONTROL_TOKENS) + len(TAG_TOKENS)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - added,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=24,
        show_progress=False,
    )
    backend.train_from_iterator([WORDS, *texts], trainer)
    backend.add_special_tokens([AddedToken(token, special=True) for token in CONTROL_TOKENS])
    backend.add_tokens([AddedToken(token, special=False) for token in TAG_TOKENS])
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_POSITIONS,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_config(tokenizer: Any) -> Any:
    """The shape: a Llama of about two million parameters; wide and shallow learns to copy in the fewest steps.

    Not a Qwen2, although the template is alike: transformers would load Qwen's own tokenizer class for it, which
    splits text in another way than ours was made with.
    """
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )


def make(folder: Path, texts: Iterable[str], seed: int) -> Path:
    """A model folder with random weights, made from `seed`, and a tokenizer made from `texts`."""
    tokenizer = build_tokenizer(texts)
    with Policy.random(build_config(tokenizer), seed) as policy:
        policy.save(folder)
    tokenizer.save_pretrained(folder)
    return folder


def cache_folder(root: str | None, env: str, recipe: dict[str, Any]) -> Path:
    """Where the model of this recipe (everything that its weights depend on) is kept."""
    versions = {name: metadata.version(name) for name in ("agentrl", "torch", "transformers", "tokenizers")}
    digest = hashlib.sha256(json.dumps([recipe, versions], sort_keys=True).encode()).hexdigest()[:12]
    return cache_root(root) / f"tiny-{env}-{digest}"


def cache_root(root: str | None) -> Path:
    """Where made models are kept: `root` (model.cache_dir), else ~/.cache/agentrl."""
    base = Path(root).expanduser() if root else Path.home() / ".cache" / "agentrl"
    return base.resolve()


def is_kept(folder: Path) -> bool:
    """Is there a finished model? A half-written one never has the final name."""
    return (folder / ORIGIN_FILE).is_file()


def keep(checkpoint: Path, folder: Path, run: str, version: int) -> None:
    """Copy a checkpoint's model into the cache, with the run and version that made it, at once."""
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for path in checkpoint.iterdir():
        if path.name not in (OPTIMIZER_FILE, STATE_FILE):
            shutil.copyfile(path, partial / path.name)
    (partial / ORIGIN_FILE).write_text(json.dumps({"run": run, "version": version}), encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def origin(folder: Path) -> tuple[str, int] | None:
    """(run, version) that made a cached model."""
    if not is_kept(folder):
        return None
    record = json.loads((folder / ORIGIN_FILE).read_text(encoding="utf-8"))
    return str(record["run"]), int(record["version"])
