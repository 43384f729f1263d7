"""By which endings files of images and of sound are known."""

from __future__ import annotations

#: Images that Pillow reads.
IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")

#: Recordings; all but plain .wav files are read by soundfile.
AUDIO = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aiff", ".aif")
