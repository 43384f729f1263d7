"""silero-vad: how likely each 32 ms of a recording hold speech; a plain module that remembers what it heard.

Its package ships TorchScript, whose modules are none that can be changed. The network here is the one that this
TorchScript runs at 16 kHz, with its weights; both are compared on a recording before anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import pad

import goldstick
from goldstick.evaluation.metrics import Items
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace
from tools.real_models.speech import Utterance, read_wave, record
from tools.real_models.texts import sentences

RECORDINGS, CALIBRATION = 40, 16
_FRAME, _CONTEXT, _BINS = 512, 64, 129
#: Hiss as shares of the loudest sample, and how loud a frame of clean speech is at least.
_HISS, _LOUD = (0.01, 0.05, 0.15), 0.02
_LIKELY = 0.5


class VoiceActivity(nn.Module):
    """Frames [frames, 576] of a recording in their order, each with the 64 samples before it, to probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 2 * _BINS, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(_BINS, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    def forward(self, frames: Tensor) -> Tensor:
        """What each frame says, given those before it."""
        spectrum = self.stft_conv(pad(frames[:, None], (0, 64), mode="reflect"))  # [frames, 2 · bins, 4]
        sound = (spectrum[:, :_BINS] ** 2 + spectrum[:, _BINS:] ** 2).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            sound = layer(sound).relu()
        state: tuple[Tensor, Tensor] | None = None
        remembered = []
        for frame in sound[:, None, :, 0]:
            state = self.lstm_cell(frame, state)
            remembered.append(state[0])
        return self.final_conv(torch.cat(remembered)[..., None].relu()).sigmoid()[:, 0, 0]


def frames_of(samples: np.ndarray) -> Tensor:
    """[frames, 576] of a recording, filled up with silence."""
    silence = -len(samples) % _FRAME
    heard = torch.from_numpy(np.concatenate([np.zeros(_CONTEXT, np.float32), samples, np.zeros(silence, np.float32)]))
    return heard.unfold(0, _CONTEXT + _FRAME, _FRAME).contiguous()


def _prepare(place: Workplace) -> None:
    _recordings(place)
    _spoken(place, "calibration", CALIBRATION, seed=2)
    place.path(FLOAT).mkdir(exist_ok=True)
    if not (place.path(FLOAT) / "model.safetensors").exists():
        script = torch.jit.load(str(place.site / "silero_vad" / "data" / "silero_vad.jit"))
        stored = {name.removeprefix("_model."): value for name, value in script.state_dict().items()}
        weights = {f"{own}.{kind}": stored[f"{name}.{kind}"] for own, name in _NAMES for kind in ("weight", "bias")}
        cell = {name: stored[f"decoder.rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        weights |= {f"lstm_cell.{name}": value for name, value in cell.items()}
        weights["stft_conv.weight"] = stored["stft.forward_basis_buffer"]
        _compare(script, weights, frames_of(read_wave(_recordings(place)[0].file)))
        save_file(
            {name: value.contiguous() for name, value in weights.items()}, place.path(FLOAT) / "model.safetensors"
        )


_NAMES = (
    *((f"conv{number}", f"encoder.{number - 1}.reparam_conv") for number in range(1, 5)),
    ("final_conv", "decoder.decoder.2"),
)


def _compare(script: Any, weights: dict[str, Tensor], frames: Tensor) -> None:
    model = VoiceActivity().eval()
    model.load_state_dict(weights)
    with torch.inference_mode():
        expected = torch.cat([script(frame[None, _CONTEXT:], 16_000)[0] for frame in frames])
        torch.testing.assert_close(model(frames), expected, rtol=0.0, atol=1e-3)


def _recordings(place: Workplace) -> list[Utterance]:
    return _spoken(place, "evaluation", RECORDINGS, seed=1)


def _spoken(place: Workplace, part: str, count: int, seed: int) -> list[Utterance]:
    texts = sentences(place.shared, "calibration" if part == "calibration" else "evaluation", count)
    return record(place.path(part), texts, place.site, seed=seed)


def _load(place: Workplace, folder: Path) -> nn.Module:
    model = VoiceActivity().eval()
    if folder.name != FLOAT:
        return goldstick.load(folder, model=model).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def _sounds(recordings: Sequence[Utterance], seed: int) -> list[tuple[Tensor, list[bool]]]:
    """Each recording in hiss, between two seconds of hiss alone; and in which frames the clean speech is loud."""
    generator = np.random.default_rng(seed)
    found = []
    for one in recordings:
        clean = np.concatenate([np.zeros(32_000, np.float32), read_wave(one.file), np.zeros(32_000, np.float32)])
        level = np.abs(clean).max()
        hiss = generator.standard_normal(len(clean)).astype(np.float32) * level * np.float32(generator.choice(_HISS))
        own = frames_of(clean)[:, _CONTEXT:]
        found.append((frames_of(clean + hiss), (own.square().mean(1).sqrt() > _LOUD * level).tolist()))
    return found


def _compress(place: Workplace, variant: Variant, folder: Path) -> None:
    model = _load(place, place.path(FLOAT))
    calibration = _spoken(place, "calibration", CALIBRATION, seed=2)
    data = [frames for frames, _ in _sounds(calibration, seed=2)] if "gptq" in variant.name else None
    goldstick.apply(model, variant.arguments[0], data=data).save(folder)


def _probabilities(place: Workplace, model: nn.Module) -> list[Tensor]:
    with torch.inference_mode():
        return [model(frames).clone() for frames, _ in _sounds(_recordings(place), seed=1)]


def _score(place: Workplace, found: Sequence[Tensor], by_float: Sequence[Tensor]) -> dict[str, Items]:
    loud = [torch.tensor(one) for _, one in _sounds(_recordings(place), seed=1)]
    wrong = [float(((ours > _LIKELY) != truth).sum()) for ours, truth in zip(found, loud, strict=True)]
    moved = [float(((ours > _LIKELY) != (usual > _LIKELY)).sum()) for ours, usual in zip(found, by_float, strict=True)]
    frames = [float(len(one)) for one in loud]
    return {
        "frames wrong %": Items(values=wrong, weights=frames),
        "frames unlike float %": Items(values=moved, weights=frames),
    }


VOICE_ACTIVITY = RealModel(
    name="silero-vad",
    title="silero-vad 6.2 (0.3 M, voice activity)",
    packages=("silero-vad==6.2.3", "espeakng-loader==0.2.4"),
    licence="MIT",
    task=f"frames of 32 ms taken for speech or silence, in {RECORDINGS} sentences of espeak-ng in hiss",
    variants=(
        Variant(name="w8a16", arguments=("rtn-w8a16",)),
        Variant(name="w4 rtn", arguments=("rtn-w4a16",)),
        Variant(name="w4 gptq", arguments=("gptq-w4a16",)),
    ),
    prepare=_prepare,
    load=_load,
    compress=_compress,
    outputs=_probabilities,
    score=_score,
    lower_is_better=frozenset({"frames wrong %", "frames unlike float %"}),
)
