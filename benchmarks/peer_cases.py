"""The comparisons that peers.py runs: a recipe of goldstick's beside what another tool does for the same scheme."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Case:
    """One comparison.

    Attributes:
        name: What the table calls it.
        recipe: goldstick's; a grouped scheme of weights in it is replaced by that of the case.
        bits: Of a weight.
        activation_bits: Of an activation, or ``None`` for float ones.
        peer: The other tool.
        method: What the other tool does.
        options: Of the other tool.
    """

    name: str
    recipe: str
    bits: int = 4
    activation_bits: int | None = None
    peer: str = "llm-compressor"
    method: str
    options: dict[str, Any] = field(default_factory=dict)


#: auto-round compiles each block by default, which took three quarters of its time on a model of four small blocks.
UNCOMPILED = {"enable_torch_compile": False}
LIGHT = {**UNCOMPILED, "iters": 50, "lr": 5e-3}  # auto-round's own preset "light"
CASES = [
    Case(name="rtn-w4", recipe="rtn-w4a16-g128", method="rtn"),
    Case(name="gptq-w4", recipe="gptq-w4a16-g128", method="gptq"),
    Case(name="gptq-w4-mse", recipe="gptq-w4a16-g128", method="gptq", options={"observer": "mse"}),
    Case(name="gptq-w3", recipe="gptq-w4a16-g128", bits=3, method="gptq"),
    Case(name="awq-w4", recipe="awq-w4a16-g128", method="awq"),
    Case(name="awq-gptq-w4", recipe="awq-gptq-w4a16-g128", method="awq-gptq"),
    Case(name="gptq-w8a8", recipe="gptq-w8a8", bits=8, activation_bits=8, method="gptq"),
    Case(
        name="smoothquant-w8a8", recipe="smoothquant-gptq-w8a8", bits=8, activation_bits=8, method="smoothquant-gptq"
    ),
    Case(name="finish-w2-auto-round", recipe="gptq-slb_finish-w2a16-g32", bits=2, peer="auto-round",
         method="auto-round", options=UNCOMPILED),
    *(
        Case(name=f"{ours}-w{bits}-{theirs}", recipe=f"{ours}-w4a16-g128", bits=bits, peer="auto-round",
             method="auto-round", options=options)
        for bits in (4, 2)
        for ours in ("gptq", "awq-gptq")
        for theirs, options in (("auto-round", UNCOMPILED), ("auto-round-light", LIGHT))
    ),
]  # fmt: skip
