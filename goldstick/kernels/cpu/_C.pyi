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
    units: Tensor | None = None,
) -> None: ...
def dequantize_float_codes(
    packed: Tensor,
    step: Tensor,
    table: Tensor,
    out: Tensor,
    bits: int,
    group_size: int,
    element: str,
    threads: int = 1,
) -> None: ...
def multiply_float_codes(
    packed: Tensor,
    step: Tensor,
    table: Tensor,
    x: Tensor,
    y: Tensor,
    bits: int,
    group_size: int,
    element: str,
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
    minimums: bool = False,
    edges: Tensor | None = None,
    table: Tensor | None = None,
    sign: bool = False,
    zero_sign: bool = False,
) -> None: ...
def fit_blocks(
    kind: str,
    x: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    minimum: Tensor | None,
    codes: Tensor | None,
    code_max: int,
    shifts: Tensor,
    absolute: bool = False,
    table: Tensor | None = None,
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
    isa: str = "scalar",
    table: Tensor | None = None,
    middle: int = 0,
    unit: float = 1.0,
    global_scale: Tensor | None = None,
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
    mantissa_bits: int = 0,
    least_normal: float = 0.0,
    largest: float = 0.0,
    table: Tensor | None = None,
    edges: Tensor | None = None,
) -> None: ...
def add_products(left: Tensor, right: Tensor, sums: Tensor, threads: int = 1, isa: str = "scalar") -> None: ...
def rms_norm(
    x: int, weight: int, y: int, rows: int, columns: int, epsilon: float, precision: str, threads: int
) -> None: ...
def hadamard(x: int, y: int, blocks: int, size: int, precision: str, threads: int) -> None: ...
def gated_silu(x: int, y: int, rows: int, columns: int, precision: str, threads: int) -> None: ...
def rotate(
    x: int,
    cos: int,
    sin: int,
    q: int,
    keys: int,
    values: int,
    batch: int,
    heads: int,
    kv_heads: int,
    channels: int,
    angle_stride: int,
    batch_stride: int,
    head_stride: int,
    precision: str,
) -> None: ...
def attend_token(
    x: int,
    cos: int,
    sin: int,
    q: int,
    out: int,
    keys: int,
    values: int,
    batch: int,
    heads: int,
    kv_heads: int,
    channels: int,
    angle_stride: int,
    capacity: int,
    filled: int,
    scaling: float,
    precision: str,
    threads: int,
) -> None: ...
def cache_numbers(
    coding: int,
    codes: int,
    token_scale: int,
    strides: tuple[int, int, int, int],
    scale: int,
    out: int,
    batch: int,
    kv_heads: int,
    tokens: int,
    channels: int,
    turned: int,
    precision: str,
    threads: int,
) -> None: ...
def attend(
    q: int,
    out: int,
    runs: list[tuple[int, int, int, int, tuple[int, int, int, int], int, int, tuple[int, int, int, int]]],
    key_scale: int,
    value_scale: int,
    batch: int,
    heads: int,
    kv_heads: int,
    channels: int,
    q_stride: int,
    turned: int,
    scaling: float,
    precision: str,
    threads: int,
) -> None: ...

class PreparedLinear:
    @property
    def interleaved(self) -> bool: ...
    def run(self, x: int, y: int, tokens: int, threads: int) -> bool: ...

def prepare_linear(
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    input_scale: Tensor | None,
    input_zero: Tensor | None,
    bits: int,
    columns: int,
    group_size: int,
    activation: str,
    interleaved: bool = False,
    table: Tensor | None = None,
    middle: int = 0,
    unit: float = 1.0,
    global_scale: Tensor | None = None,
) -> PreparedLinear: ...
