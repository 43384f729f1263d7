"""Export a training folder: `python -m tools.reference_model.export --run DIR --to goldstick/reference`.

Writes the model in bfloat16, its tokenizer, the evaluation data, `figures.json` and the card.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, LlamaForCausalLM

from tools.reference_model.bundle import write_bundle
from tools.reference_model.card import card
from tools.reference_model.measure import measure_folder, table

_NOT_OF_THE_TOKENIZER = ("backend", "is_local", "local_files_only")


def export(run: Path, folder: Path, *, whole_wikitext: bool) -> dict[str, Any]:
    """Write everything to `folder` and return the figures measured on what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_model(run / "model", folder)
    _write_tokenizer(run / "model", folder)
    write_bundle(folder / "data")
    figures = measure_folder(folder, whole_wikitext=whole_wikitext)
    figures["training"] = json.loads((run / "model" / "training.json").read_text(encoding="utf-8"))
    (folder / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(card(figures, parameters(folder / "model.safetensors")), encoding="utf-8")
    return figures


def parameters(file: Path) -> int:
    """The number of stored parameters."""
    return sum(tensor.numel() for tensor in load_file(file).values())


def _write_model(source: Path, folder: Path) -> None:
    model: LlamaForCausalLM = LlamaForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    end = model.config.eos_token_id
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=end, eos_token_id=end, pad_token_id=end
    )
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    if metadata.get("format") != "pt":
        save_file(load_file(file), file, metadata={"format": "pt"})


def _write_tokenizer(source: Path, folder: Path) -> None:
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings = {key: value for key, value in settings.items() if key not in _NOT_OF_THE_TOKENIZER}
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    text = json.dumps(settings, indent=1, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def main() -> None:
    """Read the command line, export and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the folder that training wrote")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="without the whole of WikiText-2")
    arguments = parser.parse_args()
    figures = export(arguments.run, arguments.to, whole_wikitext=not arguments.quick)
    print(table(figures["variants"]))
    print(json.dumps({"wikitext2": figures["wikitext2"], "training": figures["training"]}, indent=1))


if __name__ == "__main__":
    main()
