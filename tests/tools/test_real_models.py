"""What reads, speaks, counts and prints for real models; the models themselves are fetched by `make real-models`."""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from tools.real_models.catalogue import MODELS
from tools.real_models.ctranslate2_file import read_model_file
from tools.real_models.measured_run import run_measured
from tools.real_models.speech import RATE, _at_rate, read_wave, write_wave
from tools.real_models.table import page
from tools.real_models.texts import sentences
from tools.real_models.voice_activity import VoiceActivity, frames_of
from tools.real_models.whisper import _config, _renamed
from tools.real_models.word_errors import edits, words

TYPES = {np.dtype(np.float32): 0, np.dtype(np.int8): 1, np.dtype(np.int16): 2, np.dtype(np.float16): 4}


def string(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def model_file(variables: dict[str, np.ndarray], aliases: dict[str, str]) -> bytes:
    found = struct.pack("<I", 6) + string("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, value in variables.items():
        shape = struct.pack(f"<B{value.ndim}I", value.ndim, *value.shape)
        found += string(name) + shape + struct.pack("<BI", TYPES[value.dtype], value.nbytes) + value.tobytes()
    return found + struct.pack("<I", len(aliases)) + b"".join(map(string, sum(aliases.items(), ())))


def test_a_file_of_ctranslate2_is_read_with_its_aliases_and_8_bit_weights_times_their_scales(tmp_path: Path) -> None:
    half = np.arange(6, dtype=np.float16).reshape(2, 3)
    codes, scale = np.array([[127, -64], [3, 0]], np.int8), np.array([10.0, 2.0], np.float32)
    stored = {"half": half, "codes": codes, "codes_scale": scale, "heads": np.array(8, np.int16)}
    path = tmp_path / "model.bin"
    path.write_bytes(model_file(stored, {"twin": "half"}))
    read = read_model_file(path)
    assert read.specification == "WhisperSpec"
    assert set(read.variables) == {"half", "codes", "heads", "twin"}
    assert torch.equal(read.variables["twin"], torch.tensor([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]))
    assert torch.equal(read.variables["codes"], torch.tensor([[12.7, -6.4], [1.5, 0.0]]))
    assert int(read.variables["heads"]) == 8
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(ValueError, match="4 bytes follow"):
        read_model_file(path)


def test_a_stacked_whisper_gives_every_weight_of_transformers_its_own() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=40, d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, num_mel_bins=8,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=10,
        max_target_positions=12, pad_token_id=0, bos_token_id=0, eos_token_id=0, decoder_start_token_id=1,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    state = model.state_dict()
    stored = {"encoder/num_heads": torch.tensor(2), "decoder/num_heads": torch.tensor(2)}
    for side, layers in (("encoder", 2), ("decoder", 1)):
        own = f"model.{side}"
        stored[f"{side}/position_encodings/encodings"] = state[f"{own}.embed_positions.weight"]
        stored[f"{side}/layer_norm/gamma"] = state[f"{own}.layer_norm.weight"]
        stored[f"{side}/layer_norm/beta"] = state[f"{own}.layer_norm.bias"]
        for number in range(layers):
            stored |= layer(state, f"{own}.layers.{number}.", f"{side}/layer_{number}/")
    for name in ("conv1", "conv2"):
        stored |= {f"encoder/{name}/{kind}": state[f"model.encoder.{name}.{kind}"] for kind in ("weight", "bias")}
    stored["decoder/embeddings/weight"] = stored["decoder/projection/weight"] = state["proj_out.weight"]
    made = WhisperForConditionalGeneration(_config(stored, {"suppress_ids_begin": [1], "lang_ids": [2]}))
    made.load_state_dict(_renamed(stored, made))
    assert all(torch.equal(value, state[name]) for name, value in made.state_dict().items())


def layer(state: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    """A layer as CTranslate2 stacks it: q, k and v of self-attention, k and v of the other, zeros for k's bias."""
    found = {}
    for ours, theirs in (("fc1", "ffn/linear_0"), ("fc2", "ffn/linear_1")):
        found |= {f"{new}{theirs}/{kind}": state[f"{old}{ours}.{kind}"] for kind in ("weight", "bias")}
    kinds = (("weight", "gamma"), ("bias", "beta"))
    found |= {f"{new}ffn/layer_norm/{theirs}": state[f"{old}final_layer_norm.{ours}"] for ours, theirs in kinds}
    for ours, theirs in (("self_attn", "self_attention"), ("encoder_attn", "attention")):
        if f"{old}{ours}.q_proj.weight" not in state:
            continue
        found |= {f"{new}{theirs}/layer_norm/{b}": state[f"{old}{ours}_layer_norm.{a}"] for a, b in kinds}
        parts = {
            kind: [state.get(f"{old}{ours}.{side}_proj.{kind}", torch.zeros(16)) for side in ("q", "k", "v", "out")]
            for kind in ("weight", "bias")
        }
        groups = ((0, 3), (3, 4)) if ours == "self_attn" else ((0, 1), (1, 3), (3, 4))
        for number, (first, last) in enumerate(groups):
            for kind, values in parts.items():
                found[f"{new}{theirs}/linear_{number}/{kind}"] = torch.cat(values[first:last])
    return found


def test_edits_are_the_least_that_a_search_over_all_alignments_finds() -> None:
    def least(a: str, b: str) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(least(a[1:], b) + 1, least(a, b[1:]) + 1, least(a[1:], b[1:]) + (a[0] != b[0]))

    random = Random(0)
    for _ in range(60):
        a, b = ("".join(random.choices("ab ", k=random.randrange(6))) for _ in range(2))
        assert edits(a, b) == least(a, b)
    assert words("It's the Well-known, “old” dog’s bone.") == ["it's", "the", "well", "known", "old", "dog's", "bone"]


def test_sound_brought_to_another_rate_keeps_its_tones_and_loses_those_it_cannot_hold(tmp_path: Path) -> None:
    time = np.arange(22_050) / 22_050
    kept = _at_rate((8_000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16), 22_050)
    lost = _at_rate((8_000 * np.sin(2 * np.pi * 10_000 * time)).astype(np.int16), 22_050)
    assert len(kept) == RATE
    expected = 8_000 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    assert np.corrcoef(kept[200:-200], expected[200:-200])[0, 1] > 0.99
    assert np.abs(lost[200:-200]).max() < 800
    write_wave(tmp_path / "a.wav", kept)
    assert np.allclose(read_wave(tmp_path / "a.wav") * 32768, kept)


def test_frames_hold_the_samples_before_them_and_the_network_remembers() -> None:
    samples = np.arange(1200, dtype=np.float32)
    frames = frames_of(samples)
    assert frames.shape == (3, 576)
    assert frames[1].tolist() == list(range(448, 1024))
    assert not frames[0, :64].any() and not frames[2, 64 + 176 :].any()
    model = VoiceActivity().eval()
    with torch.no_grad():
        whole, last = model(frames / 1200), model(frames[2:] / 1200)
    assert whole.shape == (3,) and not torch.allclose(whole[2:], last)


def test_a_command_is_timed_alone_and_a_failure_ends_with_what_it_said(tmp_path: Path) -> None:
    import sys

    took = run_measured([sys.executable, "-c", "x = bytearray(200_000_000)"], tmp_path, tmp_path / "log")
    assert took.seconds > 0 and 200e6 < took.peak_bytes < 2e9
    held = bytearray(400_000_000)  # not the command's
    assert run_measured([sys.executable, "-c", ""], tmp_path, tmp_path / "log").peak_bytes < 100e6 < len(held)
    with pytest.raises(RuntimeError, match="exit code 3\nno such thing"):
        run_measured([sys.executable, "-c", "print('no such thing'); exit(3)"], tmp_path, tmp_path / "log")


@pytest.mark.data
def test_no_sentence_is_both_calibrated_and_measured_on(shared_data: Path) -> None:
    first, second = (sentences(shared_data.parent, part, 2000) for part in ("calibration", "evaluation"))
    assert len(set(first)) == len(set(second)) == 2000
    assert not set(first) & set(second)


def test_a_loss_that_the_same_items_show_is_marked() -> None:
    def metric(value: float, low: float, high: float) -> dict[str, object]:
        interval = [value - 1, value + 1]
        return {"value": value, "interval": interval, "difference": value - 5, "difference interval": [low, high]}

    made = {
        "bytes": 1e6,
        "command": "goldstick …",
        "seconds": 2.0,
        "processor seconds": 1.0,
        "peak bytes": 3e8,
        "format": "native",
    }
    made |= {"peak bytes": 3e8, "format": "native"}
    variants = {
        "float": {"bytes": 2e6, "metrics": {"errors %": {"value": 5.0, "interval": [4.0, 6.0]}}},
        "worse": {**made, "metrics": {"errors %": metric(7.0, 1.0, 3.0)}},
        "alike": {**made, "metrics": {"errors %": metric(5.5, -0.5, 1.5)}},
    }
    model = {"title": "A model", "packages": ["a==1"], "licence": "MIT", "task": "errors", "errors": ["errors %"]}
    text = page({"versions": {"torch": "2"}, "processor": "one", "models": {"a": {**model, "variants": variants}}})
    worse, alike = "7.00 (6.00 … 8.00); +2.00 (+1.00 … +3.00) ↓", "5.50 (4.50 … 6.50); +0.50 (-0.50 … +1.50)"
    assert f"| worse | 1.0 | {worse} | 2 s (1 s) | 300 MB | native |" in text
    assert f"| alike | 1.0 | {alike} | 2 s" in text


def test_every_model_names_exact_packages_and_variants_of_names_of_their_own() -> None:
    for model in MODELS.values():
        assert all("==" in package for package in model.packages)
        assert len({variant.name for variant in model.variants}) == len(model.variants)
