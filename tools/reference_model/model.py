"""The architecture of the reference model and the loss on a batch of weighted targets."""

from __future__ import annotations

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from tools.reference_model.data import Batch
from tools.reference_model.induction import lay_out_induction
from tools.reference_model.tokenizer import CONTEXT

VOCABULARY = 3072


def reference_config(end: int) -> LlamaConfig:
    """A small Llama whose linear layers all have a multiple of 128 inputs; `end` is the end token's id."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        use_cache=True,
    )


def build(end: int, seed: int) -> LlamaForCausalLM:
    """A randomly initialised model whose attention is near looking up and copying."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(reference_config(end))
    lay_out_induction(model)
    return model


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross entropy over weighted targets, and whether each target with much weight is the first guess.

    Logits are computed only where there is weight. The second value has the shape of `targets`: 1 right, 0
    wrong and -1 where the weight is a quarter or less.
    """
    hidden = model.model(input_ids=batch.tokens[:, :-1], use_cache=False).last_hidden_state
    chosen = batch.weights > 0
    logits = model.lm_head(hidden[chosen])  # (chosen, vocabulary)
    targets, weights = batch.targets[chosen], batch.weights[chosen]
    losses = functional.cross_entropy(logits, targets, reduction="none")
    right = torch.full_like(batch.targets, -1)
    right[chosen] = torch.where(weights > 0.25, (logits.detach().argmax(-1) == targets).long(), -1)
    return (losses * weights).sum() / weights.sum(), right
