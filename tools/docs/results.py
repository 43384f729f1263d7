"""The README's table: what compression costs, from the results of the benchmarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def read(name: str) -> Any:
    """What a benchmark left under ``benchmarks/results``."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def results() -> str:
    """A row for each model and measure: in float, with 8 bits, with 4 bits."""
    tasks, real, decode = read("tasks")["cells"], read("real-models")["models"], read("decode")
    speed = {row["network"]: row["tokens_s"] for row in decode["1.1B, 22 blocks, 2 threads"]["decode"]}

    def bundled(task: str, metric: str, digits: int) -> list[str]:
        found = [tasks[f"{scheme}/{task}, bundled"] for scheme in ("float", "w8a8 dynamic", "w4 gptq")]
        return [f"{cell['metrics'][metric]['value']:.{digits}f}" for cell in found]

    def published(model: str, metric: str, digits: int, *variants: str) -> list[str]:
        found = [real[model]["variants"][variant] for variant in variants]
        return [f"{one['metrics'][metric]['value']:.{digits}f}" for one in found]

    gptq = ("float", "w8a8", "w4 gptq g64")
    mixed = published("efficientnet-lite0", "CIFAR-10 %", 1, "float", "w8a8", "w4 gptq depthwise w8")
    return table(
        ["model and measure", "float", "8 bits", "4 bits"],
        [
            ["bundled model: perplexity on text it has not seen ↓", *bundled("text", "perplexity", 3)],
            ["bundled model: answers found in a passage, F1 ↑", *bundled("squad", "f1", 1)],
            ["Whisper base: word error rate, % ↓", *published("whisper-base", "word error rate %", 1, *gptq)],
            ["all-MiniLM-L6-v2: cosine to its float embeddings ↑", *published("minilm", "cosine to float", 3, *gptq)],
            ["EasyOCR: characters read wrongly, % ↓",
             *published("easyocr", "character error rate %", 1, "float", "w8a8", "w4 gptq")],
            ["EfficientNet-Lite0 on CIFAR-10, % ↑ (depthwise layers keep 8 bits)", *mixed],
            ["a network of TinyLlama's shape: tokens a second on two cores ↑",
             *(f"{speed[name]:.1f}" for name in (
                 "transformers float32", "goldstick W8A8 optimized", "goldstick W4 g128 optimized"))],
        ],
    )  # fmt: skip
