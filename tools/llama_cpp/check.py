"""Whether llama.cpp computes what goldstick does: on files of goldstick's, and on files of its own quantizer's.

llama.cpp rounds the inputs of a product of quantized weights to 8 bits in groups of 32, so outputs differ a little:
they agree when the squared difference of all logits is at most 1e-4 of their sum of squares (NMSE). Run by
``make llama-cpp-check``; ``--python`` names a Python with llama-cpp-python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import goldstick
from goldstick import api
from goldstick.checkpoint.entries import Entry
from goldstick.checkpoint.gguf.entries import gguf_layout, write_gguf
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_source
from goldstick.core.progress import quiet
from goldstick.formats.gguf import GGUF_NAME
from goldstick.hf.names import load_config, model_class, quiet_libraries
from goldstick.jobs.load.find_model import reference_directory

BOUND = 1e-4
SCHEMES = {"Q4_0": "w4a16-g32", "Q8_0": "w8a16-g32"}
TEXT = "The harbour lies on the north side of the island,\n\nwhere 12 boats don't fear the wind."
_SHAPE: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
TINY = {
    "llama": LlamaConfig(**_SHAPE, architectures=["LlamaForCausalLM"]),
    "mistral": MistralConfig(**_SHAPE, architectures=["MistralForCausalLM"], sliding_window=None),
    "qwen2": Qwen2Config(**_SHAPE, architectures=["Qwen2ForCausalLM"]),
    "qwen3": Qwen3Config(**_SHAPE, architectures=["Qwen3ForCausalLM"], head_dim=64),
}


def main() -> int:
    """Print a line for every comparison; 1 where one does not agree."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="a Python that has llama-cpp-python")
    parser.add_argument("--models", nargs="*", default=[*TINY, "reference"])
    arguments = parser.parse_args()
    quiet_libraries()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="goldstick-llama-cpp-") as folder:
        for name in arguments.models:
            (Path(folder) / name).mkdir()
            for what, error in _compared(name, Path(folder) / name, arguments.python):
                failed += not error <= BOUND
                print(f"{name:10} {what:48} {error:.2e}{'' if error <= BOUND else f'  more than {BOUND}'}", flush=True)
    return int(failed > 0)


def _compared(name: str, folder: Path, python: str) -> Iterator[tuple[str, float]]:
    source = reference_directory() if name == "reference" else _tiny(name, folder / "float")
    for kind, scheme in SCHEMES.items():
        recipe = {"stages": [{"rtn": {"scheme": scheme}}]}
        goldstick.quantize(source, recipe, output=folder / kind, proof="tensors")
        api.export(folder / kind, "gguf", output=folder / f"{kind}-gguf")
        file = folder / f"{kind}-gguf" / GGUF_NAME
        yield f"NMSE, {kind} written by goldstick", _nmse(file.parent, file, folder, python)
    plain = _float_file(source, folder)
    for kind in SCHEMES:
        file = folder / f"llama-cpp-{kind}.gguf"
        _run(python, "quantize", str(plain), str(file), kind)
        yield f"NMSE, {kind} written by llama.cpp's quantizer", _nmse(file, file, folder, python)
    if (source / "tokenizer.json").is_file():
        mine = AutoTokenizer.from_pretrained(source)(TEXT, add_special_tokens=False)["input_ids"]
        theirs = [int(number) for number in _run(python, "tokens", str(plain), TEXT).strip().split(",")]
        yield (
            "share of a text's tokens that differ",
            float(np.mean([a != b for a, b in zip(mine, theirs, strict=True)])),
        )


def _tiny(name: str, folder: Path) -> Path:
    """A random model whose blocks add little to the residual, as those of trained ones do: scaled by depth, as GPT-2's,
    and under larger embeddings. Without that every block's output is larger than what it is added to, and so is the
    rounding of its inputs.
    """
    torch.manual_seed(0)
    config = TINY[name]
    model = model_class(config.to_dict(), name)(config)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape))
            elif path.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.mul_((2 * config.num_hidden_layers) ** -0.5)
            elif path.endswith("embed_tokens.weight"):
                parameter.mul_(4)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def _float_file(source: Path, folder: Path) -> Path:
    """The float model as a GGUF file."""
    found = open_source(source)
    entries = [
        Entry(
            name=name, outputs={name: (info.shape, info.dtype)}, produce=lambda name=name, info=info: _read(name, info)
        )
        for name, info in found.tensors.items()
    ]
    outputs = {name: spec for entry in entries for name, spec in entry.outputs.items()}
    write_gguf(folder, entries, gguf_layout(outputs, load_config(source).to_dict(), source, source.name), quiet)
    return folder / GGUF_NAME


def _read(name: str, info: TensorInfo) -> dict[str, torch.Tensor]:
    return {name: info.read()}


def _nmse(mine: Path, theirs: Path, folder: Path, python: str) -> float:
    """Squared difference of the logits over their sum of squares, on 32 random tokens."""
    model: Any = goldstick.load(mine, dtype=torch.float32)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (1, 32), generator=generator)
    with torch.no_grad():
        expected = model(input_ids=ids).logits[0].double().numpy()
    _run(python, "logits", str(theirs), str(folder / "logits.npy"), ",".join(map(str, ids[0].tolist())))
    found = np.load(folder / "logits.npy").astype(np.float64)
    return float(((found - expected) ** 2).sum() / (expected**2).sum())


def _run(python: str, *arguments: str) -> str:
    worker = Path(__file__).with_name("worker.py")
    done = subprocess.run([python, str(worker), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments[:2])} failed in llama.cpp:\n{done.stderr[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
