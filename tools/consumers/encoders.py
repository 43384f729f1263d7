"""Encoders in sentence-transformers: ``python -m tools.consumers.encoders --python PYTHON --minilm DIR``.

goldstick compresses a published sentence encoder and small ones of random numbers of other architectures, and
sentence-transformers loads each from its directory alone. Kept are 1 − cosine between its embeddings and those of
goldstick's plain backend, between goldstick's own of texts by themselves and in batches, and, for scale, between
goldstick's and those of the float model. Where inputs are rounded, a last digit that changes with the order of a sum
turns a code, and codes turn others in all layers after: within its precision is at most twice goldstick's own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import Tensor
from torch.nn.functional import normalize

import goldstick
from goldstick import api
from goldstick.errors import GoldstickError
from goldstick.jobs.load.find_model import reference_directory
from goldstick.recipes import Recipe
from goldstick.recipes.needs_data import needs_data
from goldstick.recipes.sentence import parse
from tools.consumers.__main__ import ask, cpu_words, runs_here, shortened, versions
from tools.consumers.results import RESULTS, begun, keep

_BERT: dict[str, Any] = {
    "vocab_size": 30522, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512,
}  # fmt: skip
_DISTILLED = {"vocab_size": 30522, "dim": 256, "n_layers": 2, "n_heads": 4, "hidden_dim": 512}
#: Encoders of random numbers beside the published one. Each has the published one's tokenizer.
MODELS = {
    "distilbert": lambda: hf.DistilBertModel(hf.DistilBertConfig(**_DISTILLED)),
    "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(**_BERT)),
    "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(**_BERT, pad_token_id=0)),
    "modernbert": lambda: hf.ModernBertModel(hf.ModernBertConfig(**_BERT, pad_token_id=0)),
}
PUBLISHED = "all-MiniLM-L6-v2"
SCHEMES = (
    "w4a16-g128", "w4a16-g128-asym", "w4a16-g32", "w8a16", "w8a8-dynamic", "w8a8-static", "fp8-dynamic", "fp8",
    "mxfp8", "mxfp4a16", "nvfp4a16",
)  # fmt: skip
#: Schemes of the others.
COMMON = ("w4a16-g128", "w8a8-dynamic", "w8a8-static", "fp8-dynamic")
#: Distances below this are none.
FLOOR = 1e-6


def main() -> int:
    """Print a line for each encoder and scheme, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--python", help="a Python that has sentence-transformers")
    what.add_argument("--doctor", action="store_true", help="ask doctor anew of what was run, after its rules changed")
    parser.add_argument("--minilm", required=True, type=Path, metavar="DIR", help=f"the directory of {PUBLISHED}")
    parser.add_argument("--only", nargs="*", default=[""], metavar="NAME", help="encoders whose names begin so")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    kept = begun(arguments.out)
    found = kept.setdefault("encoders", {})
    with tempfile.TemporaryDirectory(prefix="goldstick-encoders-") as name:
        folder, texts = Path(name), sentences()
        made: dict[str, Path] = {}
        for model in (PUBLISHED, *MODELS):
            if model.startswith(tuple(arguments.only)):
                made |= compressed(model, arguments.minilm, folder / model, found)
        if arguments.doctor:
            for cell in {*made} & {*found}:
                if not cell.endswith("/float"):
                    found[cell]["doctor"] = said(made[cell])
            keep(arguments.out, kept)
            return 0
        answers = ask("sentence-transformers", arguments.python, made, {}, folder, texts=texts)
        floats: dict[str, Tensor] = {}
        for cell, directory in made.items():
            model = cell.partition("/")[0]
            ours, batched = embeddings(directory, texts)
            exact = floats.setdefault(model, ours)  # the float model comes first
            found[cell] = told = judged(answers[cell], ours, batched, exact, directory)
            print(f"{cell:36} {told.get('error') or told['apart']}", flush=True)
    kept.setdefault("versions", {})["sentence-transformers"] = versions(arguments.python, "sentence-transformers")
    keep(arguments.out, kept)
    return 0


