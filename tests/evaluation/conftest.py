"""A byte tokenizer, a tiny random model, and the real model and data where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from goldstick.evaluation import LanguageModel


def find_data() -> Path:
    """Return $GOLDSTICK_SHARED/data, by default shared/data beside the checkout."""
    checkout = Path(__file__).resolve().parents[2]
    shared = Path(os.environ.get("GOLDSTICK_SHARED") or checkout.parent / "shared")
    return shared / "data" if (shared / "data").is_dir() else shared


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory with data sets; the test is skipped where there is none."""
    found = find_data()
    if not found.is_dir():
        pytest.skip(f"no data sets at {found}: set GOLDSTICK_SHARED to the directory that holds them")
    return found


@pytest.fixture(scope="session")
def stories(data_dir: Path) -> LanguageModel:
    """A real model of 260 thousand parameters, trained on TinyStories."""
    directory = data_dir / "stories260k"
    if not directory.is_dir():
        pytest.skip(f"no model at {directory}")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, local_files_only=True)
    return LanguageModel.from_directory(model, directory)


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """One token per byte, `<s>` before every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<s>", "</s>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


@pytest.fixture
def tiny_model() -> LlamaForCausalLM:
    """A random Llama over bytes whose weights are large enough for its answers to differ."""
    torch.manual_seed(3)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=96,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    return model.eval()


@pytest.fixture
def make_language_model(tiny_model: LlamaForCausalLM, byte_tokenizer: Any) -> Callable[..., LanguageModel]:
    """Wrap the tiny model with given options."""
    return lambda **options: LanguageModel(tiny_model, byte_tokenizer, **options)


@pytest.fixture
def language_model(make_language_model: Callable[..., LanguageModel]) -> LanguageModel:
    """The tiny model, wrapped."""
    return make_language_model()
