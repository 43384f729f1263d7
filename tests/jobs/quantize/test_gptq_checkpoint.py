"""GPTQ from a checkpoint to a checkpoint: calibrated with its own tokenizer, proven, and better than rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import goldstick
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import DataError
from goldstick.jobs.verify.verify import verify_checkpoint
from goldstick.report import Report
from tests.support.proofs import answer
from tests.support.tiny_models import FAMILIES, sample_inputs
from tests.support.tiny_tokenizer import write_tokenizer
from tests.support.words import goldstick_ids

pytestmark = pytest.mark.usefixtures("reference_backend")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a tokenizer."""
    directory = tmp_path_factory.mktemp("llama")
    FAMILIES["llama_gqa"]().save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def recipe(text: Path | str, **calibration: Any) -> dict[str, Any]:
    return {
        "stages": [{"gptq": {"scheme": "w4a16-g32"}}],
        "calibration": {"dataset": str(text), "samples": 12, "seq_len": 64, **calibration},
    }


@pytest.mark.usefixtures("proof_here")
def test_a_calibrated_checkpoint_is_proven_verified_and_loads_as_it_was_made(
    source: Path, text: Path, tmp_path: Path
) -> None:
    made = goldstick.quantize(source, recipe(text), output=tmp_path / "out", proof="outputs")
    assert made.report.proof["method"] == "outputs"
    assert made.report.proof["max_abs_difference"] == 0.0
    assert str(verify_checkpoint(made.directory)["proof"]).startswith("outputs are equal to the bit")  # a fresh process
    first, second = (goldstick.load(made.directory) for _ in range(2))
    inputs = sample_inputs(FAMILIES["llama_gqa"]())
    assert torch.isfinite(answer(first, inputs)).all()
    assert torch.equal(answer(first, inputs), answer(second, inputs))
    ids = torch.tensor(goldstick_ids(source, text))
    in_memory = goldstick.apply(FAMILIES["llama_gqa"](), recipe(text), data=list(ids.split(32)))
    assert torch.equal(answer(in_memory.model, inputs), answer(first, inputs))


@pytest.mark.usefixtures("proof_here")
def test_rounding_with_a_static_input_is_calibrated_and_proven(source: Path, text: Path, tmp_path: Path) -> None:
    wanted = recipe(text) | {"stages": [{"rtn": {"scheme": "w8a8-static"}}]}
    made = goldstick.quantize(source, wanted, output=tmp_path / "out")
    assert made.report.proof["method"] == "outputs"
    assert made.report.proof["max_abs_difference"] == 0.0
    assert made.report.calibration["tokens"] == 768
    assert made.report.size.bytes_after == sum(info.nbytes for info in open_tensors(made.directory).values())


@pytest.mark.usefixtures("proof_here")
def test_the_report_holds_the_notes_of_each_layer_and_the_audit_of_the_data(
    source: Path, text: Path, tmp_path: Path
) -> None:
    directory = goldstick.quantize(source, recipe(text), output=tmp_path / "out").directory
    written = json.loads((directory / "report.json").read_text())
    report = Report.read(directory)
    assert written["calibration"] == report.calibration
    audit = report.calibration
    assert (audit["dataset"], audit["samples"], audit["seq_len"], audit["tokens"]) == (text.name, 12, 64, 768)
    assert audit["windows_available"] == len(text.read_text()) // 64
    assert audit["distinct_tokens"] == len(set(text.read_text()))
    quantized = [layer for layer in report.layers if layer.scheme]
    assert len(quantized) == 14
    for layer in quantized:
        assert layer.algorithm == "gptq"
        assert layer.notes["tokens"] == 768
        assert layer.notes["output_error"] <= layer.notes["rtn_output_error"]


@pytest.mark.usefixtures("proof_here")
def test_the_same_seed_gives_the_same_files(source: Path, text: Path, tmp_path: Path) -> None:
    def weights(name: str, seed: int) -> bytes:
        directory = goldstick.quantize(source, recipe(text, seed=seed), output=tmp_path / name).directory
        return (directory / "model.safetensors").read_bytes()

    first = weights("one", 0)
    assert weights("two", 0) == first
    assert weights("other", 1) != first


@pytest.mark.usefixtures("proof_here")
def test_windows_are_no_longer_than_the_context(source: Path, text: Path, tmp_path: Path) -> None:
    made = goldstick.quantize(source, recipe(text, seq_len=2048), output=tmp_path / "out")
    assert made.report.calibration["seq_len"] == 128


def test_too_little_text_leaves_nothing_behind(source: Path, text: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gives \d+ windows of 64 tokens, and 5000 are asked for: use samples: "):
        goldstick.quantize(source, recipe(text, samples=5000), output=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.data
@pytest.mark.usefixtures("proof_here")
def test_gptq_is_better_than_rounding_on_a_trained_model(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "stories260k"

    def perplexity(algorithm: str) -> float:
        made = goldstick.quantize(
            source,
            {
                "stages": [{algorithm: {"scheme": "w3a16-channel", "range_search": "mse"}}],
                "calibration": {"dataset": "tinystories", "samples": 32, "seq_len": 256},
            },
            output=tmp_path / algorithm,
            data_dir=shared_data,
        )
        found = goldstick.evaluate(made.directory, ["tinystories"], data_dir=shared_data, limit=40).to_dict()
        value: float = found["tasks"]["tinystories"]["metrics"]["perplexity"]
        return value

    rounded, calibrated = perplexity("rtn"), perplexity("gptq")
    assert calibrated < rounded
