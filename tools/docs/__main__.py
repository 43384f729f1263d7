"""``python -m tools.docs``: write what the documents have from scripts: tables of results, options of recipes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tools.docs import comparison, consumers, convolutions, gguf, hadamard, input_bits, kv_caches, rotation
from tools.docs.marked import replaced
from tools.docs.recipe_options import recipe_options
from tools.docs.results import results

ROOT = Path(__file__).parents[2]
#: Page → name of a marked part → what writes it.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "README.md": {"results": results},
    "docs/comparison.md": {
        "llm-compressor": comparison.llm_compressor,
        "auto-round": comparison.auto_round,
        "frontier": comparison.frontier,
        "gguf": comparison.gguf,
        "k-quants": comparison.k_quants,
        "decoding": comparison.decoding,
        "kernels": comparison.kernels,
        "reading": comparison.reading,
    },
    "docs/consumers.md": {
        "summary": consumers.summary,
        "counts": consumers.counts,
        "bundled": consumers.bundled,
        "speeds": consumers.speeds,
        "architectures": consumers.architectures,
        "encoders": consumers.encoders,
        "instructions": consumers.instructions,
        "graphs": consumers.graphs,
        "refusals": consumers.refusals,
        "unwritten": consumers.unwritten,
    },
    "docs/kernels.md": {
        "hadamard": hadamard.transforms,
        "input-bits": input_bits.costs,
        "convolutions-avx2": convolutions.layers_avx2,
        "convolutions-vnni": convolutions.layers_vnni,
        "convolutions-slower": convolutions.slower,
        "networks-vnni": convolutions.networks_vnni,
        "networks-avx2": convolutions.networks_avx2,
        "networks-zen1": convolutions.networks_zen1,
        "networks-intel": convolutions.networks_intel,
        "networks-intel-avx2": convolutions.networks_intel_avx2,
    },
    "docs/k-quants.md": {"running": gguf.running, "making": gguf.making},
    "docs/kv-cache.md": {"caches": kv_caches.costs},
    "docs/learn.md": {"frontier": comparison.frontier},
    "docs/reference/recipe-options.md": {"options": recipe_options},
    "docs/rotation.md": {"online": rotation.online},
}


def written(page: str) -> str:
    """A page as it should be: its own words, and the marked parts anew."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, write in PARTS[page].items():
        text = replaced(text, name, write())
    return text


def main() -> int:
    """Write all pages that have such parts."""
    for page in PARTS:
        (ROOT / page).write_text(written(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
