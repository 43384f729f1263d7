"""What plain transformers answers for a checkpoint, in a process that never imports goldstick."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

_CODE = """
import sys, torch, transformers
from pathlib import Path
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
for directory in map(Path, sys.argv[1:]):
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad():
        logits = model(**load_file(f"{directory}.inputs")).logits
    save_file({"logits": logits.contiguous()}, f"{directory}.logits")
assert "goldstick" not in sys.modules
"""


def write_plain_logits(folder: Path, inputs: Mapping[str, dict[str, Tensor]]) -> None:
    """Write ``NAME.inputs`` and ``NAME.logits`` beside each checkpoint ``NAME`` of a folder, in one process for all."""
    for name, tensors in inputs.items():
        save_file(tensors, folder / f"{name}.inputs")
    command = [sys.executable, "-c", _CODE, *(str(folder / name) for name in inputs)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
