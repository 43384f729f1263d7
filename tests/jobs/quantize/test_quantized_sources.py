"""Checkpoints that are quantized already, quantized again: what their codes stand for is rounded to other codes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import goldstick
from goldstick.errors import FormatError
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from goldstick.jobs.load.load import load_float
from goldstick.jobs.save import finish
from goldstick.recipes import Recipe
from goldstick.recipes.needs_data import needs_data
from goldstick.report import Report
from tests.support.proofs import answer, prove_here
from tests.support.quantized_sources import SOURCES, llama
from tests.support.tiny_mixtures import MIXTURES
from tests.support.tiny_tokenizer import write_tokenizer

IDS = torch.arange(16)[None]
BATCHES = [{"input_ids": torch.randint(0, 60, (2, 24), generator=torch.Generator().manual_seed(1))} for _ in range(4)]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("published")
    for name, write in SOURCES.items():
        write(folder / name)
    return {name: folder / name for name in SOURCES}


@pytest.fixture(autouse=True)
def proof_without_a_process(monkeypatch: pytest.MonkeyPatch, reference_backend: None) -> None:
    monkeypatch.setattr(finish, "prove", prove_here)


@pytest.mark.parametrize("scheme", ["w4a16-g32", "nvfp4a16"])
@pytest.mark.parametrize("name", SOURCES)
def test_it_becomes_what_its_dequantized_model_becomes(
    name: str, scheme: str, published: dict[str, Path], tmp_path: Path
) -> None:
    recipe = {"stages": [{"rtn": {"scheme": scheme, "group_size_mismatch": "channel"}}]}
    done = goldstick.quantize(published[name], recipe, output=tmp_path / "again")
    expected = goldstick.apply(load_float(published[name]), recipe).model
    with torch.no_grad():
        assert torch.equal(goldstick.load(tmp_path / "again")(IDS).logits, expected(IDS).logits)
    report = Report.read(tmp_path / "again")
    assert done.report.proof["passed"]
    assert report.warnings[0].startswith(f"Quantized from {name} (")
    manifest = json.loads((tmp_path / "again" / "goldstick.json").read_text())
    assert manifest["source"]["quantized_as"] == open_source(published[name]).quantized_as
    stored, copied = load_file(published[name] / "model.safetensors"), load_file(tmp_path / "again/model.safetensors")
    kept = [tensor for tensor in stored if "norm" in tensor or "bias" in tensor]
    assert all(torch.equal(stored[tensor], copied[tensor]) for tensor in kept), "what stays float is copied"
    assert all(finding.severity == "remark" for finding in examine(tmp_path / "again").findings)


@pytest.mark.parametrize("name", ["fp8", "mxfp4"])
def test_it_is_evaluated_as_its_dequantized_model_is(name: str, published: dict[str, Path], tmp_path: Path) -> None:
    source, text = tmp_path / "source", tmp_path / "text.txt"
    shutil.copytree(published[name], source)
    write_tokenizer(source)
    text.write_text("the cat sat on the mat and sang. " * 40)
    found = goldstick.evaluate(source, [f"text:{text}"], limit=4).results
    expected = goldstick.evaluate(load_float(source), [f"text:{text}"], tokenizer=source, limit=4).results
    (ours,), (theirs,) = found.values(), expected.values()
    assert ours.metrics["perplexity"] == pytest.approx(theirs.metrics["perplexity"], rel=2e-3)


def test_it_is_calibrated_block_by_block(published: dict[str, Path], tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"stages": [{"gptq": {"scheme": "w4a16-g32", "group_size_mismatch": "channel"}}]}
    save_file({"input_ids": torch.cat([batch["input_ids"] for batch in BATCHES])}, tmp_path / "rows.safetensors")
    calibration = {"dataset": str(tmp_path / "rows.safetensors"), "samples": 8}
    goldstick.quantize(published["modelopt"], recipe | {"calibration": calibration}, output=tmp_path / "again")
    expected = goldstick.apply(load_float(published["modelopt"]), recipe, data=BATCHES).model
    with torch.no_grad():
        assert torch.equal(goldstick.load(tmp_path / "again")(IDS).logits, expected(IDS).logits)


def test_what_the_recipe_leaves_out_is_stored_dequantized(published: dict[str, Path], tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"stages": [{"rtn": {"scheme": "w8a16", "targets": {"exclude": ["*self_attn*"]}}}]}
    goldstick.quantize(published["fp8"], recipe, output=tmp_path / "again")
    tensors, source = load_file(tmp_path / "again" / "model.safetensors"), open_source(published["fp8"]).tensors
    name = "model.layers.0.self_attn.o_proj.weight"
    assert torch.equal(tensors[name], source[name].read())
    assert f"{name}_scale_inv" not in tensors
    ignored = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]["ignore"]
    beyond = "model.layers.61.mlp.up_proj"  # in a block that transformers leaves out, and others do not
    assert beyond in ignored and torch.equal(tensors[f"{beyond}.weight"], source[f"{beyond}.weight"].read())


@pytest.mark.parametrize("name, into", [("modelopt", "compressed-tensors"), ("fp8", "native"), ("mxfp4", "native")])
def test_it_is_exported_without_a_change_of_its_numbers(
    name: str, into: str, published: dict[str, Path], tmp_path: Path
) -> None:
    goldstick.export(published[name], into, output=tmp_path / "out", proof="tensors")
    numbers = open_source(published[name]).tensors
    for tensor, info in open_source(tmp_path / "out").tensors.items():
        if ".61." in tensor:  # of no part of the model, and copied byte for byte
            continue
        assert torch.equal(info.read(), numbers[tensor].read()), tensor


@pytest.mark.parametrize(
    "form, scheme, make",
    [
        ("fp8", "fp8-block", llama),
        ("fp8", "fp8", llama),
        ("modelopt", "nvfp4a16", llama),
        ("modelopt", "fp8-dynamic", llama),
        ("mxfp4", "mxfp4a16", MIXTURES["gpt_oss"]),
    ],
)
def test_goldstick_writes_it_too(form: str, scheme: str, make: Callable[[], Any], tmp_path: Path) -> None:
    targets = {"include": ["*experts*"]} if form == "mxfp4" else {}
    stage = {"scheme": scheme, "targets": targets, "group_size_mismatch": "skip", "range_search": "mse"}
    recipe = {"stages": [{"rtn": stage}], "export": {"format": form}}
    data = BATCHES if needs_data(Recipe.load(recipe).stages) else None
    make().to(torch.bfloat16).save_pretrained(tmp_path / "float")
    result = goldstick.apply(load_float(tmp_path / "float"), recipe, data=data)
    result.save(tmp_path / "out")
    assert open_source(tmp_path / "out").quantized_as == f"{form} ({scheme})"
    found, expected = (answer(model, {"input_ids": IDS}) for model in (goldstick.load(tmp_path / "out"), result.model))
    assert torch.equal(found, expected)
    assert examine(tmp_path / "out").healthy


def test_a_scale_of_scales_whose_inverse_does_not_give_it_back_is_refused(tmp_path: Path) -> None:
    stage = {"scheme": "nvfp4a16", "range_search": "minmax"}
    recipe = {"stages": [{"rtn": stage}], "export": {"format": "modelopt"}}
    with pytest.raises(FormatError, match=r"does not give it back in float32\. Powers of two do"):
        goldstick.apply(llama(), recipe).save(tmp_path / "out")
    with pytest.raises(FormatError, match="goldstick writes nvfp4a16, fp8, fp8-dynamic as modelopt"):
        goldstick.apply(llama(), {"stages": [{"rtn": {"scheme": "mxfp8a16"}}], "export": {"format": "modelopt"}})


@pytest.mark.parametrize("name", SOURCES)
def test_the_doctor_finds_nothing_wrong_with_it(name: str, published: dict[str, Path]) -> None:
    found = examine(published[name])
    assert (found.format, found.findings) == (name, ())


def test_a_nan_among_its_fp8_codes_is_found(published: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(published["fp8"], tmp_path / "nan")
    file = tmp_path / "nan" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.o_proj.weight"].view(torch.uint8)[0, 0] = 0x7F
    save_file(tensors, file)
    assert any("some are NaN" in where for finding in examine(tmp_path / "nan").findings for where in finding.where)
