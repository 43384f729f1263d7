"""Speech made by espeak-ng from texts: wave files of 16,000 samples a second, and a table of what is said in them.

The library and its voices are those of the package espeakng-loader, called through ctypes.
"""

from __future__ import annotations

import csv
import ctypes
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch.nn.functional import interpolate

RATE = 16_000
_SYNCHRONOUS, _UTF8, _SPEED, _PITCH = 2, 1, 1, 3


@dataclass(frozen=True, kw_only=True)
class Manner:
    """How something is said: a voice of espeak-ng, words a minute, and pitch from 0 to 100."""

    voice: str
    speed: int
    pitch: int


MANNERS = tuple(
    Manner(voice=voice, speed=speed, pitch=pitch)
    for voice, pitch in (("en-us", 50), ("en-us+f2", 55), ("en", 45), ("en+f4", 60), ("en-us+m3", 40))
    for speed in (130, 145, 160)
)


@dataclass(frozen=True, kw_only=True)
class Utterance:
    """A recording and what is said in it."""

    file: Path
    text: str


class Speaker:
    """espeak-ng in this process; there can be one."""

    def __init__(self, site: Path) -> None:
        package = site / "espeakng_loader"
        self._library = ctypes.CDLL(str(package / "libespeak-ng.so"))
        self._rate = self._library.espeak_Initialize(_SYNCHRONOUS, 0, str(package).encode(), 0)
        if self._rate <= 0:
            raise RuntimeError(f"espeak-ng finds no voices in {package}")
        self._heard: list[np.ndarray] = []
        form = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self._callback: Callable[..., int] = form(self._hear)  # type: ignore[assignment]
        self._library.espeak_SetSynthCallback(self._callback)

    def _hear(self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: int) -> int:
        if count > 0:
            self._heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    def say(self, text: str, manner: Manner) -> np.ndarray:
        """Samples of a text, int16 at `RATE`."""
        if self._library.espeak_SetVoiceByName(manner.voice.encode()):
            raise RuntimeError(f"espeak-ng has no voice {manner.voice}")
        self._library.espeak_SetParameter(_SPEED, manner.speed, 0)
        self._library.espeak_SetParameter(_PITCH, manner.pitch, 0)
        self._heard.clear()
        spoken = text.encode()
        self._library.espeak_Synth(spoken, len(spoken) + 1, 0, 1, 0, _UTF8, None, None)
        self._library.espeak_Synchronize()
        return _at_rate(np.concatenate(self._heard), self._rate)


def _at_rate(samples: np.ndarray, rate: int) -> np.ndarray:
    """The samples at `RATE`, without what lies above half of it: a window of sinc, then lines between neighbours."""
    offsets = torch.arange(-32, 33, dtype=torch.float64)
    low = torch.sinc(offsets * (0.92 * RATE / rate)) * torch.hann_window(65, periodic=False, dtype=torch.float64)
    heard = torch.from_numpy(samples.astype(np.float64))[None, None]
    smooth = torch.nn.functional.conv1d(heard, (low / low.sum())[None, None], padding=32)
    length = round(len(samples) * RATE / rate)
    return interpolate(smooth, size=length, mode="linear")[0, 0].round().clamp(-32768, 32767).to(torch.int16).numpy()


def write_wave(path: Path, samples: np.ndarray) -> None:
    """Write int16 samples of one channel at `RATE`."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def read_wave(path: Path) -> np.ndarray:
    """Samples of a file that `write_wave` wrote, float32 from -1 to 1."""
    with wave.open(str(path), "rb") as file:
        return np.frombuffer(file.readframes(file.getnframes()), dtype="<i2").astype(np.float32) / 32768


def record(folder: Path, texts: Sequence[str], site: Path, *, seed: int) -> list[Utterance]:
    """Say each text in a manner of its own, and write ``speech.csv``; what is there already is left as it is."""
    table = folder / "speech.csv"
    if not table.exists():
        folder.mkdir(parents=True, exist_ok=True)
        speaker, random = Speaker(site), Random(seed)
        rows = []
        for number, text in enumerate(texts):
            name = f"{number:04}.wav"
            write_wave(folder / name, speaker.say(text, random.choice(MANNERS)))
            rows.append((name, text))
        with table.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("audio", "text"), *rows])
    with table.open(newline="", encoding="utf-8") as file:
        return [Utterance(file=folder / row["audio"], text=row["text"]) for row in csv.DictReader(file)]
