"""Rotation and KV cache from a recipe to a proven checkpoint, alone and with stages that round."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import goldstick
from goldstick.checkpoint.kv_cache import KV_SIDECAR
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import RecipeError, StructureError, UsageError
from goldstick.hf.cache import quantized_cache_of
from goldstick.jobs.inspect.inspect import read_report
from goldstick.jobs.plan.plan import make_plan
from goldstick.recipes import Recipe
from tests.support.proofs import answer
from tests.support.recipes import DYNAMIC_CACHE, INT4, recipe
from tests.support.tiny_models import FAMILIES, sample_inputs

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend")


def relative(output: Tensor, reference: Tensor) -> float:
    return float((output - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("stages", "label"),
    [
        (({"gptq": INT4}, "kv_cache"), "kv8-channel-head"),
        (({"rtn": {"scheme": "w8a8-dynamic"}}, DYNAMIC_CACHE), "kv8-dynamic"),
        (("kv_cache",), "kv8-channel-head"),
        (({"rtn": INT4}, {"kv_cache": {"keys": "tensor", "values": "tensor"}}), "kv8-tensor-tensor"),
    ],
    ids=["gptq-static", "w8a8-dynamic", "static-alone", "rtn-by-tensor"],
)
def test_a_checkpoint_with_a_quantized_cache_runs_as_it_was_proven(
    sources: Path, tmp_path: Path, stages: tuple[Any, ...], label: str
) -> None:
    made = goldstick.quantize(sources / "llama_gqa", recipe(sources, *stages), output=tmp_path / "out")
    assert made.report.proof["max_abs_difference"] == 0.0
    assert made.report.proof["perplexity_expected"] > 1
    assert made.report.kv_cache == read_report(made.directory).kv_cache == {"scheme": label}
    assert json.loads((made.directory / "goldstick.json").read_text())["kv_cache"] == label
    model: Any = goldstick.load(made.directory)
    settings = quantized_cache_of(model)
    assert settings is not None
    assert settings.scheme.label == label
    assert len(settings.scales) == (0 if "dynamic" in label else 2)
    ids = torch.tensor([[5, 6, 7, 8]])
    assert model.generate(ids, max_new_tokens=3, min_new_tokens=3, do_sample=False).shape == (1, 7)


def test_a_quantized_cache_changes_what_the_model_gives_and_not_by_much(sources: Path, tmp_path: Path) -> None:
    made = goldstick.quantize(sources / "llama_gqa", recipe(sources, DYNAMIC_CACHE), output=tmp_path / "out")
    assert (made.directory / KV_SIDECAR).is_file()
    model, inputs = FAMILIES["llama_gqa"](), sample_inputs(FAMILIES["llama_gqa"]())
    distance = relative(answer(goldstick.load(made.directory), inputs), answer(model, inputs))
    assert 0 < distance < 0.05
    assert set(open_tensors(made.directory)) == set(open_tensors(sources / "llama_gqa"))


def test_static_scales_cover_what_the_rounded_model_keeps(sources: Path, tmp_path: Path) -> None:
    """The keys and values that calibration notes are those of the rounded layers, not those of the float ones."""
    model, ids = FAMILIES["llama_gqa"](), torch.randint(3, 128, (4, 16))
    wanted = {"stages": [{"rtn": {"scheme": "w2a16-g32"}}, {"kv_cache": {"values": "channel"}}]}
    made: Any = goldstick.apply(model, wanted, data=[ids]).model
    settings = quantized_cache_of(made)
    assert settings is not None
    bare = goldstick.apply(model, {"stages": wanted["stages"][:1]}).model
    with torch.no_grad():
        cache = bare(ids).past_key_values
    for layer, scales in settings.scales.items():
        seen = cache.layers[layer].values.abs().amax(dim=(0, 2))
        torch.testing.assert_close(127 * scales.values, seen, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("family", ["llama_gqa", "opt"])
@pytest.mark.parametrize(
    "rounding", [(), ({"gptq": INT4},), ({"rtn": {"scheme": "w8a16"}},)], ids=["alone", "gptq", "rtn"]
)
def test_a_rotated_checkpoint_is_proven(family: str, rounding: tuple[Any, ...], sources: Path, tmp_path: Path) -> None:
    made = goldstick.quantize(sources / family, recipe(sources, "rotate", *rounding), output=tmp_path / "out")
    report = read_report(made.directory)
    assert report.proof["max_abs_difference"] == 0.0
    assert report.rotation["residual_channels"] == 64
    assert report.rotation["error_of_the_whole_model"] < 1e-8
    assert report.rotation["untied"] == (["lm_head.weight"] if family == "opt" else [])
    assert report.size.bytes_after == sum(info.nbytes for info in open_tensors(made.directory).values())
    config = json.loads((made.directory / "config.json").read_text())
    assert not config.get("tie_word_embeddings", False)
    assert ("quantization_config" in config) == bool(rounding), "what is only rotated is a float checkpoint"
    model, inputs = FAMILIES[family](), sample_inputs(FAMILIES[family]())
    found = goldstick.load(made.directory)
    limit = {"": 1e-5, "rtn": 0.05, "gptq": 0.9}["".join(name for stage in rounding for name in stage)]
    assert relative(answer(found, inputs), answer(model, inputs)) < limit
    assert not torch.equal(found.state_dict()["lm_head.weight"], model.state_dict()["lm_head.weight"])


def test_a_rotated_head_may_be_rounded_though_it_was_tied(sources: Path, tmp_path: Path) -> None:
    everything = {"rtn": {"scheme": "w8a16", "targets": {"include": ["*", "lm_head", "*embed_tokens"]}, "tie": "untie"}}
    made = goldstick.quantize(sources / "opt", recipe(sources, "rotate", everything), output=tmp_path / "out")
    assert made.report.proof["max_abs_difference"] == 0.0
    schemes = {layer.name: layer.scheme for layer in made.report.layers}
    assert schemes["lm_head.weight"] == schemes["model.decoder.embed_tokens.weight"] == "w8a16-channel"


@pytest.mark.parametrize("family", ["llama_gqa", "opt"])
def test_rotated_and_cached_in_memory_is_saved_and_read_back(family: str, tmp_path: Path) -> None:
    model = FAMILIES[family]()
    before = copy.deepcopy(model.state_dict())
    ids = torch.randint(3, 128, (4, 16))
    stages = ["rotate", {"gptq": INT4}, "kv_cache"]
    result = goldstick.apply(model, {"stages": stages}, data=[ids])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert result.report.rotation["untied"] == (["lm_head.weight"] if family == "opt" else [])
    assert result.report.kv_cache == {"scheme": "kv8-channel-head"}
    directory = result.save(tmp_path / "out")
    proof = read_report(directory).proof
    assert proof["passed"]
    assert proof["max_abs_difference"] == 0.0
    inputs = sample_inputs(model)
    assert torch.equal(answer(goldstick.load(directory), inputs), answer(result.model, inputs))


@pytest.mark.parametrize(
    ("family", "stage", "complaint"),
    [
        ("gemma2", "rotate", "cannot be rotated.*norm after a layer"),
        ("bert", DYNAMIC_CACHE, "has no decoder with a KV cache; leave the kv_cache stage out"),
    ],
    ids=["gemma2-rotate", "bert-cache"],
)
def test_what_a_model_does_not_allow_is_said_before_weights_are_read(
    family: str, stage: Any, complaint: str, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goldstick.checkpoint.safetensors_file.TensorInfo.read", lambda self: pytest.fail("a weight"))
    with pytest.raises(StructureError, match=complaint):
        make_plan(sources / family, Recipe.load(recipe(sources, stage)))
    with pytest.raises(StructureError, match=complaint):
        goldstick.apply(FAMILIES[family](), {"stages": [stage]})


def test_a_plan_says_what_is_turned_and_how_it_will_be_done(sources: Path) -> None:
    plan = make_plan(sources / "opt", Recipe.load(recipe(sources, "rotate", {"rtn": INT4}, "kv_cache")))
    assert not plan.streams
    assert plan.by_blocks
    assert plan.rotation is not None
    assert plan.rotation.plan.unties == ("lm_head.weight",)
    assert "lm_head.weight" in {tensor.name for tensor in plan.tensors}
    assert not any("whole model" in warning for warning in plan.warnings)
    assert make_plan(sources / "opt", Recipe.load(recipe(sources, "rotate"))).by_blocks
    assert make_plan(sources / "opt", Recipe.load(recipe(sources, {"rtn": INT4}, DYNAMIC_CACHE))).streams


def test_a_static_cache_without_data_and_a_dynamic_one_with_data_are_refused() -> None:
    model = FAMILIES["llama_gqa"]()
    with pytest.raises(RecipeError, match=r"kv_cache looks at data, and there are none"):
        goldstick.apply(model, {"stages": ["kv_cache"]})
    with pytest.raises(UsageError, match="None of the recipe's algorithms looks at data"):
        goldstick.apply(model, {"stages": [DYNAMIC_CACHE]}, data=[torch.ones(1, 4, dtype=torch.long)])


def test_a_plain_module_says_what_it_lacks_for_a_rotation() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(StructureError, match=r"no transformers model.*give data="):
        goldstick.apply(model, {"stages": ["rotate"]})
