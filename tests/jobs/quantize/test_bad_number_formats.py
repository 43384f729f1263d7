"""Sources of number formats that are no good, and schemes that do not fit: an error names the tensor and what to do."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import goldstick
from goldstick.errors import FormatError, GoldstickError, RecipeError
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here
from tests.support.quantized_sources import SOURCES
from tests.support.small_checkpoints import WEIGHTS, small_float

#: Checkpoints of compressed-tensors beside those of SOURCES.
WRITTEN = ("fp8-dynamic", "nvfp4a16", "mxfp4a16", "fp8-static")
AGAIN: dict[str, Any] = {"stages": [{"rtn": {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}]}
OUT, UP, DOWN = ("model.layers.0." + name for name in ("self_attn.o_proj", "mlp.up_proj", "mlp.experts.down_proj"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("made")
    for name, write in SOURCES.items():
        write(folder / name)
    source = small_float(folder / "float")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "prove", prove_here)
        for scheme in WRITTEN:
            ids = torch.randint(0, 40, (4, 24), generator=torch.Generator().manual_seed(1))
            save_file({"input_ids": ids}, folder / "rows.safetensors")
            recipe: dict[str, Any] = {"stages": [{"rtn": {"scheme": scheme}}]}
            if scheme == "fp8-static":
                recipe["calibration"] = {"dataset": str(folder / "rows.safetensors"), "samples": 4}
            goldstick.quantize(source, recipe, output=folder / scheme)
    return {name: folder / name for name in (*SOURCES, *WRITTEN, "float")}


def octet(value: int) -> Callable[[Tensor], None]:
    def change(tensor: Tensor) -> None:
        tensor.view(torch.uint8).flatten()[0] = value

    return change


def number(value: float) -> Callable[[Tensor], None]:
    def change(tensor: Tensor) -> None:
        tensor.view(-1)[0] = value

    return change


def spoiled(source: Path, target: Path, name: str, change: Callable[[Tensor], None] | None) -> Path:
    """A copy in which a tensor is changed, or (``None``) missing."""
    shutil.copytree(source, target)
    tensors = load_file(target / WEIGHTS)
    if change is None:
        del tensors[name]
    else:
        change(tensors[name])
    save_file(tensors, target / WEIGHTS, metadata={"format": "pt"})
    return target


NUMBERS, FETCH = "some are NaN or infinite", "Fetch the checkpoint again"
CASES: dict[str, tuple[str, str, Callable[[Tensor], None] | None, str, str]] = {
    # name: (checkpoint, tensor, change, the layer that the error names, what it says)
    "a NaN scale of an FP8 block": ("fp8", f"{OUT}.weight_scale_inv", number(math.nan), OUT, NUMBERS),
    "an infinite scale of an FP8 block": ("fp8", f"{OUT}.weight_scale_inv", number(math.inf), OUT, NUMBERS),
    "a scale of 0 of an FP8 block": ("fp8", f"{OUT}.weight_scale_inv", number(0.0), OUT, "scales are 0, which makes"),
    "a scale of 0 of a channel": ("fp8-dynamic", f"{UP}.weight_scale", number(0.0), UP, "scales are 0, which makes"),
    "a NaN scale of a channel": ("fp8-dynamic", f"{UP}.weight_scale", number(math.nan), UP, NUMBERS),
    "an infinite scale of a channel": ("fp8-dynamic", f"{UP}.weight_scale", number(math.inf), UP, NUMBERS),
    "a NaN scale of NVFP4": ("nvfp4a16", f"{UP}.weight_scale", octet(0x7F), UP, NUMBERS),
    "a NaN scale of scales": ("nvfp4a16", f"{UP}.weight_global_scale", number(math.nan), UP, "is a positive number"),
    "an infinite scale of scales": ("nvfp4a16", f"{UP}.weight_global_scale", number(math.inf), UP, "is inf; it is a"),
    "Model Optimizer's NaN scale": ("modelopt", f"{UP}.weight_scale", octet(0x7F), UP, NUMBERS),
    "Model Optimizer's scale of scales": ("modelopt", f"{UP}.weight_scale_2", number(math.nan), UP, "is nan; it is"),
    "e8m0 255 of GPT-OSS": ("mxfp4", f"{DOWN}_scales", octet(255), DOWN, "e8m0 code 255"),
    "e8m0 255": ("mxfp4a16", f"{UP}.weight_scale", octet(255), UP, "e8m0 code 255"),
    "a NaN code": ("fp8", f"{OUT}.weight", octet(0x7F), OUT, "FP8 codes are not all numbers"),
    "FP8 without its scales": ("fp8", f"{OUT}.weight_scale_inv", None, f"{OUT}.weight_scale_inv", FETCH),
    "FP8 by channel without them": ("fp8-dynamic", f"{UP}.weight_scale", None, f"{UP}.weight_scale", FETCH),
    "NVFP4 without them": ("modelopt", f"{UP}.weight_scale", None, f"{UP}.weight_scale", FETCH),
    "MXFP4 without them": ("mxfp4", f"{DOWN}_scales", None, f"{DOWN}_scales", FETCH),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("do", ["quantize", "export", "load"])
def test_what_is_no_good_is_named_before_anything_is_written(
    case: str, do: str, made: dict[str, Path], tmp_path: Path
) -> None:
    form, tensor, change, layer, words = CASES[case]
    source, output = spoiled(made[form], tmp_path / "source", tensor, change), tmp_path / "out"
    with pytest.raises(GoldstickError, match=re.escape(layer)) as caught:
        if do == "quantize":
            goldstick.quantize(source, AGAIN, output=output, proof="tensors")
        elif do == "export":
            goldstick.export(source, "native", output=output, proof="tensors")
        else:
            goldstick.load(source)
    assert words in str(caught.value)
    assert "again" in str(caught.value), "the remedy"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0])
def test_a_scale_of_inputs_that_is_no_number_is_named(value: float, made: dict[str, Path], tmp_path: Path) -> None:
    source = spoiled(made["fp8-static"], tmp_path / "source", f"{UP}.input_scale", number(value))
    with pytest.raises(GoldstickError, match=rf"{re.escape(UP)}\.input_scale is .* positive number\. Calibrate"):
        goldstick.load(source)


@pytest.mark.parametrize("scheme, size", [("mxfp4a16", 32), ("mxfp8", 32), ("nvfp4a16", 16), ("w4afp8", 128)])
def test_a_group_that_does_not_divide_is_named(scheme: str, size: int, tmp_path: Path) -> None:
    source = tmp_path / "float"
    config = LlamaConfig(
        vocab_size=64, hidden_size=72, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(source)
    with pytest.raises(RecipeError, match=rf"layers\.0\.\S+ \(72 inputs, groups of {size}\).*group-size-mismatch"):
        goldstick.quantize(source, {"stages": [{"rtn": {"scheme": scheme}}]}, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "scheme, form, words",
    [
        ("fp8-dynamic", "gptq", "its scheme is fp8-dynamic"),
        ("w4afp8", "awq", "rounded activations"),
        ("mxfp8", "gguf", "rounded activations"),
        ("mxfp4afp8", "mxfp4", "holds experts that are stored in one tensor"),
        ("fp8-dynamic", "fp8", "holds FP8 weights by block or tensor"),
        ("nvfp4", "modelopt", "nvfp4a16"),
    ],
)
def test_activations_that_a_format_cannot_hold_are_named(
    scheme: str, form: str, words: str, made: dict[str, Path], tmp_path: Path
) -> None:
    recipe = {"stages": [{"rtn": {"scheme": scheme, "group_size_mismatch": "channel"}}], "export": {"format": form}}
    with pytest.raises(FormatError, match=words) as caught:
        goldstick.quantize(made["float"], recipe, output=tmp_path / "out")
    assert "model.layers.0." in str(caught.value) and "Use --format native, or change the recipe" in str(caught.value)
    assert not (tmp_path / "out").exists()
