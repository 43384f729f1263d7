"""The algorithms, each a frozen dataclass in a file of its own."""

from goldstick.algorithms.awq import AWQ
from goldstick.algorithms.base import Algorithm, Balance, Exposure, Member, Quantizer
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.rtn import RTN
from goldstick.algorithms.smoothquant import SmoothQuant

#: Every algorithm a recipe can name.
ALGORITHMS: dict[str, type[Algorithm]] = {"rtn": RTN, "gptq": GPTQ, "awq": AWQ, "smoothquant": SmoothQuant}

__all__ = ["ALGORITHMS", "AWQ", "GPTQ", "RTN", "Algorithm", "Balance", "Exposure", "Member", "Quantizer", "SmoothQuant"]
