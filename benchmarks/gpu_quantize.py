"""Time GPTQ of a Llama of random weights on a CUDA device, block by block, with the proof.

    python -m benchmarks.gpu_quantize [--layers 32] [--samples 128] [--recipe gptq-w4a16-g128] [--profile FILE]
        [--effort best] [--llm-compressor PYTHON]

The model has the shape of Llama 3.1 8B (hidden 4096, MLP 14336, 8 of 32 heads for keys and values, 128,256 tokens) in
bfloat16; its samples are 2,048 random tokens each. Time does not depend on what the weights are. Adds a row to
``benchmarks/results/gpu_quantize.json``: seconds of the run up to the checkpoint, and of the proof, which reads it back
on the device; the most memory of device and process. With ``--llm-compressor``, by the Python that has it, its GPTQ
(W4A16, its defaults) runs on the same model and samples behind it, one sample at a time as here.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import goldstick
from goldstick.hf.random_models import llama_config
from goldstick.jobs.save.records import environment
from goldstick.recipes.effort import Effort

RESULTS = Path(__file__).resolve().parent / "results" / "gpu_quantize.json"
SHAPE = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
TOKENS = 2048


def write_model(folder: Path, layers: int) -> int:
    """A checkpoint of random weights, made on the device and written block by block; returns its bytes."""
    from transformers import AutoModelForCausalLM

    config = llama_config(**SHAPE, num_hidden_layers=layers)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    config.architectures, config.dtype = [type(model).__name__], torch.bfloat16
    config.save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    files: dict[str, dict[str, torch.Tensor]] = {}
    places, size = {}, 0
    for name, parameter in model.state_dict().items():
        block = name.split(".")[2] if ".layers." in name else "rest"
        noise = torch.randn(parameter.shape, device="cuda", dtype=torch.bfloat16) / parameter.shape[-1] ** 0.5
        files.setdefault(block, {})[name] = (noise if parameter.ndim > 1 else torch.ones_like(noise)).cpu()
        places[name] = f"model-{block}.safetensors"
        size += parameter.nbytes
        if len(files) > 2:  # the one before is whole
            done = next(key for key in files if key not in (block, "rest"))
            save_file(files.pop(done), folder / f"model-{done}.safetensors", {"format": "pt"})
    for block, tensors in files.items():
        save_file(tensors, folder / f"model-{block}.safetensors", {"format": "pt"})
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return size


def measure_peer(python: str, source: Path, ids: torch.Tensor, place: Path) -> dict[str, Any]:
    """llm-compressor's GPTQ of the same model on the same samples: seconds of each part, versions."""
    spec = {
        "model": str(source), "windows": str(place / "windows.safetensors"), "batch_size": 1, "method": "gptq",
        "preset": "W4A16", "output": str(place / "peer"), "times": str(place / "times.json"),
    }  # fmt: skip
    save_file({"calibration": ids}, spec["windows"])
    (place / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    script = Path(__file__).resolve().parent / "peers" / "run_llm_compressor.py"
    subprocess.run([python, str(script), str(place / "spec.json")], check=True)
    found: dict[str, Any] = json.loads((place / "times.json").read_text(encoding="utf-8"))
    return found


def measure(
    layers: int, samples: int, recipe: str, effort: Effort, profile: Path | None, peer: str | None
) -> Iterator[dict[str, Any]]:
    """Make the model, quantize it, and say how long it took; then the same with what another tool took."""
    with tempfile.TemporaryDirectory() as place:
        source, rows, output = Path(place, "source"), Path(place, "rows.safetensors"), Path(place, "output")
        source.mkdir()
        size = write_model(source, layers)
        ids = torch.randint(0, SHAPE["vocab_size"], (samples, TOKENS))
        save_file({"input_ids": ids}, rows)
        stages = goldstick.Recipe.load(recipe).with_effort(effort).model_dump(mode="json")
        stages["calibration"] = {"dataset": str(rows), "samples": samples, "seq_len": TOKENS}
        print(f"made {size / 1e9:.1f} GB", flush=True)
        profiler = cProfile.Profile()
        if profile is not None:
            profiler.enable()
        started = time.perf_counter()
        report = goldstick.quantize(source, stages, output=output, device="cuda", progress=_say).report
        seconds = time.perf_counter() - started
        if profile is not None:
            profiler.disable()
            profiler.dump_stats(profile)
        written = sum(file.stat().st_size for file in output.iterdir())
        device_peak = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        row = {
            "device": torch.cuda.get_device_name(0), "layers": layers, "samples": samples, "tokens": TOKENS,
            "recipe": recipe, "effort": effort, "source_bytes": size, "written_bytes": written,
            "seconds": round(seconds, 1), "timing": report.timing, "device_peak_bytes": device_peak,
            "process_peak_bytes": report.peak_memory, "proof": report.proof, "environment": environment(),
        }  # fmt: skip
        yield row
        if peer is not None:
            yield row | {"llm_compressor": measure_peer(peer, source, ids, Path(place))}


def _say(what: str, done: int, of: int) -> None:
    print(f"{time.perf_counter():10.1f} {what} {done}/{of}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--recipe", default="gptq-w4a16-g128")
    parser.add_argument("--effort", choices=get_args(Effort), default="fast")
    parser.add_argument("--llm-compressor", metavar="PYTHON", help="of an environment that has it")
    parser.add_argument("--profile", type=Path, help="where to leave what cProfile found")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        raise SystemExit("This quantizes on a CUDA device, and torch finds none; benchmarks/ranks.py times processors.")
    before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else []
    given = options.recipe, options.effort, options.profile, options.llm_compressor
    found = measure(options.layers, options.samples, *given)
    for row in found:  # kept as soon as there is one: what comes behind it may fail
        print(json.dumps(row, indent=1), flush=True)
        RESULTS.write_text(json.dumps([*before, row], indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
