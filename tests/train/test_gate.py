"""The start gate: models whose logits are not head(hidden) are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import CohereConfig, Gemma2Config, GraniteConfig

from agentrl.errors import ModelError
from agentrl.train import policy as policy_module
from agentrl.train.gate import check_logprobs

from .builders import VOCAB, gpt2_config, make_policy, qwen2_config

ROW = [(7 * place + 3) % VOCAB for place in range(40)]


def small(config: Any, **changes: Any) -> Any:
    return config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, pad_token_id=0, bos_token_id=0, eos_token_id=0, initializer_range=0.5,
        **changes,
    )  # fmt: skip


CHANGED = [
    (small(Gemma2Config, final_logit_softcapping=5.0), "Gemma2ForCausalLM", "final_logit_softcapping=5.0"),
    (small(CohereConfig, logit_scale=0.25), "CohereForCausalLM", "logit_scale=0.25"),
    (small(GraniteConfig, logits_scaling=4.0), "GraniteForCausalLM", "logits_scaling=4.0"),
]


@pytest.mark.parametrize("config", [qwen2_config(), qwen2_config(tie_word_embeddings=False), gpt2_config()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_models_that_can_be_trained_pass(config: Any, dtype: torch.dtype) -> None:
    """On chunks much shorter than the Row."""
    with make_policy(config, logprob_chunk_tokens=8, dtype=dtype) as policy:
        assert check_logprobs(policy, ROW) <= (1e-5 if dtype is torch.float32 else 0.1)


@pytest.mark.parametrize(("config", "name", "key"), CHANGED)
def test_models_that_change_logits_are_refused_at_once_by_their_config(config: Any, name: str, key: str) -> None:
    with pytest.raises(ModelError, match=f"{name} has {key}.*use another model"):
        make_policy(config)


@pytest.mark.parametrize(("config", "name", "key"), CHANGED)
def test_the_gate_refuses_them_without_knowing_the_key(
    config: Any, name: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it will refuse the next such model too, whose key nobody has listed."""
    monkeypatch.setattr(policy_module, "check_options", lambda model: None)
    monkeypatch.setattr(policy_module, "check_forward", lambda packed, device: None)
    with make_policy(config, logprob_chunk_tokens=8) as policy, pytest.raises(ModelError, match=f"{name}: .*nats"):
        check_logprobs(policy, ROW)


def test_a_row_without_a_logprob_is_refused() -> None:
    with make_policy() as policy, pytest.raises(ModelError, match="Row of 1 ids"):
        check_logprobs(policy, [3])
