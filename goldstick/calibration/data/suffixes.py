"""By which endings files of images and of sound are known."""

from __future__ import annotations

from goldstick.evaluation.image_preparation import IMAGES as IMAGES

#: Recordings; all but plain .wav files are read by soundfile.
AUDIO = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
