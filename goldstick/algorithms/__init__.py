"""The algorithms, each a frozen dataclass in a file of its own."""

from goldstick.algorithms.awq import AWQ
from goldstick.algorithms.base import (
    Algorithm,
    Member,
    Quantizer,
    Smoother,
    SmoothScale,
    TrainedQuantizer,
)
from goldstick.algorithms.bias_correction import BiasCorrection
from goldstick.algorithms.block_reconstruction import BlockReconstruction
from goldstick.algorithms.descent import Descent
from goldstick.algorithms.distill import Distill
from goldstick.algorithms.equalization import CrossLayerEqualization
from goldstick.algorithms.finetune import Finetune
from goldstick.algorithms.fold_batch_norm import FoldBatchNorm
from goldstick.algorithms.gptq import GPTQ
from goldstick.algorithms.kv_cache import KVCache
from goldstick.algorithms.learn import Learn
from goldstick.algorithms.rotation import RandomRotation
from goldstick.algorithms.rtn import RTN
from goldstick.algorithms.scop import SCOP
from goldstick.algorithms.slb import SLB
from goldstick.algorithms.slb_finish import SLBFinish
from goldstick.algorithms.smoothquant import SmoothQuant
from goldstick.algorithms.stage import DataRequirement, Stage
from goldstick.algorithms.validate import Validate
from goldstick.core.registry import Registry

#: Every stage a recipe can name.
ALGORITHMS: Registry[type[Stage]] = Registry(
    "goldstick.algorithms",
    "a class derived from Stage",
    lambda found: isinstance(found, type) and issubclass(found, Stage),
    {
        "rtn": RTN,
        "gptq": GPTQ,
        "descent": Descent,
        "awq": AWQ,
        "smoothquant": SmoothQuant,
        "fold_batch_norm": FoldBatchNorm,
        "equalize": CrossLayerEqualization,
        "correct_bias": BiasCorrection,
        "rotate": RandomRotation,
        "kv_cache": KVCache,
        "slb": SLB,
        "slb_finish": SLBFinish,
        "validate": Validate,
        "learn": Learn,
        "distill": Distill,
        "scop": SCOP,
        "finetune": Finetune,
    },
)

__all__ = [
    "ALGORITHMS",
    "AWQ",
    "GPTQ",
    "RTN",
    "SCOP",
    "SLB",
    "Algorithm",
    "BiasCorrection",
    "BlockReconstruction",
    "CrossLayerEqualization",
    "DataRequirement",
    "Descent",
    "Distill",
    "Finetune",
    "FoldBatchNorm",
    "KVCache",
    "Learn",
    "Member",
    "Quantizer",
    "RandomRotation",
    "SLBFinish",
    "SmoothQuant",
    "SmoothScale",
    "Smoother",
    "Stage",
    "TrainedQuantizer",
    "Validate",
]
