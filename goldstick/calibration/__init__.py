"""Calibration: showing a network data, block by block, and what is remembered of it."""
