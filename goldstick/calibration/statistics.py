"""What a sweep remembers of the inputs of a layer.

The statistics themselves are plain tensor code and live in ``core``, where algorithms, which may not import
calibration, can name the one they need.
"""

from goldstick.core.inputs import InputObserver

__all__ = ["InputObserver"]
