"""Tensors that do not make up the model of their config: decided while planning, by every way to a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import goldstick
from goldstick.api import plan
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import CheckpointError, SourceError
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.quantize import quantize
from goldstick.jobs.verify.verify import verify_checkpoint
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")

FIRST = "model.layers.0.self_attn.q_proj"
RTN: dict[str, Any] = {"stages": [{"rtn": {"scheme": "w4a16-g32"}}]}
Spoil = Callable[[dict[str, Tensor]], object]


def spoilt(folder: Path, spoil: Spoil, family: str = "llama_gqa") -> Path:
    """A checkpoint with a tokenizer, whose tensors somebody changed; a text lies beside it."""
    FAMILIES[family]().save_pretrained(folder / "source")
    write_tokenizer(folder / "source")
    (folder / "text.txt").write_text("The harbour lies on the north side of the island. " * 20)
    file = folder / "source" / "model.safetensors"
    tensors = load_file(file)
    spoil(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, file, {"format": "pt"})
    return folder / "source"


def recipe(folder: Path, way: str) -> dict[str, Any]:
    """A recipe that goes a way: ``streamed``, ``by blocks`` or ``in memory``."""
    if way == "streamed":
        return RTN
    calibration = {"dataset": str(folder / "text.txt"), "samples": 2, "seq_len": 16}
    return {"stages": [{"gptq": {"scheme": "w4a16-g32"}}], "calibration": calibration}


WAYS = ["streamed", "by blocks", "in memory"]
UNUSED = {"model.layers.9.mlp.extra.weight": torch.ones(3, 5), "stray": torch.arange(7), "lm_head.bias": torch.ones(4),
          "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_tensors_that_transformers_passes_over_are_carried_on_and_load_again(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = spoilt(tmp_path, lambda tensors: tensors.update(UNUSED))
    wanted = recipe(tmp_path, way)
    planned = plan(source, wanted)
    assert planned.warnings[0].startswith("Not used by the model as transformers loads it, and copied as they are: ")
    if way == "in memory":
        monkeypatch.setattr(quantize, "prepare", lambda *_: None)
    made = goldstick.quantize(source, wanted, output=tmp_path / "out")
    assert made.report.warnings[0] == planned.warnings[0]
    stored = open_tensors(tmp_path / "out")
    assert all(torch.equal(stored[name].read(), value) for name, value in UNUSED.items())
    assert set(json.loads((tmp_path / "out" / "goldstick.json").read_text())["unused"]) == set(UNUSED)
    loaded = goldstick.load(tmp_path / "out")
    inputs = sample_inputs(loaded)
    expected = answer(loaded, inputs)
    assert verify_checkpoint(tmp_path / "out")["passed"]
    assert not [found for found in examine(tmp_path / "out").findings if found.severity == "fault"]
    alone: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    torch.testing.assert_close(answer(alone, inputs), expected, rtol=1e-4, atol=1e-4)
    goldstick.export(tmp_path / "out", "native", output=tmp_path / "native")
    assert torch.equal(answer(goldstick.load(tmp_path / "native"), inputs), expected)
    assert all(torch.equal(open_tensors(tmp_path / "native")[name].read(), value) for name, value in UNUSED.items())


def test_with_the_proof_of_tensors_what_is_carried_on_loads_as_well(tmp_path: Path) -> None:
    source = spoilt(tmp_path, lambda tensors: tensors.update(UNUSED))
    goldstick.quantize(source, RTN, output=tmp_path / "out", proof="tensors")
    goldstick.load(tmp_path / "out")
    assert UNUSED.keys() <= open_tensors(tmp_path / "out").keys()


def test_a_checkpoint_with_tensors_that_its_manifest_does_not_name_is_refused_still(tmp_path: Path) -> None:
    source = spoilt(tmp_path, lambda tensors: tensors.update(UNUSED))
    goldstick.quantize(source, RTN, output=tmp_path / "out")
    manifest = tmp_path / "out" / "goldstick.json"
    held = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**held, "unused": ["stray"]}))
    with pytest.raises(CheckpointError, match="unexpected keys"):
        goldstick.load(tmp_path / "out")
    for wrong in ("stray", [1], {"stray": 1}, None):
        manifest.write_text(json.dumps({**held, "unused": wrong}))
        with pytest.raises(CheckpointError, match="names no list of 'unused' tensors"):
            goldstick.load(tmp_path / "out")


def swap(name: str, value: Tensor) -> Spoil:
    return lambda tensors: tensors.update({name: value})


MISFITS: dict[str, tuple[str, Spoil, str]] = {
    "matrix": ("llama_gqa", swap(f"{FIRST}.weight", torch.zeros(32, 64)), rf"{FIRST}.weight has the shape \(32, 64\) "
               r"in model.safetensors and \(64, 64\) in the model of its config"),
    "norm": ("llama_gqa", swap("model.norm.weight", torch.zeros(63)), r"norm.weight has the shape \(63,\).*\(64,\)"),
    "norm with a one": ("llama_gqa", swap("model.norm.weight", torch.zeros(1, 64)), r"\(1, 64\).*\(64,\)"),
    "no shape": ("llama_gqa", swap(f"{FIRST}.weight", torch.zeros(())), r"has the shape \(\)"),
    "embedding": ("llama_gqa", swap("model.embed_tokens.weight", torch.zeros(100, 64)), r"\(100, 64\).*\(128, 64\)"),
    "an expert": ("mixtral", swap("model.layers.0.block_sparse_moe.experts.1.w1.weight", torch.zeros(8, 64)),
                  r"experts.1.w1.weight has the shape \(8, 64\) in model.safetensors"),
    "turned experts": ("mixtral", lambda tensors: tensors.update(
        {name: value.T for name, value in tensors.items() if ".w2." in name}), r"w2.weight has the shape .* and \("),
    "missing": ("llama_gqa", lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"),
                "lacks the parameter 'model.layers.1.mlp.up_proj.weight'"),
    "missing expert": ("mixtral", lambda tensors: tensors.pop("model.layers.0.block_sparse_moe.experts.1.w1.weight"),
                       "experts"),
    "missing buffer": ("resnet", lambda tensors: tensors.pop(next(k for k in tensors if k.endswith("running_mean"))),
                       "lacks the parameter '.*running_mean'"),
    "twice": ("llama_gqa", swap("norm.weight", torch.zeros(64)), "model.norm.weight more than once: as .*norm.weight"),
    "a scale of another tool": ("llama_gqa", swap(f"{FIRST}.weight_scale", torch.ones(64)), "where readers look"),
    "codes": ("llama_gqa", swap(f"{FIRST}.weight", torch.zeros(64, 8, dtype=torch.int32)), "quantized already"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_make_up_the_model_is_refused_while_planning(case: str, tmp_path: Path) -> None:
    family, spoil, says = MISFITS[case]
    source = spoilt(tmp_path, spoil, family)
    with pytest.raises(SourceError, match=says):
        plan(source, RTN)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_is_refused_before_it_makes_anything(way: str, tmp_path: Path) -> None:
    source = spoilt(tmp_path, swap("model.norm.weight", torch.zeros(63)))
    with pytest.raises(SourceError, match="Fetch the checkpoint again"):
        goldstick.quantize(source, recipe(tmp_path, way), output=tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "text.txt"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_planned(family: str, tmp_path: Path) -> None:
    """Ties, experts, split and joined matrices: a sound checkpoint is never refused."""
    source = spoilt(tmp_path, lambda tensors: None, family)
    assert not plan(source, {"stages": [{"rtn": {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}]}).unused
