"""The cells of the consumers' table: which scheme in which format of which model, and who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from goldstick.recipes.sentence import parse
from tools.consumers import BUNDLED
from tools.consumers.models import MODELS
from tools.runtimes import SCHEMES

#: Formats of the table, and who reads each.
READERS: dict[str, tuple[str, ...]] = {
    "float": ("vllm", "transformers"),
    "compressed-tensors": ("vllm", "transformers"),
    "gptq": ("vllm", "gptqmodel"),
    "awq": ("vllm", "gptqmodel"),
    "fp8": ("vllm", "transformers"),
    "modelopt": ("vllm",),
    "gguf": ("llama.cpp",),
}
#: Mixtures of block types that GGUF files have beside uniform schemes.
MIXTURES = ("q4_k_m", "q5_k_m", "q6_k", "q3_k_m")
#: Schemes of the architectures beside the bundled model: the ones most people take, one for each kind of arithmetic.
COMMON: dict[str, tuple[str, ...]] = {
    "float": ("float",),
    "compressed-tensors": ("w4a16-g128", "w8a8-dynamic", "w8a8-static", "fp8-dynamic", "fp8"),
    "gptq": ("w4a16-g128",),
    "awq": ("w4a16-g128-asym",),
    "gguf": ("w4a16-g32",),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One checkpoint: a model, a scheme, a format."""

    model: str
    scheme: str
    format: str

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.model}/{self.format}/{self.scheme}"

    def recipe(self) -> dict[str, Any]:
        """Rounding to nearest: who reads a file does not see what rounded it."""
        return {**parse(f"rtn-{self.scheme}").recipe(), "export": {"format": self.format}}


def cells() -> Iterator[Cell]:
    """Every cell: of the bundled model all schemes in all formats, of others the common ones."""
    for form in READERS:
        schemes = {"float": ("float",), "gguf": (*SCHEMES, *MIXTURES)}.get(form, SCHEMES)
        for scheme in schemes:
            yield Cell(model=BUNDLED, scheme=scheme, format=form)
    for model in MODELS:
        for form, schemes in COMMON.items():
            for scheme in schemes:
                yield Cell(model=model, scheme=scheme, format=form)
