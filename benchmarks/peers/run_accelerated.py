"""What models that another package loaded answer on goldstick's layers: ``PYTHON accelerate.py SPEC.json``.

Plain transformers loads every directory in float32 with the packages of the Python that runs this;
``goldstick.accelerate`` then takes the model over. Of goldstick only what that needs is imported.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from goldstick.errors import FormatError
from goldstick.jobs.load.accelerate import accelerate


def main() -> None:
    """Write the logits of each of ``checkpoints``, and how many layers of which class became goldstick's."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    ids = load_file(spec["ids"])["ids"]
    found, replaced = {}, {}
    for name, directory in spec["checkpoints"].items():
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        layer = type(model.model.layers[0].mlp.down_proj).__name__
        try:
            replaced[name] = f"{len(accelerate(model))} of {layer}"
        except FormatError as error:
            replaced[name] = f"refused: {error}"
            continue
        with torch.inference_mode():
            found[name] = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.float().contiguous()
    save_file(found, spec["logits"])
    Path(spec["result"]).write_text(json.dumps({"layers": replaced}))


if __name__ == "__main__":
    main()
