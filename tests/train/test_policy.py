"""The policy: memory of the head, what it refuses, its weights, and the generators it leaves alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MambaConfig

from agentrl.errors import ModelError
from agentrl.train.packed import PackedModel, check_forward
from agentrl.train.policy import Policy

from .builders import VOCAB, make_groups, make_policy, make_rows, make_trainer, plain_model, qwen2_config


def test_logits_never_exceed_a_chunk() -> None:
    rows = make_rows(make_groups(1))
    shapes: list[tuple[int, ...]] = []
    with make_policy(logprob_chunk_tokens=8) as policy:
        head = policy.model.get_output_embeddings()
        head.register_forward_hook(lambda _module, _inputs, output: shapes.append(tuple(output.shape)))
        report = make_trainer(policy, micro_batch_tokens=10_000).step(rows, 0)
    assert max(size for size, _ in shapes) == 8
    assert {vocab for _, vocab in shapes} == {VOCAB}
    # Each id passes once forward, and once again to be recomputed in backward: never those of prompts and tools.
    assert sum(size for size, _ in shapes) == 2 * report.metrics["num_tokens"]


def test_no_tensor_of_all_logits_is_kept_for_backward() -> None:
    """What autograd saves, seen by its own hook: no logits, where there are several chunks."""
    rows = make_rows(make_groups(1))
    saved: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.ndim == 2 and tensor.shape[-1] == VOCAB:
            saved.append(tensor.shape[0])
        return tensor

    with make_policy(logprob_chunk_tokens=8) as policy:
        trainer = make_trainer(policy, micro_batch_tokens=10_000)
        (micro_batch,) = trainer.batches(rows)[0].micro_batches
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            policy.forward(micro_batch)
    assert saved == []


def test_a_head_that_no_config_key_betrays_is_found_by_measuring() -> None:
    model = AutoModelForCausalLM.from_config(qwen2_config())
    forward = model.forward

    def doubled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits * 2
        return output

    check_forward(PackedModel(model, 8), torch.device("cpu"))
    model.forward = doubled
    with pytest.raises(ModelError, match="more than head"):
        check_forward(PackedModel(model, 8), torch.device("cpu"))


def test_a_model_that_ignores_position_ids_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(qwen2_config(), attn_implementation="sdpa")
    forward = model.model.forward

    def ignoring(*args: Any, position_ids: torch.Tensor | None = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    model.model.forward = ignoring
    with pytest.raises(ModelError, match="packed Rows see each other"):
        check_forward(PackedModel(model.eval(), 8), torch.device("cpu"))


def test_a_model_without_sdpa_is_refused() -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM does not support"):
        make_policy(MambaConfig(vocab_size=VOCAB, hidden_size=32, state_size=4, num_hidden_layers=1))


def test_dropout_is_off() -> None:
    with make_policy(qwen2_config(attention_dropout=0.9)) as policy:
        assert policy.logprobs([1, 2, 3], [1, 2]) == policy.logprobs([1, 2, 3], [1, 2])
        assert not any(module.training for module in policy.model.modules())


def test_logprobs_are_the_models() -> None:
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    with make_policy() as policy:
        table = torch.log_softmax(plain_model(policy)(input_ids=torch.tensor([ids])).logits[0] / 0.7, dim=-1)
        expected = [table[place - 1, ids[place]].item() for place in (1, 4, 7)]
        assert policy.logprobs(ids, [1, 4, 7], temperature=0.7) == pytest.approx(expected, abs=1e-5)
        for place in (0, 8):
            with pytest.raises(ValueError, match="places must lie"):
                policy.logprobs(ids, [place])


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_yield_each_parameter_once(tied: bool) -> None:
    with make_policy(qwen2_config(tie_word_embeddings=tied)) as policy:
        names = [name for name, _ in policy.tensors()]
        assert len(names) == len(set(names))
        assert policy.tied_names == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})
        assert ("lm_head.weight" in names) is not tied
        shapes = {name: tensor.shape for name, tensor in policy.tensors()}
        assert shapes["model.embed_tokens.weight"] == (VOCAB, 32)
        assert set(names) | set(policy.tied_names) == set(policy.model.state_dict())


def test_weights_hash_follows_the_weights() -> None:
    rows = make_rows(make_groups(1))
    with make_policy(seed=1) as one, make_policy(seed=1) as same, make_policy(seed=2) as other:
        assert one.weights_hash() == same.weights_hash() != other.weights_hash()
        before = one.weights_hash()
        make_trainer(one).step(rows, 0)
        assert one.weights_hash() != before


def test_save_and_load(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "tokenizer.json").write_text("{}")
    (source / "secret.txt").write_text("not copied")
    ids = [3, 1, 4, 1, 5]
    with make_policy(seed=3, tokenizer_folder=source) as policy:
        shutil.rmtree(source)  # as an old checkpoint is, which a resumed run began from
        policy.save(tmp_path / "model")
        expected, digest = policy.logprobs(ids, [1, 2, 3, 4]), policy.weights_hash()
    assert (tmp_path / "model" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "model" / "secret.txt").exists()
    with Policy.load(tmp_path / "model", device="cpu", threads=1) as loaded:
        assert loaded.weights_hash() == digest
        assert loaded.logprobs(ids, [1, 2, 3, 4]) == expected
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(plain.lm_head.weight, plain.model.embed_tokens.weight)


def test_what_is_not_there_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no causal language model"):
        Policy.load(tmp_path, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="no CUDA device"):
        make_policy(device="cuda")


def test_the_global_generator_is_neither_used_nor_disturbed(tmp_path: Path) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    rows = make_rows(make_groups(1))
    with make_policy(seed=4, logprob_chunk_tokens=8) as policy:
        trainer = make_trainer(policy)
        trainer.score(rows)
        trainer.step(rows, 0)
        policy.save(tmp_path)
        first = policy.weights_hash()
    Policy.load(tmp_path, device="cpu").close()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    with make_policy(seed=4, logprob_chunk_tokens=8) as policy:
        make_trainer(policy).step(rows, 0)
        assert policy.weights_hash() == first


def test_the_process_group_lives_as_long_as_the_policies() -> None:
    assert not dist.is_initialized()
    one, two = make_policy(), make_policy()
    one.close()
    one.close()
    assert dist.is_initialized()
    assert two.logprobs([1, 2], [1])
    two.close()
    assert not dist.is_initialized()
    make_policy().close()
    assert not dist.is_initialized()


def test_a_group_that_was_there_before_stays() -> None:
    from torch._C._distributed_c10d import HashStore

    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        make_policy().close()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


def test_scoring_leaves_the_sharded_parameters_in_place() -> None:
    """Without a backward pass FSDP leaves gathered ones in their place, which no optimizer state belongs to."""
    rows = make_rows(make_groups(1))
    with make_policy() as policy:
        before = policy.named_parameters()
        make_trainer(policy).score(rows)
        assert all(parameter is before[name] for name, parameter in policy.named_parameters().items())
        policy.logprobs([1, 2, 3], [1])
        assert all(parameter is before[name] for name, parameter in policy.named_parameters().items())
