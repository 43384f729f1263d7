"""Small models of many kinds with random weights, the same in every run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

VOCABULARY = 128
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
_IMAGES = {"image_size": 16, "patch_size": 8, "num_channels": 3, "num_labels": 10}


class Plain(nn.Module):
    """A network of no library: convolutions, batch norms, a residual, two linear layers; 8 × 8 images, 4 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.inner = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.inner_norm = nn.BatchNorm2d(16)
        self.hidden = nn.Linear(16, 32)
        self.classifier = nn.Linear(32, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Scores [batch, 4] of images [batch, 3, 8, 8]."""
        x = self.norm(self.stem(images)).relu()
        x = (x + self.inner_norm(self.inner(x))).relu()
        scores: Tensor = self.classifier(self.hidden(x.mean((2, 3))).relu())
        return scores


def _llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SHAPE | {"num_key_value_heads": 2} | changes))


BUILDERS: dict[str, Callable[[], nn.Module]] = {
    "llama": _llama,
    "llama-bfloat16": lambda: _llama().to(torch.bfloat16),
    "llama-float16": lambda: _llama(tie_word_embeddings=True).to(torch.float16),
    "mixture": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**_SHAPE, **_MIXTURE, num_key_value_heads=2)),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2
        )
    ),
    "t5": lambda: T5ForConditionalGeneration(
        T5Config(vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4)
    ),
    "bert": lambda: BertForQuestionAnswering(BertConfig(**_SHAPE)),
    "vit": lambda: ViTForImageClassification(ViTConfig(**_SHAPE, **_IMAGES)),
    "resnet": lambda: ResNetForImageClassification(
        ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic", num_labels=10)
    ),
    "plain": Plain,
}


def build(name: str) -> nn.Module:
    """A model in evaluation mode; weights are drawn so that every norm, bias and statistic changes the output."""
    torch.manual_seed(0)
    model = BUILDERS[name]().eval()
    generator = torch.Generator().manual_seed(1)
    for key, value in [*model.named_parameters(), *model.named_buffers()]:
        if not value.is_floating_point() or "inv_freq" in key:
            continue
        drawn = torch.randn(value.shape, generator=generator)
        if value.ndim > 1:
            drawn *= (1.5 / value[0].numel()) ** 0.5
        elif key.endswith("running_var"):
            drawn = drawn.abs() + 0.5
        else:
            drawn = 0.2 * drawn + (1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0)
        value.data.copy_(drawn)
    return model


def write(name: str, directory: Path) -> None:
    """Save a transformers model, with a tokenizer in which every token is one character."""
    model: Any = build(name)
    model.save_pretrained(directory)
    letters = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter.isascii() or letter in "ĠĊ"]
    vocabulary = {letter: number for number, letter in enumerate(["<unk>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>").save_pretrained(directory)


def batches(model: nn.Module) -> list[dict[str, Tensor]]:
    """What the model is calibrated with in memory: three batches of its keyword arguments."""
    generator = torch.Generator().manual_seed(2)

    def ids() -> Tensor:
        return torch.randint(3, VOCABULARY, (2, 24), generator=generator)

    def images(side: int) -> Tensor:
        return torch.randn(2, 3, side, side, generator=generator)

    config = getattr(model, "config", None)
    if config is None:
        return [{"images": images(8)} for _ in range(3)]
    if getattr(model, "main_input_name", "") == "pixel_values":
        return [{"pixel_values": images(getattr(config, "image_size", 32))} for _ in range(3)]
    if config.is_encoder_decoder:
        return [{"input_ids": ids(), "decoder_input_ids": ids()[:, :12]} for _ in range(3)]
    return [{"input_ids": ids()} for _ in range(3)]


def labelled() -> list[tuple[Tensor, Tensor]]:
    """What a plain network is trained on: pairs of images and classes."""
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(16, 3, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)) for _ in range(4)
    ]
