"""Weights that were 0 in the source are no remark: nothing was lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick.jobs.doctor.examine import examine
from tests.support.tiny_models import FAMILIES

pytestmark = pytest.mark.usefixtures("all_proofs_here")

LAYER = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def zeroed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with groups of weights that are 0, as pruned and trained ones have them, and a layer of nothing else."""
    torch.manual_seed(0)
    model = FAMILIES["llama_gqa"]()
    with torch.no_grad():
        model.get_parameter(LAYER)[:, :64] = 0
        model.get_parameter("model.layers.1.self_attn.o_proj.weight").zero_()
    directory = tmp_path_factory.mktemp("zeroed") / "model"
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("scheme", ["w4a16-g32", "w4a16-g32-asym", "fp8a16", "nvfp4a16", "mxfp4a16"])
def test_a_checkpoint_is_as_its_source_was(zeroed: Path, tmp_path: Path, scheme: str) -> None:
    made = tmp_path / "made"
    goldstick.quantize(zeroed, f"rtn-{scheme}", output=made, proof="tensors")
    assert [finding.check for finding in examine(made).findings] == []


def test_groups_that_lost_their_weights_are_still_found(zeroed: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    goldstick.quantize(zeroed, "rtn-w4a16-g32", output=made, proof="tensors")
    spoiled = Path(shutil.copytree(made, tmp_path / "spoiled"))
    tensors = load_file(spoiled / "model.safetensors")
    tensors[f"{LAYER}_packed"][0] = -2004318072  # eight codes of 8, the zero
    save_file(tensors, spoiled / "model.safetensors")
    (finding,) = (one for one in examine(spoiled).findings if one.check == "dead-groups")
    groups = tensors[f"{LAYER}_scale"]
    assert finding.where == (f"{LAYER}: {groups.shape[1] - 2} of {groups.numel()}",)
