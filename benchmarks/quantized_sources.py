"""What it takes to quantize a checkpoint again that is quantized already: peak memory beside that of the imports.

Writes a DeepSeek-V3 in FP8 blocks and a GPT-OSS in MXFP4 of a given size, random weights, in the layouts of DeepSeek
and OpenAI. Each run is a process of its own; what it reports is its largest resident set. The bound is that of the
imports and of nothing else, twice the largest tensor in bfloat16, and 200 MB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, GptOssConfig, GptOssForCausalLM, PreTrainedModel

from goldstick.hf.source import open_source
from tests.support.quantized_sources import Parts, fp8_blocks, mxfp4, write
from tests.support.tiny_tokenizer import write_tokenizer

RESULTS = Path(__file__).parent / "results" / "quantized-sources.json"
ALLOWED = 200_000_000
IMPORTS = """
import sys
from pathlib import Path
from goldstick import api
from goldstick.calibration.memory_budget import peak_memory
from goldstick.checkpoint.source import read_config
from goldstick.hf.names import load_config, model_class
directory = Path(sys.argv[1])
load_config(directory), model_class(read_config(directory), "")
print(peak_memory())
"""


def deepseek(size: int) -> PreTrainedModel:
    """A DeepSeek-V3 of ``size`` layers behind the first, with routed and shared experts."""
    return DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=4096, hidden_size=1024, intermediate_size=4096, moe_intermediate_size=1024,
            num_hidden_layers=1 + size, num_attention_heads=8, num_key_value_heads=8, n_routed_experts=8,
            num_experts_per_tok=2, n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=256, kv_lora_rank=128,
            qk_rope_head_dim=32, qk_nope_head_dim=64, v_head_dim=64, max_position_embeddings=128,
        )
    )  # fmt: skip


def gpt_oss(size: int) -> PreTrainedModel:
    """A GPT-OSS of ``size`` layers; all experts of one lie in one tensor."""
    return GptOssForCausalLM(
        GptOssConfig(
            vocab_size=4096, hidden_size=1024, intermediate_size=1024, num_hidden_layers=size, num_attention_heads=8,
            num_key_value_heads=4, head_dim=128, num_local_experts=8, num_experts_per_tok=2,
            max_position_embeddings=128,
        )
    )  # fmt: skip


def in_fp8(name: str, value: Tensor) -> tuple[Parts, Tensor] | None:
    """Linear layers in blocks of 128 × 128."""
    return fp8_blocks(value, 128) if "_proj" in name and value.ndim == 2 else None


def in_mxfp4(name: str, value: Tensor) -> tuple[Parts, Tensor] | None:
    """Experts in groups of 32."""
    return mxfp4(value) if name.endswith((".gate_up_proj", ".down_proj")) else None


MODELS: dict[str, tuple[Callable[[int], PreTrainedModel], dict[str, Any], Any]] = {
    "DeepSeek-V3 in FP8 blocks": (
        deepseek,
        {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]},
        in_fp8,
    ),
    "GPT-OSS in MXFP4": (gpt_oss, {"quant_method": "mxfp4"}, in_mxfp4),
}


def started(*command: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return done.stdout


def measured(source: Path, recipe: str, output: Path) -> dict[str, Any]:
    """Quantize a source again in a fresh process."""
    begun = time.monotonic()
    started("-m", "goldstick", "quantize", str(source), "-o", str(output), "--recipe", recipe)
    report = json.loads((output / "report.json").read_text())
    imports = int(started("-c", IMPORTS, str(source)))
    largest = max(info.nbytes for info in open_source(source).tensors.values())
    bound = imports + 2 * largest + ALLOWED
    return {
        "recipe": recipe,
        "quantized_from": report["warnings"][0].split(",")[0],
        "stored_bytes": sum(file.stat().st_size for file in source.glob("*.safetensors")),
        "largest_tensor": largest,
        "imports": imports,
        "peak_memory": report["peak_memory"],
        "bound": bound,
        "seconds": round(time.monotonic() - begun, 1),
        "proof": report["proof"],
    }


def main() -> None:
    """Write the sources, quantize each with each recipe, print a line for each and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--recipes", nargs="+", default=["rtn-w4a16-g128", "rtn-nvfp4a16"])
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    runs = {}
    with tempfile.TemporaryDirectory(prefix="goldstick-sources-") as name:
        folder = Path(name)
        for title, (build, config, quantize) in MODELS.items():
            torch.manual_seed(0)
            source = folder / title.split()[0]
            write(source, build(arguments.layers), config, quantize)
            write_tokenizer(source)
            for recipe in arguments.recipes:
                found = runs[f"{title}, {recipe}"] = measured(source, recipe, folder / f"{source.name}-{recipe}")
                print(
                    f"{title}, {recipe}: {found['stored_bytes'] / 1e6:.0f} MB stored, largest tensor "
                    f"{found['largest_tensor'] / 1e6:.0f} MB, peak {found['peak_memory'] / 1e6:.0f} MB, imports "
                    f"{found['imports'] / 1e6:.0f} MB, bound {found['bound'] / 1e6:.0f} MB, {found['seconds']:.0f} s",
                    flush=True,
                )
    arguments.out.write_text(json.dumps({"layers": arguments.layers, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
