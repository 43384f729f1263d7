"""FP8, MX and NVFP4: rounded, saved, and read by goldstick and by plain transformers with compressed-tensors, equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

import goldstick
from goldstick.core.float_inputs import fake_quantize_float
from goldstick.core.scheme import NUMBER_FORMATS, Scheme
from goldstick.errors import FormatError, RecipeError
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.jobs.save import finish
from tests.support.proofs import prove_here

NAMES = [name for name in NUMBER_FORMATS if not Scheme.parse(name).weight.superblock]
STATIC = [name for name in NAMES if Scheme.parse(name).static_input]
IDS = torch.arange(32).reshape(2, 16)


def tiny(dtype: torch.dtype = torch.bfloat16, width: int = 128, inner: int = 256) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=width, intermediate_size=inner, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def batches() -> list[dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 64, (2, 32), generator=random)} for _ in range(4)]


LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
#: Seven schemes to a model, one for each of its layers.
MODELS = {
    "weights": ["fp8a16", "fp8a16-block", "mxfp8a16", "mxfp6a16", "mxfp4a16", "nvfp4a16", "w4afp8"],
    "inputs": ["fp8", "fp8-dynamic", "fp8-static", "fp8-block", "mxfp8", "mxfp4", "nvfp4"],
    "native": ["nf4a16", "iq4a16", "nvfp4", "mxfp8", "fp8", "fp8-block", "mxfp4afp8"],
}


def test_every_scheme_is_tried() -> None:
    assert {name for names in MODELS.values() for name in names} == set(NAMES)


@pytest.mark.parametrize("kind", MODELS)
def test_a_checkpoint_gives_the_same_wherever_it_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {f"*{layer}": name for layer, name in zip(LAYERS, MODELS[kind], strict=True)}
    stage = {"scheme": "fp8-dynamic", "overrides": overrides}
    data = batches() if set(MODELS[kind]) & set(STATIC) else None
    result = goldstick.apply(tiny(), {"stages": [{"rtn": stage}]}, data=data)
    result.save(tmp_path / "out")
    loaded = goldstick.load(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(loaded(IDS).logits, result.model(IDS).logits)
        monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
        ours = loaded(IDS).logits
        config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
        assert config["quant_method"] == ("goldstick" if kind == "native" else "compressed-tensors")
        if kind == "native":
            return
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").eval()(IDS).logits
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("granularity", ["tensor", "head"])
def test_a_cache_in_fp8_gives_the_same_in_plain_transformers(
    granularity: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)
    monkeypatch.setenv("GOLDSTICK_BACKEND", "reference")
    stages = [
        {"rtn": {"scheme": "fp8-dynamic"}},
        {"kv_cache": {"dtype": "fp8", "keys": granularity, "values": granularity}},
    ]
    result = goldstick.apply(tiny(torch.float32), {"stages": stages}, data=batches())
    result.save(tmp_path / "out")
    with torch.no_grad():
        ours = goldstick.load(tmp_path / "out")(IDS).logits
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").eval()(IDS).logits
        without = goldstick.apply(tiny(torch.float32), "rtn-fp8-dynamic").model(IDS).logits
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, without)


@pytest.mark.parametrize("name", ["nvfp4a16", "mxfp4a16", "mxfp8a16", "fp8-block", "nf4a16"])
def test_calibrated_methods_round_to_every_grid(name: str) -> None:
    model = tiny()
    losses = {}
    for method in ("rtn", "gptq", "descent"):
        result = goldstick.apply(model, f"{method}-{name}", data=None if method == "rtn" else batches())
        with torch.no_grad():
            losses[method] = float((result.model(IDS).logits - model(IDS).logits).float().norm())
        notes = [layer.notes for layer in result.report.layers if layer.scheme and method != "rtn"]
        assert all(note["output_error"] <= note["rtn_output_error"] for note in notes)
    assert max(losses["gptq"], losses["descent"]) < 1.15 * losses["rtn"]


@pytest.mark.parametrize("method", ["rtn", "imatrix", "gptq", "gptaq", "descent", "awq", "awq-gptq", "gptq-learn"])
def test_blocks_that_are_cut_off_at_the_edge_are_rounded_by_every_method(method: str) -> None:
    model = tiny(torch.float32, 96, 160)
    result = goldstick.apply(model, f"{method}-fp8a16-block", data=None if method == "rtn" else batches())
    with torch.no_grad():
        apart = (result.model(IDS).logits - model(IDS).logits).norm() / model(IDS).logits.norm()
    assert 0 < apart < 0.1
    assert {layer.algorithm for layer in result.report.layers if layer.scheme} <= {"rtn", "gptq", "descent", "awq"}


@pytest.mark.parametrize("method", ["rtn", "gptq", "descent"])
def test_an_element_that_no_scheme_names_needs_nothing_else(method: str, tmp_path: Path) -> None:
    scale = {"element": "e8m0", "granularity": "none"}
    weight = {"element": "e3m2", "bits": 6, "granularity": "group", "group_size": 32, "scale": scale}
    recipe = {"stages": [{method: {"scheme": {"weight": weight}}}]}
    result = goldstick.apply(tiny(), recipe, data=None if method == "rtn" else batches())
    result.save(tmp_path / "out")
    with torch.no_grad():
        assert torch.equal(goldstick.load(tmp_path / "out")(IDS).logits, result.model(IDS).logits)


FUSED = (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj"))


def test_layers_that_runtimes_fuse_share_the_scale_of_their_scales(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.model.layers[0].self_attn.k_proj.weight *= 7
    model.save_pretrained(tmp_path / "float")
    goldstick.quantize(tmp_path / "float", "rtn-nvfp4a16", output=tmp_path / "streamed", proof="tensors")
    stored = load_file(tmp_path / "streamed" / "model.safetensors")
    whole = goldstick.apply(model, "rtn-nvfp4a16").model
    solved = [goldstick.apply(model, f"{method}-nvfp4a16", data=batches()).model for method in ("gptq", "descent")]
    for fused in FUSED:
        layers = [f"model.layers.0.{name}" for name in fused]
        for made in (whole, *solved):
            assert len({float(made.get_submodule(layer).weight_global_scale) for layer in layers}) == 1, fused
        for layer in layers:
            tensor = whole.get_submodule(layer).quantized_tensor()
            for suffix, part in COMPRESSED_TENSORS.pack(tensor, Scheme.parse("nvfp4a16")).items():
                assert torch.equal(part.view(torch.uint8), stored[f"{layer}.weight{suffix}"].view(torch.uint8))


def test_sharing_a_scale_of_scales_changes_no_number() -> None:
    stage = {"scheme": "nvfp4a16", "range_search": "mse", "targets": {"include": ["*q_proj"]}}
    alone = goldstick.apply(tiny(), {"stages": [{"rtn": stage}]})
    model = tiny()
    together = goldstick.apply(model, "rtn-nvfp4a16")
    names = [f"model.layers.0.self_attn.{name}" for name in ("q_proj", "k_proj")]
    ours, other = (together.model.get_submodule(name) for name in names)
    assert torch.equal(ours.weight_global_scale, other.weight_global_scale)
    assert torch.equal(ours.dequantized(), alone.model.get_submodule(names[0]).dequantized())


@pytest.mark.parametrize("format", ["gptq", "awq", "gguf"])
def test_formats_of_integers_refuse_floats(format: str, tmp_path: Path) -> None:
    recipe = {"stages": [{"rtn": {"scheme": "nf4a16"}}], "export": {"format": format}}
    with pytest.raises(FormatError, match="nf4a16"):
        goldstick.apply(tiny(), recipe).save(tmp_path / "out")


@pytest.mark.parametrize("recipe", ["slb-nvfp4a16", "gptq-slb_finish-mxfp4a16", "hqq-nvfp4a16"])
def test_algorithms_of_integers_refuse_floats(recipe: str) -> None:
    with pytest.raises(RecipeError):
        goldstick.apply(tiny(), recipe, data=batches())


def test_a_number_format_is_cast_down_and_up_without_loss() -> None:
    model = goldstick.apply(tiny(torch.float32), "rtn-nvfp4", data=batches()).model
    layer = model.model.layers[0].mlp.up_proj
    before, divisor = layer.dequantized(), layer.weight_global_scale.clone()
    model.bfloat16().float()
    assert torch.equal(layer.dequantized(), before) and torch.equal(layer.weight_global_scale, divisor)
    assert layer.input_scale.dtype == torch.float32


def test_an_input_that_is_no_number_stays_none() -> None:
    grid = Scheme.parse("mxfp4").activation
    assert grid is not None
    x = torch.randn(2, 64)
    x[0, 3] = torch.nan
    found = fake_quantize_float(x, grid)
    assert bool(found[0, :32].isnan().all()) and bool(found[0, 32:].isfinite().all())
    assert bool(found[1].isfinite().all())
    assert fake_quantize_float(x[:0], grid).shape == (0, 64)
