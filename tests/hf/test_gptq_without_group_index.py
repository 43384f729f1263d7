"""GPTQ files whose writer left out ``g_idx``: groups are consecutive inputs, where the config promises it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.errors import FormatError
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("transformers_as_it_was", "proof_here")
UP = "model.layers.0.mlp.up_proj"


def without(name: str, folder: Path, ending: str) -> Path:
    """A checkpoint without the tensors of an ending."""
    shutil.copytree(FOLDER / name, folder, ignore=shutil.ignore_patterns("answer.safetensors"))
    file = folder / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if not name.endswith(ending)}
    save_file(kept, file, metadata={"format": "pt"})
    return folder


def logits(directory: Path) -> Tensor:
    with torch.inference_mode():
        found: Tensor = goldstick.load(directory)(input_ids=torch.arange(16)[None]).logits
    return found


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "gptqmodel-gptq-v2-asymmetric"])
def test_they_are_loaded_examined_exported_and_quantized_again(name: str, tmp_path: Path) -> None:
    there, known = without(name, tmp_path / "without", ".g_idx"), logits(FOLDER / name)
    assert torch.equal(logits(there), known)
    assert api.doctor(there).findings == ()
    goldstick.export(there, format="native", output=tmp_path / "native")
    assert torch.equal(logits(tmp_path / "native"), known)
    recipe = {"stages": [{"rtn": {"scheme": "w8a16-g32"}}]}
    again = [api.quantize(source, recipe, output=tmp_path / source.parent.name / "again").directory
             for source in (there, without(name, tmp_path / "with" / "g_idx", "nothing"))]  # fmt: skip
    assert torch.equal(*map(logits, again))


def test_transformers_is_told_where_to_load_them(tmp_path: Path) -> None:
    goldstick.register("gptq")
    there = without("gptqmodel-gptq", tmp_path / "without", ".g_idx")
    with pytest.raises(FormatError, match=r"g_idx was left out by the writer of .* Load the .* with goldstick\.l"):
        AutoModelForCausalLM.from_pretrained(there)


def test_where_groups_are_scattered_or_others_have_one_it_is_missing(tmp_path: Path) -> None:
    one = without("gptqmodel-gptq", tmp_path / "one", f"{UP}.g_idx")
    with pytest.raises(FormatError, match=rf"{UP} lacks its g_idx, and other layers have one\. Fetch"):
        goldstick.load(one)
    there = without("gptqmodel-act-order", tmp_path / "all", ".g_idx")
    with pytest.raises(FormatError, match=r"lacks its g_idx, and its config says desc_act, so that groups take"):
        goldstick.load(there)
    change_json(there / "config.json", lambda config: config["quantization_config"].update(desc_act=False))
    goldstick.load(there)  # which is told otherwise
