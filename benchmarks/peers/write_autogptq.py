"""Quantize with AutoGPTQ: ``PYTHON write_autogptq.py SPEC.json``, by the Python that has it installed.

AutoGPTQ 0.7.1 asks for a GPU and for a transformers of its time before it loads a model, so only the parts that decide
what a file holds are used, as they are: its solver, its packing and the forward of its packed layer. The ``__init__``
of its packages, which import the rest, are passed over. What its ``save_quantized`` does about them (names of files,
entries of the configs) is repeated here.

Beside every checkpoint lie its tokens and logits: of plain transformers in float32 on the weights that AutoGPTQ's own
forward gives in float16, one input at a time.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

DAMPING, BLOCK = 0.01, 128


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    pass_over("auto_gptq", "nn_modules", "qlinear")
    pass_over("auto_gptq", "quantization")
    torch.cuda.synchronize = lambda *_: None  # it waits for a GPU at the end of a layer
    tokens = load_file(spec["ids"])
    for name, options in spec["cases"].items():
        folder = Path(spec["output"]) / name
        folder.mkdir(parents=True)
        model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32).eval()
        table = write(model, tokens["calibration"], options, folder)
        model.config.quantization_config = table
        model.config.save_pretrained(folder)
        (folder / "quantize_config.json").write_text(json.dumps(table, indent=2))
        note_answer(model, tokens["ids"], folder, "auto-gptq")


def pass_over(*names: str) -> None:
    """Let modules of a package be imported without what its ``__init__`` imports."""
    base = next(Path(folder) / names[0] for folder in sys.path if (Path(folder) / names[0]).is_dir())
    for depth in range(len(names)):
        package = types.ModuleType(".".join(names[: depth + 1]))
        package.__path__ = [str(base.joinpath(*names[1 : depth + 1]))]
        sys.modules.setdefault(package.__name__, package)


def note_answer(model: Any, ids: torch.Tensor, folder: Path, tool: str) -> None:
    """Write what the model answers to tokens beside its checkpoint, with the versions of who made it."""
    with torch.inference_mode():
        logits = model(input_ids=ids).logits
    versions = {name: version(name) for name in (tool, "torch", "transformers")}
    save_file({"ids": ids, "logits": logits}, folder / "answer.safetensors", versions)


def write(model: Any, rows: torch.Tensor, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Quantize the linear layers, write the file, and leave the weights of its layers in the model."""
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    bits, size, state = options["bits"], options["group_size"], {}
    for name, layer, solver in solved(model, rows, options):
        scale, zero, g_idx = solver.fasterquant(
            blocksize=BLOCK, percdamp=DAMPING, group_size=size, actorder=options["desc_act"], static_groups=False
        )
        packed = QuantLinear(bits, size, layer.in_features, layer.out_features, layer.bias is not None)
        packed.pack(layer.half(), scale.half(), zero.half(), g_idx)
        state |= {f"{name}.{key}": value for key, value in packed.state_dict().items()}
        # One input at a time: no sum is rounded.
        layer.weight.data = packed(torch.eye(layer.in_features).half()).t().float().contiguous()
    left = {
        name: value.half()
        for name, value in model.state_dict().items()
        if name.removesuffix(".weight") + ".qweight" not in state
    }
    metadata = {"format": "pt", "auto_gptq_version": version("auto_gptq"), "gptq_bits": str(bits)}
    metadata |= {"gptq_group_size": str(size), "gptq_desc_act": str(options["desc_act"])}
    metadata |= {"gptq_damp_percent": str(DAMPING), "gptq_is_marlin_format": "False"}
    state = {name: value.clone().contiguous() for name, value in (left | state).items()}
    save_file(state, folder / f"gptq_model-{bits}bit-{size}g.safetensors", metadata)
    return {
        "bits": bits,
        "group_size": size,
        "damp_percent": DAMPING,
        "desc_act": options["desc_act"],
        "static_groups": False,
        "sym": options["sym"],
        "true_sequential": True,
        "model_name_or_path": None,
        "model_file_base_name": None,
        "is_marlin_format": False,
        "quant_method": "gptq",
    }


def solved(model: Any, rows: torch.Tensor, options: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Each linear layer of the blocks with AutoGPTQ's solver, which has seen the layer's inputs."""
    from auto_gptq.quantization.gptq import GPTQ

    for name, layer in list(model.model.layers.named_modules(prefix="model.layers")):
        if isinstance(layer, torch.nn.Linear):
            solver = GPTQ(layer)
            solver.quantizer.configure(options["bits"], perchannel=True, sym=options["sym"], mse=False)
            handle = layer.register_forward_hook(lambda _, given, made, solver=solver: solver.add_batch(given[0], made))
            with torch.inference_mode():
                model(input_ids=rows)
            handle.remove()
            yield name, layer, solver


if __name__ == "__main__":
    main()
