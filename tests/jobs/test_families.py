"""The main job on every family of tiny models: from checkpoint to checkpoint, and nothing unaccounted for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.report import Report
from tests.support.proofs import FRESH, RECIPE, Job, answer
from tests.support.tiny_models import FAMILIES, sample_inputs

every_family = pytest.mark.parametrize("family", FAMILIES)

#: Families with layers that compressed-tensors' readers cannot quantize.
NATIVE = {"gpt2": "transposed", "vit": "convolution", "resnet": "convolution"}


@every_family
def test_a_reloaded_checkpoint_equals_the_model_quantized_in_memory(
    family: str, family_job: Callable[[str], Job]
) -> None:
    job = family_job(family)
    expected = answer(job.in_memory.model, job.inputs)
    assert torch.equal(job.reloaded_output(), expected)
    assert not torch.equal(expected, answer(job.model, job.inputs)), "nothing was quantized"


@every_family
def test_the_proof_in_the_manifest_found_no_difference(family: str, family_job: Callable[[str], Job]) -> None:
    directory = family_job(family).made.directory
    proof = json.loads((directory / "goldstick.json").read_text())["proof"]
    assert proof["method"] == "outputs"
    assert proof["passed"] is True
    assert proof["max_abs_difference"] == 0.0
    assert proof["largest_output"] > 0.1


@every_family
def test_the_report_says_where_transformers_alone_fails(family: str, family_job: Callable[[str], Job]) -> None:
    pytest.importorskip("compressed_tensors")
    job = family_job(family)
    report = Report.read(job.made.directory)
    told = [any("transformers alone" in one for one in made.warnings) for made in (report, job.in_memory.report)]
    fails = False
    if report.format == "compressed-tensors":
        try:
            type(job.model).from_pretrained(job.made.directory)
        except AttributeError:
            fails = True
    assert told == [fails, fails]


@every_family
def test_the_report_accounts_for_every_byte_of_the_float_model(family: str, family_job: Callable[[str], Job]) -> None:
    job = family_job(family)
    report = Report.read(job.made.directory)
    parameters = dict(job.model.named_parameters())
    state = job.model.state_dict()
    buffers = {name: value for name, value in job.model.named_buffers() if name in state}
    values = [*parameters.values(), *buffers.values()]
    assert report.size.bytes_before == sum(value.nbytes for value in values)
    assert {layer.name for layer in report.layers} >= set(parameters) | set(buffers)
    for layer in report.layers:
        assert layer.scheme or layer.reason, f"{layer.name} is neither quantized nor excused"


@every_family
def test_the_report_promises_the_bytes_that_lie_in_the_files(family: str, family_job: Callable[[str], Job]) -> None:
    job = family_job(family)
    report = Report.read(job.made.directory)
    tensors = open_tensors(job.made.directory)
    assert report.size.bytes_after == sum(info.nbytes for info in tensors.values())
    in_memory = job.in_memory.report
    assert in_memory.size == report.size
    assert [layer.scheme for layer in in_memory.layers] == [layer.scheme for layer in report.layers]


@every_family
def test_every_inner_matrix_is_quantized_and_nothing_else(family: str, family_job: Callable[[str], Job]) -> None:
    job = family_job(family)
    matrices = {
        name
        for name, value in job.model.named_parameters()
        if value.ndim >= 2 and not any(part in name for part in ("embed", "wte", "wpe", "shared.weight", "lm_head"))
    }
    # What stays: routers (parameters of modules that are no linears), heads and tables under other names, and the
    # patch embedding of ViT, which is a convolution and is quantized.
    stays = {
        "mixtral": ".gate.weight",
        "qwen3_moe": ".gate.weight",
        "deepseek_v3": ".gate.weight",
        "t5": "relative_attention_bias",
        "gpt_neox": "embed_out",
    }.get(family, "\0")
    quantized = {layer.name for layer in job.made.report.layers if layer.scheme}
    expected = {name for name in matrices if stays not in name}
    patches = {name for name in quantized if "patch_embeddings" in name or "embedder.convolution" in name}
    assert quantized - patches == expected - patches


@every_family
def test_the_format_is_compressed_tensors_wherever_its_readers_can_hold_the_result(
    family: str, family_job: Callable[[str], Job]
) -> None:
    report = family_job(family).made.report
    if family in NATIVE:
        assert report.format == "native"
        assert any(NATIVE[family] in warning for warning in report.warnings)
    else:
        assert report.format == "compressed-tensors"
        assert all("transformers alone" in warning for warning in report.warnings)


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "mixtral", "resnet", "t5"])
def test_a_model_quantized_in_memory_and_saved_loads_as_it_was(
    family: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if family != "mixtral":
        request.getfixturevalue("proof_here")
    model = FAMILIES[family]()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    result = goldstick.apply(model, RECIPE)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    directory = result.save(tmp_path / "saved")
    inputs = sample_inputs(model)
    assert torch.equal(answer(goldstick.load(directory), inputs), answer(result.model, inputs))
    stored = sum(info.nbytes for info in open_tensors(directory).values())
    assert Report.read(directory).size.bytes_after == stored


def test_saving_from_memory_and_streaming_write_the_same_tensors(
    tmp_path: Path, family_job: Callable[[str], Job], proof_here: None
) -> None:
    for family in ("llama_gqa", "mixtral", "gpt2"):
        job = family_job(family)
        saved = open_tensors(job.in_memory.save(tmp_path / family))
        streamed = open_tensors(job.made.directory)
        assert set(saved) == set(streamed)
        for name, info in streamed.items():
            assert torch.equal(saved[name].read(), info.read()), name


def test_the_families_with_a_fresh_proof_cover_both_formats() -> None:
    assert set(FRESH) <= set(FAMILIES)
    assert {family in NATIVE for family in FRESH} == {True, False}
