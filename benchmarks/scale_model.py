"""A simulation: GPTQ on 1, 8 and 64 GPUs, as goldstick divides it; time by part, memory and traffic.

The counts (products, bytes) are those of the algorithm. The rates of solving layers and of writing hidden states were
measured on one H200 (``gpu_quantize.py`` there, 8 B with 128 samples, and single layers); those of passes, disks and
networks are assumptions, since one GPU was at hand. The record holds each.

    python -m benchmarks.scale_model --out benchmarks/results/scale_model.json
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from goldstick.calibration.device_memory import SHARE_OF_STATES
from goldstick.core.division import upper_share
from goldstick.jobs.quantize.commits import WORK_FOR_WRITING, seconds_between

GPUS = (1, 8, 64)
SAMPLES, SEQ_LEN = 512, 2048
SECONDS_BETWEEN_COMMITS = seconds_between(torch.device("cuda"))


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What is known of a GPU of the H200 kind and assumed of what joins several, in units of a second.

    Attributes:
        forward: Products of bfloat16: 40 % of the published 989e12 operations, two for each product.
        hessian: Products of whole numbers of 13 bits for Hessians, with what takes them apart: what a block of 8 B
            leaves for them when the rest of its time is taken off.
        factor: Products of a factorization in float64, the slower of two widths: measured.
        columns: Columns of GPTQ's loop, whatever the rows: measured.
        searched: Weights whose ranges are searched: measured.
        layers: Layers that start the rest of what solves them: what is left of four measured ones.
        memory: Bytes of the GPU.
        states: Bytes of hidden states that the first rank hashes, writes and syncs: measured.
        copied: Bytes of hidden states between a GPU and the memory of its processor.
        disk: Bytes that a machine of eight reads.
        write: Bytes that the one writer writes.
        inside: Bytes that a GPU sends to another of its machine.
        between: Bytes that a GPU sends to another machine.
    """

    forward: float = 0.4 * 989e12 / 2
    hessian: float = 7e13
    factor: float = 1.6e12
    columns: float = 180e3
    searched: float = 2.6e9
    layers: float = 33
    memory: float = 141e9
    states: float = 0.5e9
    copied: float = 5e9
    disk: float = 5e9
    write: float = 2e9
    inside: float = 200e9
    between: float = 25e9


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers of a block that read one tensor, so many times.

    Attributes:
        columns: Their inputs.
        rows: Outputs of each of them.
        count: How many such groups a block has: experts.
        share: Part of the tokens that come to one.
    """

    columns: int
    rows: tuple[int, ...]
    count: int = 1
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model.

    Attributes:
        blocks: How many of which groups.
        hidden: Width of the hidden states.
        outside: Weights outside the blocks.
    """

    blocks: tuple[tuple[int, tuple[Group, ...]], ...]
    hidden: int
    outside: int


def _dense(blocks: int, hidden: int, wide: int, keys: int, vocabulary: int) -> Shape:
    groups = (
        Group(columns=hidden, rows=(hidden, keys, keys)), Group(columns=hidden, rows=(hidden,)),
        Group(columns=hidden, rows=(wide, wide)), Group(columns=wide, rows=(hidden,)),
    )  # fmt: skip
    return Shape(blocks=((blocks, groups),), hidden=hidden, outside=2 * vocabulary * hidden)


def _mixture() -> Shape:
    """The published shape of DeepSeek-V3: 61 blocks, 256 experts of width 2048, 8 of them for each token."""
    attention = (
        Group(columns=7168, rows=(1536, 576)), Group(columns=1536, rows=(24576,)),
        Group(columns=512, rows=(32768,)), Group(columns=16384, rows=(7168,)),
    )  # fmt: skip
    dense = (Group(columns=7168, rows=(18432, 18432)), Group(columns=18432, rows=(7168,)))
    experts = (
        Group(columns=7168, rows=(2048, 2048), count=256, share=8 / 256),
        Group(columns=2048, rows=(7168,), count=256, share=8 / 256),
        Group(columns=7168, rows=(2048, 2048)), Group(columns=2048, rows=(7168,)),
    )  # fmt: skip
    return Shape(
        blocks=((3, (*attention, *dense)), (58, (*attention, *experts))), hidden=7168, outside=2 * 129280 * 7168
    )


SHAPES = {
    "8 B": _dense(32, 4096, 14336, 1024, 128256),
    "70 B": _dense(80, 8192, 28672, 1024, 128256),
    "671 B mixture": _mixture(),
}

#: What others published, in seconds; machines and settings are theirs.
PUBLISHED = {
    "8 B": "llm-compressor: 745 s on one GPU, 264 s on four",
    "70 B": "",
    "671 B mixture": "MoE-Quant: 2 h on eight GPUs",
}


