"""The column loop of GPTQ as a torch operator, ``goldstick::gptq_block``: compiled C++ on the CPU, Triton on a GPU.

Algorithms use it where ``core/compiled.py`` has it for the device, and plain torch otherwise, with the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from goldstick.core.compiled import declare
from goldstick.core.element import ELEMENTS, INTEGER
from goldstick.errors import KernelError
from goldstick.kernels import cpu, triton

_library = Library("goldstick", "FRAGMENT")

available = hasattr(cpu._C, "gptq_block")
"""Whether the compiled module is there and has the loop."""

_TABLE_BITS = 4
"""Bits of the largest tables that are looked up in registers."""

_THREADED_FROM = 64
"""Rows below this take one thread: starting a team costs more than it saves."""


def _gptq_block(
    weight: Tensor,
    factor: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    group: Tensor,
    bits: int,
    element: str = INTEGER,
    dtype: str = "",
    minimums: bool = False,
) -> tuple[Tensor, Tensor]:
    """Codes uint8 and errors float64 [rows, width], as ``algorithms/column_loop.py`` computes them."""
    if scale.dtype not in cpu.PRECISIONS:
        raise KernelError(f"gptq_block takes scales in float32, bfloat16 or float16, not {scale.dtype}")
    table = ELEMENTS.get(element)
    if table is not None and table.bits > _TABLE_BITS:
        raise KernelError(f"gptq_block takes tables of {_TABLE_BITS} bits, not {element}")
    codes = torch.empty(weight.shape, dtype=torch.uint8)
    errors = torch.empty(weight.shape, dtype=torch.float64)
    cpu._C.gptq_block(
        weight.detach().contiguous(),
        factor.detach().contiguous(),
        scale.detach().float().contiguous(),
        None if zero is None else zero.detach().float().contiguous(),
        group.contiguous(),
        codes,
        errors,
        bits,
        cpu.PRECISIONS[scale.dtype] if table is None else dtype or cpu.PRECISIONS[scale.dtype],
        torch.get_num_threads() if len(weight) >= _THREADED_FROM else 1,
        cpu.chosen_isa() != "scalar",
        minimums,
        None if table is None else table.edges(),
        None if table is None else table.table(),
        table is not None and table.signed,
        table is not None and table.keeps_zero_sign,
    )
    return codes, errors


def _fake_gptq_block(
    weight: Tensor,
    factor: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    group: Tensor,
    bits: int,
    element: str = INTEGER,
    dtype: str = "",
    minimums: bool = False,
) -> tuple[Tensor, Tensor]:
    return weight.new_empty(weight.shape, dtype=torch.uint8), weight.new_empty(weight.shape)


_library.define(
    "gptq_block(Tensor weight, Tensor factor, Tensor scale, Tensor? zero, Tensor group, int bits, "
    "str element='int', str dtype='', bool minimums=False) -> (Tensor codes, Tensor errors)"
)
torch.library.register_fake("goldstick::gptq_block", _fake_gptq_block, lib=_library)
_library.impl("gptq_block", triton.gptq_block, "CUDA")
declare("gptq_block", "cuda", triton.compiles_for)
if available:
    _library.impl("gptq_block", _gptq_block, "CPU")
    declare("gptq_block", "cpu")
