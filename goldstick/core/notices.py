"""goldstick's own warnings, which the command line shows as notes."""

from __future__ import annotations


class GoldstickWarning(UserWarning):
    """Something that a user should know, and that stops nothing."""


class SlowKernelsWarning(GoldstickWarning, RuntimeWarning):
    """What runs gives the same and takes much longer, since the compiled kernels are not there."""


class RoundedImagesWarning(GoldstickWarning):
    """What an optimized network hands from layer to layer was read by somebody else, and is rounded to 8 bits."""


class UnrecognisedWarning(GoldstickWarning):
    """Much of a model stays float, since it is of kinds that are not quantized."""


class SharedStateWarning(GoldstickWarning):
    """Blocks of a model are calibrated in passes through all of it, which takes longer."""


class NotRunWarning(GoldstickWarning):
    """The outputs of a checkpoint are not proven, since its model could not be run."""


class NotStoredWarning(GoldstickWarning):
    """A model holds something that no checkpoint can hold."""


class LeftOutWarning(GoldstickWarning):
    """A file beside a model is not carried on."""


class RenamedOptionWarning(GoldstickWarning, FutureWarning):
    """An option of a recipe is given under a name that it had before."""


class OtherSearchWarning(GoldstickWarning):
    """What another search has measured lies where this one keeps its own, and is put aside."""