def sentences() -> list[str]:
    """Sentences of the bundled text that the bundled model has not seen, of many lengths."""
    text = (reference_directory() / "data" / "text" / "heldout.txt").read_text(encoding="utf-8")
    found = [one.strip() for one in text.replace("\n", " ").split(". ")]
    return [one for one in found if 20 < len(one) < 300][:48]


def compressed(model: str, published: Path, folder: Path, found: dict[str, Any]) -> dict[str, Path]:
    """Directories of an encoder, the float one first; where goldstick does not write one, its reason is kept."""
    source = folder / "float"
    shutil.copytree(published, source)
    if model != PUBLISHED:
        torch.manual_seed(0)
        MODELS[model]().eval().save_pretrained(source)
    made = {f"{model}/float": source}
    for scheme in SCHEMES if model == PUBLISHED else COMMON:
        recipe = {**parse(f"rtn-{scheme}").recipe(), "export": {"format": "compressed-tensors"}}
        if seen := needs_data(Recipe.load(recipe).stages):
            (folder / "seen.txt").write_text("\n\n".join(sentences()), encoding="utf-8")
            recipe["calibration"] = {"dataset": str(folder / "seen.txt"), "samples": 8, "seq_len": 32}
        cell, output = f"{model}/{scheme}", folder / scheme
        try:
            goldstick.quantize(source, recipe, output=output, proof="outputs" if seen else "tensors")
        except GoldstickError as error:
            found[cell] = {"refused": str(error).replace(str(folder), "")}
            print(f"{cell:36} refused: {error}", flush=True)
        else:
            made[cell] = output
    return made


@torch.inference_mode()
def embeddings(directory: Path, texts: list[str]) -> tuple[Tensor, Tensor]:
    """Means of the last states of a text's tokens, of length 1, by goldstick's plain backend.

    Returns:
        [texts, width] twice: each text by itself, and in batches of eight, padded, as the sums of floats come out in
        another order then.
    """
    os.environ["GOLDSTICK_BACKEND"] = "reference"
    tokenizer: Any = hf.AutoTokenizer.from_pretrained(directory)
    model: Any = goldstick.load(directory, dtype=torch.float32).eval()
    found = []
    for size in (1, 8):
        rows = []
        for first in range(0, len(texts), size):
            batch = tokenizer(
                texts[first : first + size], padding=True, truncation=True, max_length=256, return_tensors="pt"
            )
            mask = batch["attention_mask"]
            states = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
            rows.append((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))
        found.append(normalize(torch.cat(rows).double()))
    return found[0], found[1]


def apart(one: Tensor, other: Tensor) -> float:
    """1 − cosine of rows of length 1, in the mean."""
    return float(f"{float((1 - (one * other).sum(-1)).mean()):.2g}")


def said(directory: Path) -> dict[str, Any]:
    """What doctor says of a compressed encoder."""
    verdict = api.doctor(directory, runtime="transformers").verdict
    return {"runs": runs_here(verdict), "cpu": cpu_words(verdict)} if verdict else {}


def judged(answer: dict[str, Any], ours: Tensor, batched: Tensor, exact: Tensor, directory: Path) -> dict[str, Any]:
    """One answer beside goldstick's embeddings and the float model's."""
    doctor = said(directory) if ours is not exact else {}
    if "error" in answer:
        return {"loads": False, "error": shortened(answer["error"]), "doctor": doctor}
    theirs = normalize(torch.tensor(answer["embeddings"], dtype=torch.float64))
    found = {"apart": apart(theirs, ours), "own": apart(batched, ours), "cost": apart(ours, exact)}
    told = {name: answer[name] for name in ("dtype", "modules")}
    told |= {name: round(answer[name], 2) for name in ("seconds_to_load", "milliseconds", "load")}
    told |= found | {"loads": True, "doctor": doctor}
    if "error_as_loaded" in answer:
        told["error_as_loaded"] = shortened(answer["error_as_loaded"])
    return told | {"agrees": found["apart"] <= max(2 * found["own"], FLOOR)}


if __name__ == "__main__":
    sys.exit(main())
