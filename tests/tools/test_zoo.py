"""The zoo's fast part: what ran the last time runs now; and the zoo sees what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    Dinov2Config,
    DPTConfig,
    EfficientNetConfig,
    LlamaConfig,
    Qwen2VLConfig,
    RTDetrConfig,
    SwinConfig,
)

import goldstick
from tests.support.proofs import RECIPE
from tests.support.tiny_models import FAMILIES, sample_inputs
from tools.zoo import herd
from tools.zoo.__main__ import RESULTS
from tools.zoo.build import NotBuilt, build
from tools.zoo.catalogue import TABLES, Architecture, architectures
from tools.zoo.meaning import dequantized_twin, layers_apart, packed
from tools.zoo.outputs import difference, outputs_of
from tools.zoo.shrink import VARIANTS, shrunk
from tools.zoo.stages import CLOSE, LAYERS_CLOSE, QUICK
from tools.zoo.table import MARK, write_table

ROOT = Path(__file__).parents[2]


def run_zoo(out: Path, *words: str) -> dict[str, Any]:
    """What the tool writes, in a process of its own."""
    command = [sys.executable, "-m", "tools.zoo", *words, "--processes", "2", "--out", str(out)]
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True,
                           text=True, timeout=600, check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.slow
def test_what_passed_the_last_time_passes_now(tmp_path: Path) -> None:
    found = run_zoo(tmp_path / "zoo.json", "--quick")["architectures"]
    known = json.loads(RESULTS.read_text())["architectures"]
    lost = {
        name: record.get("failures")
        for name, record in found.items()
        if set(known.get(name, {"passed": []})["passed"]) & set(QUICK) - set(record["passed"])
    }
    assert lost == {}
    assert sum("meaning" in record["passed"] for record in found.values()) >= 30
    assert len({record["kind"] for record in found.values()} & set(TABLES)) >= 8


def test_a_process_that_takes_too_long_is_ended_and_counted_as_a_fault(tmp_path: Path) -> None:
    found = run_zoo(tmp_path / "zoo.json", "BertForMaskedLM", "--seconds", "0.01")
    failures = found["architectures"]["BertForMaskedLM"]["failures"]
    assert failures == {"process": {"class": "fault", "error": "not done within 0 seconds"}}


def test_what_was_late_is_run_again_alone_with_more_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late_at_first(architecture: Architecture, *_: Any) -> dict[str, Any]:
        seen = tmp_path / architecture.name
        if not seen.exists():
            seen.touch()
            time.sleep(600)
        return {"passed": ["float"], "failures": {}}

    monkeypatch.setattr(herd, "live", late_at_first)
    told: list[str] = []
    chosen = architectures(["LlamaForCausalLM", "BertForMaskedLM"])
    found = herd.run(chosen, ("float",), 2, seconds=3, done=lambda name, _: told.append(name))
    assert sorted(told) == sorted(found) == ["BertForMaskedLM", "LlamaForCausalLM"]
    assert all(record["passed"] == ["float"] for record in found.values())


def test_every_class_stands_under_one_kind_with_a_type_of_config_of_its_own() -> None:
    everything = architectures()
    assert len({one.model for one in everything}) == len(everything) > 500
    configs = {one.model: one.config for one in everything}
    assert (configs["LlamaForCausalLM"], configs["BertForMaskedLM"]) == ("llama", "bert")
    with pytest.raises(ValueError, match="transformers has no Nonsense"):
        architectures(["llama", "Nonsense"])


def test_classes_that_are_not_there_or_have_no_forward_are_not_built() -> None:
    for name, why in (("BarkModel", "no forward"), ("VoxtralRealtimeTextModel", "has none")):
        with pytest.raises(NotBuilt, match=why):
            build(*architectures([name]))


def test_settings_shrink_by_what_they_are_called_in_nested_configs_too() -> None:
    llama = shrunk(LlamaConfig(), VARIANTS[0])
    assert (llama.hidden_size, llama.num_hidden_layers, llama.num_attention_heads, llama.vocab_size) == (64, 2, 4, 256)
    assert shrunk(BertConfig(), VARIANTS[0]).intermediate_size == 64
    both = shrunk(Qwen2VLConfig(), VARIANTS[0])
    assert (both.text_config.hidden_size, both.vision_config.embed_dim) == (64, 64)
    assert both.image_token_id < both.text_config.vocab_size
    swin = shrunk(SwinConfig(), VARIANTS[0])
    assert (swin.embed_dim, list(swin.depths), list(swin.num_heads)) == (32, [2, 2, 2, 2], [2, 2, 2, 2])


def test_backbones_still_give_the_layers_that_are_asked_for() -> None:
    detector = shrunk(RTDetrConfig(), VARIANTS[0])
    assert detector.num_queries == 8 and detector.backbone_config.out_features == ["stage2", "stage3", "stage4"]
    four = next(sizes for sizes in VARIANTS if sizes.layers == 4)
    assert shrunk(Dinov2Config(out_features=["stage6", "stage12"]), four).out_features == ["stage3", "stage4"]
    assert list(shrunk(DPTConfig(), four).backbone_out_indices) == [0, 1, 2, 3]


def test_widths_follow_the_factor_that_makes_layers_wider() -> None:
    small = shrunk(EfficientNetConfig(), VARIANTS[0])
    assert small.width_coefficient == 0.25 and small.hidden_dim == 320


@pytest.mark.parametrize("family", ["llama_gqa", "gpt2", "mixtral", "resnet"])
def test_a_sound_model_means_what_its_twin_computes_and_a_spoilt_one_does_not(family: str) -> None:
    model = FAMILIES[family]()
    quantized = goldstick.apply(model, RECIPE).model
    inputs = sample_inputs(model)
    twin = dequantized_twin(model, quantized)
    expected = outputs_of(twin, inputs)
    assert difference(outputs_of(quantized, inputs), expected) <= CLOSE
    assert difference(outputs_of(model, inputs), expected) > CLOSE
    spoilt = packed(quantized)
    path = next(path for path, layer in spoilt.items() if isinstance(getattr(layer, "bias", None), nn.Parameter)
                or family in ("llama_gqa", "mixtral"))  # fmt: skip
    quantized.get_submodule(path).register_forward_hook(lambda module, given, made: made * 1.01)
    assert difference(outputs_of(quantized, inputs), expected) > CLOSE
    apart, where = layers_apart(twin, quantized, inputs)
    assert apart > LAYERS_CLOSE
    assert where == path


def test_outputs_that_are_no_numbers_differ_from_numbers() -> None:
    number, none = {"x": torch.ones(2)}, {"x": torch.tensor([1.0, float("nan")])}
    assert difference(number, number) == difference(none, none) == 0.0
    assert difference(none, number) == difference({}, number) == float("inf")


def test_the_page_counts_by_kind_and_says_why(tmp_path: Path) -> None:
    page = tmp_path / "zoo.md"
    page.write_text(f"# Zoo\n\n{MARK}\n\nold\n")
    failures = {"rtn": {"class": "fault", "error": "KeyError: a|b"}}
    record = {"kind": "time series", "config": "x", "built": True, "passed": ["float"], "failures": failures}
    write_table(
        {
            "versions": {"torch": "2"},
            "stages": ["float", "rtn"],
            "seconds": 60,
            "of": 2,
            "architectures": {"X": record},
        },
        page,
    )
    text = page.read_text()
    assert "old" not in text
    assert "| time series | 1 | 1 | 1 | 0 |" in text
    assert "| X | rtn | KeyError: a\\|b |" in text
