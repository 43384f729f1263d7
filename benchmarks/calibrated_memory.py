"""Peak memory of a calibrated run: ``python benchmarks/calibrated_memory.py [--blocks 8 24] [--megabytes 128]``.

Makes checkpoints of equal blocks as ``memory.py`` does, with a small tokenizer, and quantizes each with GPTQ through
the command line in a process of its own, batches one by one. The bound to compare with is base + 2.5 blocks + 8·n² +
one batch of activations, with n the widest input of a layer and the base what the same command takes for an almost
empty model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import memory

RESULTS = Path(__file__).resolve().parent / "results" / "calibrated-memory.json"
TOKENS, SAMPLES = 256, 16


def write_tokenizer(directory: Path) -> None:
    """A tokenizer of one token for each of the words w0, w1, …"""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(memory.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "model_max_length": 512}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def run(blocks: int, block_bytes: int, recipe: dict[str, Any], folder: Path, budget: str) -> dict[str, Any]:
    """Make a checkpoint, quantize it, and remove both."""
    source, output, text, file = (folder / name for name in ("source", "output", "text.txt", "recipe.yaml"))
    config = memory.llama_config(blocks, block_bytes)
    file.write_text(json.dumps(recipe))  # JSON is YAML
    generator = random.Random(0)
    text.write_text(" ".join(f"w{generator.randrange(memory.VOCABULARY)}" for _ in range(TOKENS * SAMPLES)))
    try:
        size = memory.write_checkpoint(source, config)
        write_tokenizer(source)
        job = [sys.executable, "-m", "goldstick.cli", "quantize", str(source), "-o", str(output), "-r", str(file)]
        job += ["--dataset", str(text), "--samples", str(SAMPLES), "--seq-len", str(TOKENS), "--max-memory", budget]
        wrapper = [sys.executable, memory.__file__, memory.WRAPPED, *job, "--json"]
        found = json.loads(subprocess.run(wrapper, check=True, stdout=subprocess.PIPE, text=True).stdout)
        if found["returncode"]:
            raise SystemExit(f"goldstick quantize ended with code {found['returncode']}")
    finally:
        shutil.rmtree(source, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    batch = 2 * TOKENS * 2 * (5 * hidden + 3 * inner)  # 512 tokens in bfloat16: what the layers of a block give
    return {
        "blocks": blocks,
        "block_bytes": sum(2 * a * b for a, b in [(hidden, hidden)] * 4 + [(hidden, inner)] * 3),
        "source_bytes": size,
        "hessian_bytes": 8 * inner**2,
        "batch_bytes": batch,
        **found,
    }


def main() -> None:
    """Measure every block count, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[8, 24])
    parser.add_argument("--megabytes", type=float, default=128, help="of one block in bfloat16")
    parser.add_argument("--max-memory", default="1MB", help="1MB runs the batches one by one")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are made; a temporary one by default")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args()
    gptq = {"stages": [{"gptq": {"scheme": "w4a16-channel", "range_search": "minmax"}}]}
    with tempfile.TemporaryDirectory(prefix="goldstick-memory-", dir=arguments.folder) as folder:
        base = run(1, 1_000_000, gptq, Path(folder), arguments.max_memory)["peak_process_bytes"]
        runs = []
        for blocks in arguments.blocks:
            found = run(blocks, int(arguments.megabytes * 1e6), gptq, Path(folder), arguments.max_memory)
            bound = base + 2.5 * found["block_bytes"] + found["hessian_bytes"] + found["batch_bytes"]
            runs.append(found | {"base_bytes": base, "bound_bytes": bound})
            print(
                f"{blocks:4d} blocks, source {found['source_bytes'] / 1e6:7.0f} MB: peak of one process "
                f"{found['peak_process_bytes'] / 1e6:6.0f} MB, bound {bound / 1e6:6.0f} MB (base {base / 1e6:.0f}, "
                f"block {found['block_bytes'] / 1e6:.0f}, 8n² {found['hessian_bytes'] / 1e6:.0f}), "
                f"{found['seconds']:.0f} s",
                flush=True,
            )
    result = {"recipe": gptq, "threads": os.environ.get("OMP_NUM_THREADS", "all"), "runs": runs}
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
