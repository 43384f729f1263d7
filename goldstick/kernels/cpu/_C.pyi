"""Types of the compiled CPU kernels; see binding.cpp."""

from torch import Tensor

def dequantize_rows(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    out: Tensor,
    bits: int,
    group_size: int,
    threads: int = 1,
) -> None: ...
def isa() -> str: ...
def gptq_block(
    weight: Tensor,
    factor: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    group: Tensor,
    codes: Tensor,
    errors: Tensor,
    bits: int,
    precision: str,
    threads: int = 1,
    use_avx2: bool = False,
) -> None: ...
def search_ranges(
    values: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    importance: Tensor | None,
    best: Tensor,
    bits: int,
    threads: int = 1,
    use_avx2: bool = False,
) -> None: ...
def add_products(left: Tensor, right: Tensor, sums: Tensor, threads: int = 1, use_avx2: bool = False) -> None: ...
