"""Write the token windows that all tools of a comparison read: ``python windows.py SPEC.json``.

The calibration windows are those that goldstick's own command line draws for the same options; their fingerprint is
compared with that in goldstick's report afterwards, so that no tool can have seen other tokens. The held-out windows
are the text of the data set's other part, cut one after the other.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from goldstick.evaluation.language_model import LanguageModel
from goldstick.jobs.load.calibration_data import calibration_data
from goldstick.recipes.calibration import Calibration

#: Where the text lies that no tool calibrates on, and the part of its rows that counts.
HELD_OUT = {
    "tinystories": ("tinystories/stories.jsonl.gz", "test"),
    "wikitext2": ("wikitext2/wiki.test.raw.gz", None),
    "reference": ("text/heldout.txt", None),
}


def main() -> None:
    """Write ``windows`` (safetensors: calibration, held_out) and print the fingerprint."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    directory, data_dir = Path(spec["model"]), Path(spec["data_dir"])
    model = stand_in(directory)
    settings = {name: spec[name] for name in ("dataset", "samples", "seq_len", "seed")}
    data = calibration_data(Calibration(**settings), directory, data_dir)(model)
    tensors = {"calibration": data.ids}
    if spec["held_out"]:
        tensors["held_out"] = held_out(LanguageModel.from_directory(model, directory), data_dir, spec)
    save_file({name: value.contiguous() for name, value in tensors.items()}, spec["windows"])
    print(json.dumps({"fingerprint": data.fingerprint, "audit": data.audit()}))


def stand_in(directory: Path) -> nn.Module:
    """The model without its weights: the windows depend on its config, and on the rows of its embedding."""
    with torch.device("meta"):
        model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    return model


def held_out(language_model: LanguageModel, data_dir: Path, spec: dict[str, Any]) -> Tensor:
    """int64 [windows, seq_len]; at most ``spec["held_out"]`` windows."""
    name, part = HELD_OUT[spec["dataset"]]
    path = data_dir / name
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        lines = file.readlines()
    texts = [row["text"] for row in map(json.loads, lines) if row["part"] == part] if part else ["".join(lines)]
    stream = [token for text in texts for token in language_model.encode(text)]
    length = min(spec["seq_len"], language_model.context_length)
    count = min(len(stream) // length, spec["held_out"])
    return torch.tensor(stream[: count * length]).view(count, length)


if __name__ == "__main__":
    main()
