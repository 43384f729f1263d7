"""Round with AutoAWQ: ``PYTHON write_autoawq.py SPEC.json``, by the Python that has it installed.

AutoAWQ 0.2.9 imports models that a newer transformers has no more, so only the parts that decide what a file holds are
used, as they are: its packing and its dequantization. The ``__init__`` of its packages, which import the rest, are
passed over. What its ``save_quantized`` does about them is repeated here.

Beside every checkpoint lie its tokens and logits: of plain transformers in float32 on the weights that AutoAWQ's own
dequantization gives in float16.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from write_autogptq import note_answer, pass_over


def main() -> None:
    """Make a checkpoint of ``model`` for each of ``cases``."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    pass_over("awq", "modules", "linear")
    pass_over("awq", "utils")
    pass_over("awq", "models")
    for name in ("awq.utils.utils", "awq.utils.module"):  # devices and accelerate's hooks
        sys.modules[name] = types.ModuleType(name)
    sys.modules["awq.utils.utils"].get_best_device = lambda: "cpu"  # type: ignore[attr-defined]
    sys.modules["awq.utils.module"].try_import = lambda _: (None, "")  # type: ignore[attr-defined]
    tokens = load_file(spec["ids"])
    for name, options in spec["cases"].items():
        folder = Path(spec["output"]) / name
        folder.mkdir(parents=True)
        model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32).eval()
        model.config.quantization_config = write(model, options["group_size"], folder)
        model.config.save_pretrained(folder)
        note_answer(model, tokens["ids"], folder, "autoawq")


def write(model: Any, size: int, folder: Path) -> dict[str, Any]:
    """Round the linear layers, write the file, and leave the weights of its layers in the model."""
    from awq.models._config import AwqConfig
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    state = {}
    for name, layer in model.model.layers.named_modules(prefix="model.layers"):
        if isinstance(layer, torch.nn.Linear):
            scales, zeros = ranges(layer.weight.data.half().float(), size)
            packed = WQLinear_GEMM.from_linear(
                linear=layer.half(),
                w_bit=4,
                group_size=size,
                scales=scales.t().contiguous(),
                zeros=zeros.t().contiguous(),
            )
            state |= {f"{name}.{key}": value for key, value in packed.state_dict().items()}
            weight = dequantize_gemm(packed.qweight, packed.qzeros, packed.scales, 4, size)
            layer.weight.data = weight.t().float().contiguous()
    left = {
        name: value.half()
        for name, value in model.state_dict().items()
        if name.removesuffix(".weight") + ".qweight" not in state
    }
    state = {name: value.clone().contiguous() for name, value in (left | state).items()}
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return AwqConfig(q_group_size=size).to_transformers_dict()


def ranges(weight: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zeros [out, groups] from the least and the largest weight of every group."""
    groups = weight.reshape(weight.shape[0], -1, size)
    least, most = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((most - least) / 15).half()
    return scales, (-least / scales.float()).round().clamp(0, 15)


if __name__ == "__main__":
    main()