def simulate(shape: Shape, gpus: int, rates: Rates) -> dict[str, Any]:
    """Seconds of each part, bytes held by a GPU, bytes sent by a GPU."""
    tokens = SAMPLES * SEQ_LEN
    states = 2 * shape.hidden * tokens / gpus
    link = rates.inside if gpus <= 8 else rates.between
    seconds = dict.fromkeys(("read", "forward", "hessians", "solve", "states", "exchange", "write"), 0.0)
    weights, sent, largest, widest = float(shape.outside), 0.0, 0.0, 0
    for count, groups in shape.blocks:
        block, products, sums, exchanged, solved = 0.0, 0.0, 0.0, 0.0, 0.0
        for group in groups:
            n, rows, seen = group.columns, sum(group.rows), group.share * tokens
            block += group.count * n * rows
            products += group.count * n * rows * seen
            sums += group.count * n * n * seen / 2
            widest = max(widest, n)
            # A Hessian is summed over ranks, just over half of it: to the solver alone where there is but one.
            exchanged += group.count * 8 * n * n * upper_share(n) * (0 if gpus == 1 else 1)
            exchanged += group.count * n * rows / 2 * (0 if gpus == 1 else 1)  # codes of four bits
            # Layers of a group go to ranks of their own, experts to all ranks in turn. Of a layer that is alone each
            # rank searches the ranges of its rows; the loop over columns takes as long for a few rows as for all.
            apart = gpus if group.count == len(group.rows) == 1 else 1
            fixed = n**3 / 3 / rates.factor + n / rates.columns + 1 / rates.layers
            layers = [fixed + n * one / rates.searched / apart for one in group.rows]
            busiest = max(max(layers), sum(layers) * group.count / gpus)
            solved += busiest
        weights += count * block
        sent += count * exchanged
        largest = max(largest, block)
        seconds["forward"] += count * 2 * products / gpus / rates.forward  # before a block is solved, and behind it
        seconds["hessians"] += count * sums / gpus / rates.hessian
        seconds["solve"] += count * solved
        if 2 * states > SHARE_OF_STATES * (rates.memory - 2 * block):  # they go to the processor's memory, and back
            seconds["states"] += count * 2 * states / rates.copied
        seconds["exchange"] += count * exchanged / link
    machines = max(1, gpus // 8)
    seconds["read"] = 2 * weights / rates.disk  # every machine reads all of it, and each rank the block at hand
    seconds["write"] = weights / 2 / rates.write
    blocks = sum(count for count, _ in shape.blocks)
    writing = 2 * shape.hidden * tokens / rates.states
    between = max(SECONDS_BETWEEN_COMMITS, WORK_FOR_WRITING * writing)
    seconds["states"] += min(blocks, math.ceil(sum(seconds.values()) / between)) * writing
    sent += 0 if gpus == 1 else sum(count for count, _ in shape.blocks) * states
    held = {
        "block": 2 * largest, "outside": 2.0 * shape.outside, "hessian": 3 * 8.0 * widest**2, "states": 2 * states,
    }  # fmt: skip
    whole = sum(seconds.values())
    return {
        "gpus": gpus,
        "machines": machines,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "whole_seconds": round(whole, 1),
        "held_gb": {name: round(value / 1e9, 2) for name, value in held.items()},
        "held_gb_of_a_gpu": round(sum(held.values()) / 1e9, 1),
        "sent_gb_by_a_gpu": round(sent / 1e9, 1),
        "limit": max(seconds, key=lambda name: seconds[name]),
    }


def simulation() -> dict[str, Any]:
    """Every model on every number of GPUs, and what was assumed."""
    rates = Rates()
    return {
        "samples": SAMPLES,
        "tokens_of_a_sample": SEQ_LEN,
        "rates": asdict(rates),
        "models": {name: [simulate(shape, gpus, rates) for gpus in GPUS] for name, shape in SHAPES.items()},
        "published": PUBLISHED,
    }


def table(found: dict[str, Any]) -> str:
    """The table of docs/scale.md."""
    lines = [
        "| model | GPUs | seconds | read | forward | Hessians | solve | states | exchange | write | held by a GPU "
        "| sent by a GPU | published |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, runs in found["models"].items():
        for run in runs:
            parts = " | ".join(f"{value:,.0f}" for value in run["seconds"].values())
            published = found["published"][name] if run is runs[0] else ""
            lines.append(
                f"| {name} | {run['gpus']} | {run['whole_seconds']:,.0f} | {parts} | "
                f"{run['held_gb_of_a_gpu']:.1f} GB | {run['sent_gb_by_a_gpu']:,.1f} GB | {published} |"
            )
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = simulation()
    print(table(found))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
