"""Peak memory of the data-free path: ``python benchmarks/memory.py [--blocks 16 64] [--megabytes 64]``.

Makes checkpoints of equal blocks (a Llama in bfloat16, one random block repeated), quantizes each through the command
line in a process of its own, and says how much memory that took. Two figures: the largest resident set of any process
of the job, as the kernel counted it, and the largest sum over all its processes at one time, sampled. A peak that grew
with the number of blocks would mean that some step holds the whole model.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

HEAD = 64
VOCABULARY = 1024
SHARD_BYTES = 1_000_000_000
RESULTS = Path(__file__).resolve().parent / "results" / "memory.json"
WRAPPED = "--measure"


def llama_config(blocks: int, block_bytes: int) -> dict[str, Any]:
    """A Llama whose blocks take about ``block_bytes`` in bfloat16: 4·h² + 3·h·i weights, i = 1.25·h."""
    hidden = max(HEAD, round(math.sqrt(block_bytes / 2 / 7.75) / HEAD) * HEAD)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "intermediate_size": hidden * 5 // 4,
        "num_hidden_layers": blocks,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": hidden // HEAD,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }


def block_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors of one block."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    square = {f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
    wide = {f"mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
    norms: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    return {**square, **wide, "mlp.down_proj.weight": (hidden, inner), **norms}


def bfloat16(shape: tuple[int, ...], generator: np.random.Generator) -> bytes:
    """Normal numbers of deviation 0.02 as the bytes of bfloat16."""
    values = generator.standard_normal(shape, dtype=np.float32) * 0.02
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def write_checkpoint(directory: Path, config: dict[str, Any]) -> int:
    """Write config, shards and index; returns the bytes of all tensors."""
    directory.mkdir()
    generator = np.random.default_rng(0)
    shapes = block_shapes(config)
    data = {name: bfloat16(shape, generator) for name, shape in shapes.items()}
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, config["hidden_size"]),
        "lm_head.weight": (VOCABULARY, config["hidden_size"]),
        "model.norm.weight": (config["hidden_size"],),
    }
    parts: list[dict[str, tuple[tuple[int, ...], bytes]]] = [
        {name: (shape, bfloat16(shape, generator)) for name, shape in ends.items()}
    ]
    for block in range(config["num_hidden_layers"]):
        parts.append({f"model.layers.{block}.{name}": (shapes[name], data[name]) for name in shapes})
    total = sum(len(content) for part in parts for _, content in part.values())
    shards = list(_shards(parts))
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards):
        file = f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors"
        _write_safetensors(directory / file, shard)
        weight_map.update(dict.fromkeys(shard, file))
    index_text = json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index_text)
    (directory / "config.json").write_text(json.dumps(config))
    return total


def _shards(parts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    for part in parts:
        size = sum(len(content) for _, content in (shard | part).values())
        if shard and size > SHARD_BYTES:
            yield shard
            shard = {}
        shard |= part
    yield shard


def _write_safetensors(path: Path, tensors: dict[str, tuple[tuple[int, ...], bytes]]) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, (shape, content) in tensors.items():
        end = position + len(content)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, content in tensors.values():
            file.write(content)


def tree_bytes(root: int) -> int:
    """Resident bytes of a process and all its descendants now; pages that several share, such as libraries, once."""
    total, waiting = 0, [root]
    while waiting:
        process = waiting.pop()
        try:
            fields = dict(
                line.split(":", 1) for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
            )
            total += 1024 * int(fields["Pss"].split()[0])
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, KeyError):
            continue  # it ended between two looks
    return total


def measure(command: list[str]) -> dict[str, Any]:
    """Run a command; its peak memory and time. Call it in a small process: a child's count starts at its parent's."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    samples = [0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            samples.append(tree_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    ended.set()
    watcher.join()
    return {
        "returncode": code,
        "seconds": round(time.perf_counter() - started, 1),
        "peak_process_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "peak_tree_bytes": max(samples),
    }


def run(blocks: int, block_bytes: int, stage: dict[str, str], folder: Path) -> dict[str, Any]:
    """Make a checkpoint, quantize it, and remove both."""
    config = llama_config(blocks, block_bytes)
    source, output, recipe = folder / "source", folder / "output", folder / "recipe.yaml"
    recipe.write_text(json.dumps({"stages": [{"rtn": stage}]}))  # JSON is YAML
    try:
        size = write_checkpoint(source, config)
        job = [sys.executable, "-m", "goldstick.cli", "quantize", str(source), "-o", str(output), "-r", str(recipe)]
        wrapper = [sys.executable, str(Path(__file__).resolve()), WRAPPED, *job, "--json"]
        found = json.loads(subprocess.run(wrapper, check=True, stdout=subprocess.PIPE, text=True).stdout)
        if found["returncode"]:
            raise SystemExit(f"goldstick quantize ended with code {found['returncode']}")
        proof = json.loads((output / "goldstick.json").read_text())["proof"]["method"]
    finally:
        shutil.rmtree(source, ignore_errors=True)
        shutil.rmtree(output, ignore_errors=True)
    return {"blocks": blocks, "block_bytes": size // blocks, "source_bytes": size, "proof": proof, **found}


def main() -> None:
    """Measure every block count, print a table, write the results."""
    if WRAPPED in sys.argv:
        print(json.dumps(measure(sys.argv[sys.argv.index(WRAPPED) + 1 :])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--megabytes", type=float, default=64, help="of one block in bfloat16")
    parser.add_argument("--scheme", default="w4a16-g128")
    parser.add_argument("--search", default="minmax", choices=["minmax", "mse"], help="how RTN finds its ranges")
    parser.add_argument("--folder", type=Path, help="where the checkpoints are made; a temporary one by default")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file to write")
    arguments = parser.parse_args()
    runs = []
    stage = {"scheme": arguments.scheme, "range_search": arguments.search}
    with tempfile.TemporaryDirectory(prefix="goldstick-memory-", dir=arguments.folder) as folder:
        for blocks in arguments.blocks:
            found = run(blocks, int(arguments.megabytes * 1e6), stage, Path(folder))
            runs.append(found)
            print(
                f"{blocks:4d} blocks, source {found['source_bytes'] / 1e6:7.0f} MB: peak of one process "
                f"{found['peak_process_bytes'] / 1e6:6.0f} MB, of all {found['peak_tree_bytes'] / 1e6:6.0f} MB, "
                f"{found['seconds']:.0f} s, proof by {found['proof']}",
                flush=True,
            )
    result = {"rtn": stage, "threads": os.environ.get("OMP_NUM_THREADS", "all"), "runs": runs}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {arguments.output}")


if __name__ == "__main__":
    main()
