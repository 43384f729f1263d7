"""Processors of tiny models, made without a download, and files of images and sound for them."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

RATE = 16_000
SIDE, PATCH = 16, 8
IMAGE_TOKEN = "<image>"
START, END = "<start>", "<end>"
CHAT = (
    "{% for message in messages %}[{{ message.role }}]{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


def letters(special: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters, with some special tokens before them."""
    alphabet = [letter for letter in sorted(pre_tokenizers.ByteLevel.alphabet()) if letter.isascii() or letter in "ĠĊ"]
    words = ["<unk>", *special, *alphabet]
    inner = Tokenizer(models.BPE(vocab={word: place for place, word in enumerate(words)}, merges=[], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(word, special=True) for word in special])
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", extra_special_tokens=special)


def vit(directory: Path) -> nn.Module:
    """A classifier of images, with its image processor, saved."""
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=SIDE,
        patch_size=PATCH,
        num_labels=3,
    )
    model = ViTForImageClassification(config).eval()
    model.save_pretrained(directory)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(directory)
    return model


def llava(directory: Path) -> nn.Module:
    """A model of images and text, with its processor and chat template, saved."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2}
    tokenizer = letters([IMAGE_TOKEN])
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**shape, num_hidden_layers=2, image_size=SIDE, patch_size=PATCH),
        text_config=LlamaConfig(**shape, num_hidden_layers=2, num_key_value_heads=2, vocab_size=128),
        image_token_index=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
    )
    model = LlavaForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    pixels = CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE})
    LlavaProcessor(
        image_processor=pixels,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT,
        image_token=IMAGE_TOKEN,
    ).save_pretrained(directory)
    return model


def whisper(directory: Path) -> nn.Module:
    """A model that writes what it hears, with its feature extractor and tokenizer, saved."""
    torch.manual_seed(0)
    tokenizer = letters([START, END])
    start, end = tokenizer.convert_tokens_to_ids([START, END])
    config = WhisperConfig(
        vocab_size=128,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=16,
        max_source_positions=50,
        max_target_positions=32,
        decoder_start_token_id=start,
        eos_token_id=end,
        bos_token_id=start,
        pad_token_id=end,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).eval()
    model.save_pretrained(directory)
    WhisperFeatureExtractor(feature_size=16, sampling_rate=RATE, chunk_length=1).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return model


def write_image(path: Path, seed: int = 0) -> Path:
    """An image of noise, of 20 × 24 pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    Image.fromarray(values).save(path)
    return path


def write_sound(path: Path, seed: int = 0, rate: int = 8000, seconds: float = 0.5) -> Path:
    """A recording of noise, of 16 bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(-9000, 9000, int(rate * seconds)).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(values.tobytes())
    return path


def write_rows(path: Path, *rows: dict[str, Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
