"""Runtimes: what each of them runs, in which file, and which layers it makes one of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from goldstick.algorithms.ranges import RangeSearch
from goldstick.errors import UsageError
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.gguf import GGUF
from goldstick.formats.native import NATIVE
from goldstick.structure.network import Network, Site
from goldstick.structure.run_together import RUN_TOGETHER

RuntimeName = Literal["goldstick", "transformers", "vllm", "sglang", "llama.cpp"]


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """A runtime.

    Attributes:
        format: The storage format that it reads.
        schemes: What it runs; weights alone are quantized.
        embeddings: Whether it reads embeddings that are quantized.
        joins: Whether it makes one layer of some, which must have one scheme then.
        search: How ranges are searched.
        data_search: The same where calibration data are at hand.
    """

    format: str
    schemes: tuple[str, ...]
    embeddings: bool = True
    joins: bool = False
    search: RangeSearch = "mse"
    data_search: RangeSearch = "mse"


_GROUPS = ("g32", "g128", "channel")


def _integers(widths: Sequence[int], groups: Sequence[str] = _GROUPS) -> tuple[str, ...]:
    return tuple(f"w{bits}a16-{group}" for bits in widths for group in groups)


#: What servers run that split models over devices.
_SERVED = Runtime(
    format=COMPRESSED_TENSORS.name,
    embeddings=False,
    schemes=(*_integers((4, 8)), "nvfp4a16", "fp8a16"),
    joins=True,
)

RUNTIMES: dict[RuntimeName, Runtime] = {
    "goldstick": Runtime(
        format=NATIVE.name,
        schemes=_integers((2, 3, 4, 5, 6, 8)),
    ),
    "transformers": Runtime(
        format=COMPRESSED_TENSORS.name,
        embeddings=False,
        schemes=(*_integers((2, 3, 4, 8)), "nvfp4a16", "fp8a16"),
    ),
    "vllm": _SERVED,
    "sglang": _SERVED,
    "llama.cpp": Runtime(
        format=GGUF.name,
        schemes=("q2_k", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "iq4_nl", "q4_0", "q5_0", "q8_0"),
        search="ggml",
        data_search="ggml-imatrix",
    ),
}
"""What ``--for`` names."""


def runtime_to_search_for(name: str) -> Runtime:
    """What layers may become for a runtime.

    Raises:
        UsageError: No search knows that.
    """
    for known, runtime in RUNTIMES.items():
        if known == name:
            return runtime
    raise UsageError(f"A search is for one of {', '.join(RUNTIMES)}, not for {name!r}.")


def groups_of(network: Network, sites: Sequence[Site], runtime: Runtime) -> list[tuple[Site, ...]]:
    """The sites that share one scheme, in the model's order: each alone, or those that the runtime makes one of."""
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(_joined(site) if runtime.joins else site.name, []).append(site)
    return [tuple(group) for group in groups.values()]


def _joined(site: Site) -> str:
    """A name that layers run as one have in common; of the experts of a block one for all, which are one kernel."""
    if site.layout.fused:
        return site.module
    name = site.name
    if match := re.search(r"\bexperts\.\d+\.", name):
        return name[: match.start()] + "experts"
    module, _, leaf = name.rpartition(".")
    members = next((members for members in RUN_TOGETHER if leaf in members), None)
    return name if members is None else f"{module}.{'+'.join(members)}"
