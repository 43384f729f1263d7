"""Calibration data: read, rendered as text, packed into samples."""
