"""Recordings: read from files, one channel made of all, at the rate that a model listens at."""

from __future__ import annotations

import math
import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from goldstick.errors import DataError, UsageError

#: Seconds of a recording that are read; models of speech take no more at once.
MOST_SECONDS = 30

_ZERO_CROSSINGS = 16
_ROLLOFF = 0.97
#: Numbers that filters held at once may have: rates without a large common divisor have a filter for each new sample.
_MOST_TAPS = 1 << 22
#: Rates that recordings have, in Hz; another is a header that is damaged.
_RATES = (100, 1_000_000)
#: Bytes from which a header's length is that of a stream whose end nobody knew (FFmpeg, SoX).
_OPEN_END = 0x7FFF0000
_PCM = {1: "u1", 2: "<i2", 4: "<i4"}


def read_audio(path: Path, rate: int) -> Tensor:
    """The first ``MOST_SECONDS`` of a recording: float32 [samples] from -1 to 1, ``rate`` of them a second.

    Plain ``.wav`` files are read by Python itself, all others by soundfile.

    Raises:
        DataError: The file cannot be read, or holds no sound, less of it than it says, or NaN.
        UsageError: It takes soundfile, which is not installed.
    """
    found = _plain_wav(path) if path.suffix.lower() == ".wav" else None
    samples, own_rate = found if found is not None else _by_soundfile(path)
    if not samples.numel():
        raise DataError(f"{path}: the recording is empty; leave it out")
    if not bool(samples.isfinite().all()):
        raise DataError(f"{path}: the recording holds samples that are no numbers (NaN or infinity); leave it out")
    if not _RATES[0] <= own_rate <= _RATES[1]:
        raise DataError(f"{path}: a recording of {own_rate} samples a second, as its header says; leave it out")
    return resampled(samples.mean(dim=1), own_rate, rate)


def resampled(samples: Tensor, rate: int, to: int) -> Tensor:
    """A sound at another rate: y(t) = Σ x[k] · h(t − k), with h a sinc that a Hann window ends.

    Frequencies above 0.97 of half the lower rate are taken away.

    Args:
        samples: [samples].
        rate: How many a second.
        to: How many a second there shall be.
    """
    if rate == to:
        return samples.float()
    divisor = math.gcd(rate, to)
    old, new = rate // divisor, to // divisor
    cutoff = min(old, new) * _ROLLOFF  # in cycles of the time that old samples take
    width = math.ceil(_ZERO_CROSSINGS * old / cutoff)
    if new * (2 * width + old) > _MOST_TAPS:
        return _resampled_one_by_one(samples.double(), old, new, cutoff, width)
    places = torch.arange(-width, width + old, dtype=torch.float64) / old
    times = (places[None, :] - torch.arange(new, dtype=torch.float64)[:, None] / new) * cutoff
    kernels = _filter(times) * cutoff / old  # [new, taps]
    padded = torch.nn.functional.pad(samples.double()[None, None], (width, width + old))
    found = torch.nn.functional.conv1d(padded, kernels[:, None], stride=old)[0]  # [new, steps]
    return found.T.reshape(-1)[: math.ceil(len(samples) * new / old)].float()


def _resampled_one_by_one(samples: Tensor, old: int, new: int, cutoff: float, width: int) -> Tensor:
    """The same with a filter made for each new sample, of the old ones beside it alone."""
    count, taps = math.ceil(len(samples) * new / old), torch.arange(-width, width + 1)
    padded = torch.nn.functional.pad(samples, (width, width + 1))
    found = []
    for numbers in torch.split(torch.arange(count), _MOST_TAPS // len(taps)):
        before = numbers * old // new  # of the old sample at or before the new one
        behind = (numbers * old - before * new).double() / new  # how far the new one is behind it
        weights = _filter((taps[None, :] - behind[:, None]) * (cutoff / old)) * cutoff / old
        found.append((padded[before[:, None] + width + taps[None, :]] * weights).sum(dim=1))
    return torch.cat(found).float()


def _filter(times: Tensor) -> Tensor:
    """A sinc that a Hann window ends, at times in zero crossings."""
    window = torch.cos(times.clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS) * math.pi / _ZERO_CROSSINGS / 2) ** 2
    return torch.sinc(times) * window


def _plain_wav(path: Path) -> tuple[Tensor, int] | None:
    """Samples [samples, channels] and their rate; ``None`` for a ``.wav`` file of another coding than whole numbers."""
    try:
        with wave.open(str(path), "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.getnframes()
            data = file.readframes(min(frames, MOST_SECONDS * rate))
    except wave.Error as error:
        if "unknown format" in str(error):
            return None
        raise DataError(f"{path}: no recording that can be read ({error}); leave it out or convert it") from error
    except (OSError, EOFError) as error:
        reason = str(error) or "it ends too early"
        raise DataError(f"{path}: no recording that can be read ({reason}); leave it out or convert it") from error
    if width != 3 and width not in _PCM:
        raise DataError(f"{path}: a recording of {8 * width} bits a sample, as its header says; leave it out")
    missing = min(frames, MOST_SECONDS * rate) - len(data) // (width * channels)
    if missing > 0 and frames * width * channels < _OPEN_END:
        raise DataError(f"{path}: the recording ends {missing} samples before its header says; leave it out")
    if width == 3:
        triples = np.frombuffer(data[: len(data) // 3 * 3], np.uint8).reshape(-1, 3)
        whole = np.zeros((len(triples), 4), np.uint8)
        whole[:, 1:] = triples
        numbers, width = whole.reshape(-1).view(np.dtype("<i4")), 4
    else:
        numbers = np.frombuffer(data[: len(data) // width * width], np.dtype(_PCM[width]))
    values = torch.from_numpy(numbers.astype(np.float32))
    values = (values - 128) / 128 if width == 1 else values / 2.0 ** (8 * width - 1)
    return values[: len(values) // channels * channels].view(-1, channels), rate


def _by_soundfile(path: Path) -> tuple[Tensor, int]:
    try:
        import soundfile
    except (ModuleNotFoundError, OSError) as error:
        raise UsageError(
            f"{path}: recordings other than plain .wav are read with soundfile, which is not installed: "
            "pip install 'goldstick[audio]'; or convert them to .wav of 16 bits"
        ) from error
    try:
        with soundfile.SoundFile(str(path)) as file:
            values = file.read(MOST_SECONDS * file.samplerate, dtype="float32", always_2d=True)
            return torch.from_numpy(values), int(file.samplerate)
    except (soundfile.SoundFileError, OSError, ValueError) as error:
        raise DataError(f"{path}: no recording that can be read ({error}); leave it out or convert it") from error
