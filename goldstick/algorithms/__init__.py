"""The algorithms, each a frozen dataclass in a file of its own."""

from goldstick.algorithms.base import Algorithm, Exposure
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.rtn import RTN

#: Every algorithm a recipe can name.
ALGORITHMS: dict[str, type[Algorithm]] = {"rtn": RTN, "gptq": GPTQ}

__all__ = ["ALGORITHMS", "GPTQ", "RTN", "Algorithm", "Exposure"]
