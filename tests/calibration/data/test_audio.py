"""Recordings: what .wav files of every width hold, and the same sound at another rate."""

from __future__ import annotations

import math
import resource
import struct
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
import torch

from goldstick.calibration.data import audio
from goldstick.calibration.data.audio import MOST_SECONDS, read_audio, resampled
from goldstick.errors import DataError, UsageError


def sine(rate: int, hertz: float = 440.0, seconds: float = 1.0) -> torch.Tensor:
    return 0.5 * torch.sin(2 * math.pi * hertz * torch.arange(int(rate * seconds), dtype=torch.float64) / rate)


def write_wav(path: Path, values: np.ndarray, width: int, rate: int = 8000, channels: int = 1) -> Path:
    """A .wav file of whole numbers, [samples] or [samples, channels] from -1 to 1."""
    numbers = np.round(values.reshape(-1) * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    if width == 1:
        data = (numbers + 128).astype(np.uint8).tobytes()
    else:
        data = b"".join(struct.pack("<q", number)[:width] for number in numbers.tolist())
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(data)
    return path


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_every_width_of_whole_numbers_is_read(width: int, tmp_path: Path) -> None:
    values = sine(8000).numpy()
    found = read_audio(write_wav(tmp_path / "a.wav", values, width), 8000)
    assert found.dtype is torch.float32
    assert np.abs(found.numpy() - values).max() < 2.0 ** (2 - 8 * width) + 1e-6


def test_channels_are_averaged_and_long_recordings_cut(tmp_path: Path) -> None:
    both = np.stack([np.full(100, 0.5), np.full(100, -0.25)], axis=1)
    found = read_audio(write_wav(tmp_path / "a.wav", both, 2, channels=2), 8000)
    assert found.mean().item() == pytest.approx(0.125, 1e-3)
    long = np.zeros(100 * (MOST_SECONDS + 5))
    assert len(read_audio(write_wav(tmp_path / "b.wav", long, 2, rate=100), 100)) == 100 * MOST_SECONDS


@pytest.mark.parametrize(("rate", "to"), [(8000, 16000), (44100, 16000), (48000, 16000), (22050, 24000)])
def test_a_sound_at_another_rate_is_the_same_sound(rate: int, to: int) -> None:
    found = resampled(sine(rate), rate, to)
    assert len(found) == to
    inside = slice(to // 20, -to // 20)
    assert (found[inside] - sine(to)[inside]).abs().max() < 1e-3


def test_what_the_lower_rate_cannot_hold_is_taken_away() -> None:
    assert resampled(sine(16000, hertz=7000), 16000, 8000)[100:-100].abs().max() < 5e-3


def test_resampling_is_the_sum_that_is_documented() -> None:
    samples = torch.randn(60, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = resampled(samples, 3, 2)
    cutoff = 2 * 0.97 / 3  # of the old samples
    for place in range(0, 40, 7):
        total = 0.0
        for k in range(60):
            t = (k - place * 1.5) * cutoff
            if abs(t) < 16:
                sinc = 1.0 if t == 0 else math.sin(math.pi * t) / (math.pi * t)
                total += float(samples[k]) * sinc * math.cos(math.pi * t / 32) ** 2 * cutoff
        assert found[place].item() == pytest.approx(total, abs=1e-6)


def test_what_is_no_recording_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"a\.wav: no recording that can be read"):
        read_audio(path, 8000)
    with pytest.raises(DataError, match=r"b\.wav: the recording is empty"):
        read_audio(write_wav(tmp_path / "b.wav", np.zeros(0), 2), 8000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(
        UsageError, match=r"read with soundfile, which is not installed: pip install 'goldstick\[audio\]'"
    ):
        read_audio(tmp_path / "c.flac", 8000)


@pytest.mark.parametrize(("rate", "to"), [(3, 2), (2, 3), (8000, 16000), (44100, 16000), (16000, 22050)])
def test_filters_made_one_by_one_give_the_same(rate: int, to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = torch.randn(777, generator=torch.Generator().manual_seed(0))
    whole = resampled(samples, rate, to)
    monkeypatch.setattr(audio, "_MOST_TAPS", 1000)
    torch.testing.assert_close(resampled(samples, rate, to), whole, rtol=0, atol=1e-6)


def test_rates_without_a_common_divisor_take_little_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = resampled(sine(15_991), 15_991, 16_000)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # of 4 GB, in KiB
    torch.testing.assert_close(found[200:-200], sine(16_000).float()[200 : len(found) - 200], rtol=0, atol=2e-3)


@pytest.mark.parametrize("rate", [1, 2**31 - 1])
def test_a_rate_that_no_recording_has_is_refused(rate: int, tmp_path: Path) -> None:
    path = write_wav(tmp_path / "a.wav", np.zeros(100), 2)
    content = bytearray(path.read_bytes())
    content[24:28] = rate.to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"a.wav: a recording of {rate} samples a second"):
        read_audio(path, 16_000)


def with_header(path: Path, at: int, size: int, value: int) -> Path:
    """A recording whose header says something else at a place."""
    content = bytearray(path.read_bytes())
    content[at : at + size] = value.to_bytes(size, "little")
    path.write_bytes(content)
    return path


def test_a_recording_that_ends_before_its_header_says_is_refused(tmp_path: Path) -> None:
    whole = write_wav(tmp_path / "a.wav", np.full(1000, 0.5), 2)
    streamed = with_header(write_wav(tmp_path / "b.wav", np.full(1000, 0.5), 2), 40, 4, 0xFFFFFFFF)
    assert torch.equal(read_audio(streamed, 8000), read_audio(whole, 8000)), "its end was not known when it was begun"
    whole.write_bytes(whole.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"a\.wav: the recording ends 250 samples before its header says; leave it out"):
        read_audio(whole, 8000)


def test_samples_of_odd_sizes_and_such_that_are_no_numbers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_header(write_wav(tmp_path / "a.wav", np.zeros(100), 2), 34, 2, 40)
    with pytest.raises(DataError, match=r"a\.wav: a recording of 40 bits a sample, as its header says"):
        read_audio(path, 8000)
    monkeypatch.setattr(audio, "_by_soundfile", lambda _: (torch.tensor([[0.0], [torch.nan]]), 8000))
    with pytest.raises(DataError, match=r"c\.flac: the recording holds samples that are no numbers"):
        read_audio(tmp_path / "c.flac", 8000)
