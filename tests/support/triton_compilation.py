"""Compile every Triton kernel for GPUs that need not be here: run this as a module, without the interpreter."""

from __future__ import annotations

import re
from typing import Any

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction

from goldstick.kernels.triton import (
    columns,
    dequantize,
    integers,
    partial_sums,
    quantize,
    ranges,
    tuning,
    weight_only,
)

WEIGHT = ("scale", "zero", "bias", "y")


LEAST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program may have on the smallest of the GPUs, of capabilities 8.6, 8.9 and 12.0."""


def compile_for(
    capability: int, kernel: Any, types: dict[str, str], config: triton.Config | None = None, **constants: Any
) -> Any:
    """Compile down to machine code; arguments without a type or a value are 32-bit integers.

    With a configuration, as it is launched for tensors that are aligned.
    """
    while not isinstance(kernel, JITFunction):
        kernel = kernel.fn
    names = kernel.arg_names
    assert set(types) | set(constants) <= set(names)
    signature = {name: types.get(name, "constexpr" if name in constants else "i32") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    aligned = [place for place, name in enumerate(names) if config and name not in constants]
    attributes = {(place,): [["tt.divisibility", 16]] for place in aligned}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages} if config else {}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    assert compiled.asm["cubin"]
    return compiled


def of_dtype(dtype: str, *names: str) -> dict[str, str]:
    """Pointers to one dtype."""
    return {name: f"*{dtype}" for name in names}


def few_tokens() -> list[triton.Config]:
    """What the autotuner tries for the fewest tokens in 16 bits."""
    return tuning.worth_trying(tuning.CONFIGS, {"x": torch.empty(0).half()}, tile_tokens=8)


def order_of_sums(config: triton.Config) -> str:
    """How the inputs of a token are dealt out to threads, which decides in which order they are added up."""
    compiled = compile_for(
        90,
        weight_only._multiply,
        {"packed": "*i32", **of_dtype("fp16", "x", *WEIGHT)},
        config,
        bits=4,
        one_group=True,
        has_zero=True,
        has_bias=False,
        product=tl.float16,
        tile_tokens=8,
        tile_columns=weight_only.TILE_COLUMNS,
        **config.kwargs,
    )
    code = compiled.asm["ttgir"]
    (layout,) = set(re.findall(r"\(tensor<8x128xf32, (#\w+)>\) -> tensor<8xf32", code))
    found = re.search(rf"^{layout} = (.*)$", code, re.MULTILINE)
    assert found
    return found[1]


def main() -> None:
    """Each kernel once for each way through it, on the oldest supported GPU and on a newer one."""
    tiles = {"tile_tokens": 8, "tile_rows": 64, "has_bias": True, "token_count": 1}  # Triton compiles ones as constants
    products = [("fp16", tl.float16, 4, True, True), ("bf16", tl.bfloat16, 4, False, True)]
    products += [("bf16", tl.bfloat16, 8, True, False)]
    for capability, (dtype, product, bits, one_group, has_zero) in zip((80, 90, 80), products, strict=True):
        compile_for(
            capability,
            weight_only._multiply,
            {"packed": "*i32", **of_dtype(dtype, "x", *WEIGHT)},
            bits=bits,
            one_group=one_group,
            has_zero=has_zero,
            product=product,
            tile_columns=weight_only.TILE_COLUMNS,
            **tiles,
        )
    largest = tuning.tile_tokens(1 << 20, torch.float32)
    wide = compile_for(
        89,
        weight_only._multiply,
        {"packed": "*i32", **of_dtype("fp32", "x", *WEIGHT)},
        tuning.worth_trying(tuning.CONFIGS, {"x": torch.empty(0)}, tile_tokens=largest)[-1],
        bits=8,
        one_group=False,
        has_zero=True,
        product=tl.float32,
        tile_columns=weight_only.TILE_COLUMNS,
        **{**tiles, "tile_tokens": largest},
    )
    assert wide.metadata.shared <= LEAST_SHARED_MEMORY, wide.metadata.shared
    assert len({order_of_sums(config) for config in few_tokens()}) == 1, "bits would depend on what the autotuner finds"
    sums = {"code_sums": "*i32", **of_dtype("bf16", "token_scale", *WEIGHT)}
    for capability, bits, whole_row in ((80, 8, True), (90, 4, False)):
        compile_for(
            capability,
            integers._multiply,
            {"x": "*i8", "packed": "*u8", **sums},
            bits=bits,
            has_zero=True,
            whole_row=whole_row,
            split_rows=False,
            tile_columns=64,
            **tiles,
        )
    compile_for(90, integers._finish, {"partial": "*i32", **sums}, middle=8, has_zero=True, **tiles)
    signed, unsigned = {"sign_bit": 8, "keeps_zero_sign": True}, {"sign_bit": 0, "keeps_zero_sign": False}
    norm = {"codes": "*i8", "code_sums": "*i32", "added": "fp32", "smallest": "fp32"}
    norm |= of_dtype("bf16", "x", "weight", "scale")
    compile_for(80, quantize._quantize, norm, dtype=tl.bfloat16, normalize=True, tile=1024)
    compile_for(90, partial_sums._add, {"partial": "*fp32", **of_dtype("bf16", "bias", "y")}, has_bias=True, tile=1024)
    dense = {"packed": "*i32", **of_dtype("fp16", "scale", "zero", "weight")}
    compile_for(80, dequantize._write, dense, bits=4, has_zero=True, tile_rows=32, tile_words=16)
    operands = {**of_dtype("fp32", "steps", "zero", "edges", "table"), "group": "*i64", "codes": "*u8"}
    operands |= of_dtype("fp64", "weight", "factor", "errors")
    kinds = [(80, {"has_zero": True}), (90, {"has_zero": True, "minimums": True}), (90, {"has_table": True, **signed})]
    for capability, kind in kinds:
        options = {"has_zero": False, "minimums": False, "has_table": False, **unsigned, **kind}
        compile_for(
            capability, columns._solve, operands, bits=4, dtype=tl.bfloat16, tile_rows=16, tile_columns=128, **options
        )
    operands = {**of_dtype("fp32", "values", "scale", "zero", "importance", "edges", "table"), "best": "*i64"}
    for capability, has_table in ((80, False), (90, True)):
        options = {"has_zero": not has_table, "weighted": True, **(signed if has_table else unsigned)}
        compile_for(capability, ranges._search, operands, bits=4, has_table=has_table, tile=16, **options)
    print("all compiled")


if __name__ == "__main__":
    main()
