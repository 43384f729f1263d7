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
def quantized_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    bits: int,
    group_size: int,
    activation: str = "",
    input_scale: float = 0.0,
    input_zero: int = 0,
    threads: int = 1,
    use_avx2: bool = False,
) -> None: ...
def read_words(words: Tensor, threads: int = 1) -> int: ...
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
