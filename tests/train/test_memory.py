"""What a step keeps in memory: never the logits of more than one chunk, and with recomputation no layer's insides."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .builders import make_groups, make_policy, make_rows, make_trainer, our_gradient, qwen2_config

BIG_VOCAB = 49_152
CHUNK = 24


class Largest(TorchDispatchMode):
    """Sees every tensor that is made, forward and backward, and keeps the largest sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.num_elements = 0
        self.num_chunks = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.num_elements = max([self.num_elements, *sizes])
        self.num_chunks += func is torch.ops.aten._log_softmax.default
        return result


def test_a_step_with_a_vocabulary_of_49152_makes_no_tensor_larger_than_one_chunk_of_logits() -> None:
    rows = make_rows(make_groups(1))
    num_trained = sum(int(row.mask.sum()) for row in rows)
    config = qwen2_config(vocab_size=BIG_VOCAB, hidden_size=16, intermediate_size=32)
    with make_policy(config, logprob_chunk_tokens=CHUNK) as policy:
        trainer = make_trainer(policy, micro_batch_tokens=10_000)
        with Largest() as seen:
            trainer.score(rows)
            report = trainer.step(rows, 0)
    assert report.metrics["num_micro_batches"] == 1 and report.num_updates == 1
    num_chunks = -(-num_trained // CHUNK)
    assert num_chunks > 2 and seen.num_chunks == 3 * num_chunks, "scored, trained, and computed again for backward"
    assert seen.num_elements == CHUNK * BIG_VOCAB


def test_activation_checkpointing_changes_no_bit_of_the_gradient_and_keeps_less() -> None:
    rows = make_rows(make_groups(1))
    kept: dict[bool, int] = {}
    gradients = {}
    for recompute in (False, True):
        with make_policy(activation_checkpointing=recompute) as policy:
            trainer = make_trainer(policy, micro_batch_tokens=10_000)
            (micro_batch,) = trainer.batches(rows)[0].micro_batches
            sizes: list[int] = []

            def keep(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
                sizes.append(tensor.numel())
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                policy.forward(micro_batch)
            policy.packed.reshard()  # type: ignore[operator]
            kept[recompute] = sum(sizes)
            _, gradients[recompute] = our_gradient(trainer, rows)
            assert set(gradients[recompute]) == set(policy.named_parameters())
    assert kept[True] < kept[False] / 2
    assert all(torch.equal(gradients[True][name], gradients[False][name]) for name in gradients[False])
