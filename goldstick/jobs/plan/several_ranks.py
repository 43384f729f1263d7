"""What several processes take for a plan, each: bytes held, bytes sent, seconds; from shapes alone."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from goldstick.calibration.memory_budget import BASE_MEMORY
from goldstick.core.division import upper_share
from goldstick.errors import UsageError
from goldstick.jobs.plan.plan import Plan
from goldstick.jobs.plan.states import bytes_of_states, itemsize, solved
from goldstick.structure.blocks import block_of


@dataclass(frozen=True, kw_only=True)
class RanksForecast:
    """What each of several processes takes.

    Attributes:
        processes: How many there are.
        base: Bytes of Python, torch and transformers.
        outside: Bytes of the weights outside the blocks.
        block: Bytes of the largest block, with what its layers become; of a run that streams, of the largest tensor.
        hessian: Bytes of the widest layer's Hessian, its factor and what solving takes.
        batches: Bytes of the hidden states of a rank's batches, and of one batch inside a block.
        sent: Bytes that a rank hands to the others, or to a sum, at most.
        seconds: Forecast of the time, on processors such as plans are made for.
    """

    processes: int
    base: int
    outside: int
    block: int
    hessian: int
    batches: int
    sent: int
    seconds: float

    @property
    def held(self) -> int:
        """Bytes that a process holds at least."""
        return self.base + self.outside + self.block + self.hessian + self.batches

    def require(self, memory: int) -> None:
        """Refuse processes with less memory than they hold; UsageError, which says what does not fit and the remedy."""
        if self.held <= memory:
            return
        parts = {
            "block": "every process holds one whole block, which is not divided",
            "hessian": "a Hessian is summed whole, on the process that solves its layer",
            "outside": "what lies outside the blocks is on every process",
            "batches": "give fewer samples or shorter ones, or more processes, which divide them",
        }
        largest = max(parts, key=lambda name: getattr(self, name))
        raise UsageError(
            f"{self.held / 1e9:.1f} GB are held by each of {self.processes} processes at least, and {memory / 1e9:.1f} "
            f"GB are given. Most of it, {getattr(self, largest) / 1e9:.1f} GB, is the {largest}: {parts[largest]}. "
            "Start fewer processes on each machine, so that each has more memory, or take a recipe that looks at no "
            "data (rtn), which holds one tensor at a time."
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self) | {"held": self.held}


def forecast_ranks(plan: Plan, processes: int) -> RanksForecast:
    """What each of some processes takes for a plan.

    A calibrated run over blocks sums every Hessian over the ranks, just over 4·n² bytes for n inputs; layers that read
    one tensor share one, which shapes do not say, so that bytes sent are those at most. Every rank reads the source.

    Raises:
        UsageError: Several processes have nothing to do together in such a run.
    """
    if not (plan.streams or plan.by_blocks):
        raise UsageError("This run holds the whole model in memory and is not divided: it runs in one process.")
    after = {tensor.name: tensor.bytes_after for tensor in plan.tensors if tensor.assignment is not None}
    told = sum(after.values()) // processes
    if plan.streams:
        largest = 3 * max((tensor.source.nbytes for tensor in plan.tensors), default=0)
        seconds = plan.seconds / processes
        return RanksForecast(
            processes=processes, base=BASE_MEMORY, outside=0, block=largest, hessian=0, batches=0,
            sent=told if processes > 1 else 0, seconds=seconds,
        )  # fmt: skip
    blocks = plan.network.blocks
    inside, outside = Counter[str](), 0
    for tensor in plan.tensors:
        block = block_of(tensor.parameter, blocks)
        if block is None:
            outside += tensor.source.nbytes
        else:
            inside[block] += tensor.source.nbytes
    sites = [found.site for found in solved(plan)]
    one = [site.matrix_shape for site in sites if site.block == blocks[0]]
    states = math.ceil(bytes_of_states(plan) / processes)
    within = itemsize(plan) * plan.recipe.calibration.seq_len * sum(sum(shape[-2:]) for shape in one)
    sums = sum(math.prod(site.matrix_shape[:-2]) * _hessian_bytes(site.in_features) for site in sites)
    products = plan.seconds - plan.streaming_seconds
    return RanksForecast(
        processes=processes, base=BASE_MEMORY, outside=outside, block=int(2.5 * max(inside.values())),
        hessian=4 * 8 * max((site.in_features for site in sites), default=0) ** 2, batches=states + within,
        sent=sums + told + states * len(blocks) if processes > 1 else 0,
        seconds=plan.streaming_seconds + products / processes,
    )  # fmt: skip


def _hessian_bytes(inputs: int) -> int:
    """Of what lies on and above the diagonal, as it is sent."""
    return round(8 * inputs**2 * upper_share(inputs))
