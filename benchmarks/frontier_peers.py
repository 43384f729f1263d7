"""Other tools on the frontier, each in a process of its own by the Python that has it installed; their defaults.

``pip install auto-round`` or ``hqq`` beside the same torch; ``make build/peers/llm-compressor/.installed`` and
``build/peers/gptqmodel/.installed``. What they write is read as the weights that its codes stand for.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.frontier_models import Drawn, FrontierModel
from goldstick.hf.source import open_source

ROOT = Path(__file__).resolve().parents[1]
#: Scheme → bits, group (none for a scale for each row), auto-round's data type, llm-compressor's preset.
SCHEMES: dict[str, tuple[int, int | None, str, str | None]] = {
    "w4a16-g128": (4, 128, "int", None),
    "w3a16-g128": (3, 128, "int", None),
    "w2a16-g64": (2, 64, "int", None),
    "w4a16-channel": (4, None, "int", None),
    "w3a16-channel": (3, None, "int", None),
    "w2a16-channel": (2, None, "int", None),
    "nvfp4a16": (4, 16, "nv_fp", "NVFP4A16"),
    "mxfp4a16": (4, 32, "mx_fp", "MXFP4A16"),
}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A method of another tool.

    Attributes:
        tool: The option that gives its Python.
        script: What runs it, in ``benchmarks/peers``.
        method: What llm-compressor does.
        options: The tool's own.
        floats: Whether it has the 4-bit floats.
    """

    tool: str
    script: str
    method: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    floats: bool = False


#: auto-round compiles each block by default, which takes most of its time on a small model; ``best`` is its own preset.
UNCOMPILED = {"enable_torch_compile": False}
PEERS = {
    "auto-round": Peer(tool="auto-round", script="run_auto_round.py", options=UNCOMPILED, floats=True),
    "auto-round best": Peer(tool="auto-round", script="run_auto_round.py", options={**UNCOMPILED, "iters": 1000}),
    "llm-compressor GPTQ": Peer(
        tool="llm-compressor", script="run_llm_compressor.py", method="gptq", floats=True
    ),
    "llm-compressor AWQ": Peer(tool="llm-compressor", script="run_llm_compressor.py", method="awq"),
    "llm-compressor AutoRound": Peer(
        tool="llm-compressor", script="run_llm_compressor.py", method="autoround", floats=True
    ),
    "GPTQModel": Peer(tool="gptqmodel", script="write_gptqmodel.py"),
    "HQQ": Peer(tool="hqq", script="run_hqq.py"),
}  # fmt: skip
_LEAST_CHANGE = 0.01  # of a weight that was rounded to 4 bits or fewer; rounding to 16 bits changes a fifth of that
TOOLS = tuple(dict.fromkeys(peer.tool for peer in PEERS.values()))


def run(
    name: str, python: str, model: FrontierModel, data: Drawn, layers: Sequence[str], scheme: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights that a peer leaves, and what it took.

    Raises:
        RuntimeError: It failed, or it left a layer float that it was to quantize.
    """
    peer, (bits, group, kind, preset) = PEERS[name], SCHEMES[scheme]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        if data.ids is not None:
            save_file({"calibration": data.ids.contiguous()}, folder / "windows.safetensors")
        else:
            torch.save(list(data.batches), folder / "batches.pt")
        spec = {
            "model": str(model.directory),
            "class": model.loaded_by,
            "layers": list(layers),
            "batches": None if data.ids is not None else str(folder / "batches.pt"),
            "windows": str(folder / "windows.safetensors"),
            "ids": str(folder / "windows.safetensors"),
            "output": str(folder / "out"),
            "times": str(folder / "times.json"),
            "bits": bits,
            "group_size": group,
            "data_type": kind,
            "preset": preset,
            "activation_bits": None,
            "batch_size": 8,
            "method": peer.method,
            "by_row": [],
            "options": peer.options,
            "cases": {"gptq": {"bits": bits, "group_size": group or -1}},
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        job = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--measure", python]
        job += [str(ROOT / "benchmarks" / "peers" / peer.script), str(folder / "spec.json")]
        done = subprocess.run(job, env={**os.environ, **threads}, capture_output=True, text=True, check=False)
        if not (folder / "times.json").exists():  # written last
            raise RuntimeError(f"{name} of {scheme}: {done.stderr.strip().splitlines()[-1:]}")
        times = json.loads((folder / "times.json").read_text())
        directory = next((folder / "out").rglob("config.json")).parent
        weights = {tensor: info.read().float() for tensor, info in open_source(directory).tensors.items()}
    if left := left_float(weights, model.directory, layers):
        raise RuntimeError(f"{name} of {scheme} left {len(left)} layers float, such as {left[0]}")
    return weights, {
        "seconds": round(times["quantize_and_write"], 1),
        "processor_seconds": round(times["processor_seconds"], 1),
        "peak_bytes": json.loads(done.stdout)["peak_process_bytes"],
        "peer": times["versions"],
    }


def left_float(weights: Mapping[str, Tensor], directory: Path, layers: Sequence[str]) -> list[str]:
    """Layers that some tools leave without an error: their weight is nowhere, or what it was but for 16 bits."""
    source = {name: info.read().float() for name, info in open_source(directory).tensors.items()}
    names = [f"{layer}.weight" for layer in layers]
    return [
        name
        for name in names
        if name not in weights or (weights[name] - source[name]).norm() < _LEAST_CHANGE * source[name].norm()
    ]
