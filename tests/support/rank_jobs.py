"""Recipes that several processes carry out together, on small models with text of both kinds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.support.crash_points import contents, tiny_checkpoint
from tests.support.ranks import finish, start
from tests.support.tiny_tokenizer import write_tokenizer

_GPTQ: dict[str, Any] = {"gptq": {"scheme": "w4a16-g32"}}
#: Of each: the model, its stages, and whether the rows of its text are of unequal length, with padding.
RECIPES: dict[str, tuple[str, list[Any], bool]] = {
    "awq-gptaq": (
        "llama",
        [{"awq": {"quantize": False, "grid": 2}}, {"gptq": {"scheme": "w4a16-g32", "gptaq": True}}],
        True,
    ),
    "smoothquant-static": ("llama", [{"smoothquant": {}}, {"gptq": {"scheme": "w8a8-static"}}], False),
    "rotate-kv8": ("llama", ["rotate", _GPTQ, "kv_cache"], True),
    "imatrix-slb": (
        "llama",
        [{"rtn": {"scheme": "w2a16-g32", "range_search": "imatrix"}}, {"slb_finish": {"steps": 2}}],
        False,
    ),
    "learn": (
        "llama",
        [{"gptq": {"scheme": "w3a16-g32", "cycles": 1}}, {"learn": {"steps": 3, "batches": 3, "objective": "loss"}}],
        True,
    ),
    "output": ("llama", [{"gptq": {"scheme": "w3a16-g32", "objective": "output", "output_groups": 2}}], True),
    "loss": (
        "llama",
        [{"gptq": {"scheme": "w3a16-g32", "objective": "loss", "two_sided": True, "gptaq": True}}],
        False,
    ),
    "awq-output": ("llama", [{"awq": {"scheme": "w3a16-g32", "grid": 2, "objective": "output"}}], False),
    "awq-loss": (
        "llama",
        [
            {"awq": {"quantize": False, "grid": 2, "objective": "loss"}},
            {"rtn": {"scheme": "w3a16-g32", "range_search": "imatrix", "objective": "output"}},
        ],
        True,
    ),
    "mixture": ("mixture", [_GPTQ], True),
    "descent": ("mixture", [{"descent": {"scheme": "nvfp4a16", "cycles": 2, "gptaq": True}}], True),
    "rtn": ("mixture", [{"rtn": {"scheme": "w4a16-g32", "range_search": "mse"}}], False),
    "blocks": ("bare", [{"rtn": {"scheme": "q4_0", "range_search": "ggml"}}], False),
}
#: Those that look at no data, and keep no journal.
DATA_FREE = {"rtn", "blocks"}
#: Those whose run also writes an importance matrix, beside its output.
_MEASURES = {"imatrix-slb", "mixture"}


def write_sources(folder: Path) -> None:
    """Two models, one of them also without its tokenizer, and text as one stream and as rows of unequal length."""
    tiny_checkpoint(folder / "llama", 2)
    shutil.copytree(folder / "llama", folder / "bare", ignore=shutil.ignore_patterns("*token*"))
    torch.manual_seed(1)
    config = MixtralConfig(
        vocab_size=128, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64, num_local_experts=5, num_experts_per_tok=2, bos_token_id=1,
        eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    MixtralForCausalLM(config).save_pretrained(folder / "mixture")
    write_tokenizer(folder / "mixture")
    sentences = [f"{number} cats sat on {number * 7} mats, and sang. " for number in range(900)]
    (folder / "stream.txt").write_text("".join(sentences))
    rows = (json.dumps({"text": sentence * (1 + number % 3)}) for number, sentence in enumerate(sentences[:100]))
    (folder / "rows.jsonl").write_text("\n".join(rows))


def job(sources: Path, name: str, output: Path, **options: Any) -> dict[str, Any]:
    """Quantize by one of ``RECIPES``."""
    model, stages, padded = RECIPES[name]
    rows = {"dataset": str(sources / "rows.jsonl"), "packing": False, "samples": 40}
    text = rows if padded else {"dataset": str(sources / "stream.txt"), "samples": 37}
    recipe: dict[str, Any] = {"stages": stages}
    recipe |= {} if name in DATA_FREE else {"calibration": {**text, "seq_len": 64}}
    recipe |= {"export": {"format": "gguf"}} if name == "blocks" else {}
    if name in _MEASURES:
        options["save_importance"] = str(_importance(output))
    return {"source": str(sources / model), "recipe": recipe, "output": str(output), "options": options}


def made(sources: Path, folder: Path, count: int) -> dict[str, dict[str, bytes]]:
    """What so many processes write by each recipe."""
    for code, errors in finish(start(count, [job(sources, name, folder / name) for name in RECIPES])):
        assert code == 0, errors
    return {name: contents(folder / name) | measured(folder / name) for name in RECIPES}


def _importance(output: Path) -> Path:
    return output.with_name(f"{output.name}.importance.gguf")


def measured(output: Path) -> dict[str, bytes]:
    """The importance matrix that a run wrote beside its output, where it did."""
    path = _importance(output)
    return {path.name: path.read_bytes()} if path.exists() else {}
