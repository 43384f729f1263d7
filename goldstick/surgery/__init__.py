"""The surgeon: the only code that changes a model; it decides nothing.

``edits`` rewrites a model, ``forwards`` lets it do the same faster, ``dequantize`` gives it float layers again.
"""

from goldstick.nn.replacing import replace
from goldstick.surgery.dequantize import dequantize
from goldstick.surgery.edits import (
    apply,
    forget_ties,
    index_experts_one_by_one,
    leave_nested_tensors,
    refuse_modules,
    replace_module,
    scale_anew,
    settle_scales,
    tie,
)
from goldstick.surgery.forwards import Forward, fuse_linears, hand_over, run_through, take_over

__all__ = [
    "Forward",
    "apply",
    "dequantize",
    "forget_ties",
    "fuse_linears",
    "hand_over",
    "index_experts_one_by_one",
    "leave_nested_tensors",
    "refuse_modules",
    "replace",
    "replace_module",
    "run_through",
    "scale_anew",
    "settle_scales",
    "take_over",
    "tie",
]
