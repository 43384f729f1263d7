"""Configs that transformers would refuse, or that contradict the files, are said before anything is done."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import goldstick
from goldstick.errors import GoldstickError, SourceError, UsageError
from tests.support.commands import change_json
from tests.support.tiny_models import FAMILIES

RECIPE = "rtn-w4a16-g32"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pristine")
    FAMILIES["llama_gqa"]().save_pretrained(directory)
    return directory


@pytest.fixture
def source(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "source"))


@pytest.mark.parametrize("content", ['{"max_new_tokens": 0}', "[1]"])
def test_a_generation_config_that_transformers_refuses(content: str, source: Path) -> None:
    (source / "generation_config.json").write_text(content)
    with pytest.raises(
        SourceError, match=r"generation_config.json: transformers refuses it, .*Correct the file, or rem"
    ):
        goldstick.plan(source, RECIPE)
    with pytest.raises(SourceError, match=r"generation_config.json: transformers refuses it"):
        goldstick.load(source)


@pytest.mark.parametrize("content", ["{nope", "{}", '{"temperature": 0.5, "do_sample": false}'])
def test_a_generation_config_that_transformers_takes_or_passes_over(content: str, source: Path) -> None:
    planned = goldstick.plan(source, RECIPE)
    (source / "generation_config.json").write_text(content)
    assert goldstick.plan(source, RECIPE).warnings == planned.warnings


def test_the_generation_config_of_a_model_that_does_not_write_is_nothing_to_it(tmp_path: Path) -> None:
    FAMILIES["bert"]().save_pretrained(tmp_path)
    planned = goldstick.plan(tmp_path, RECIPE)
    (tmp_path / "generation_config.json").write_text("[1]")
    assert goldstick.plan(tmp_path, RECIPE).warnings == planned.warnings


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("dtype", "int8", "dtype = 'int8', in which no model computes. Write the dtype that it computes in"),
        ("dtype", "float8_e4m3fn", "in which no model computes"),
        ("architectures", None, 'says architectures = None. Name the class .* "architectures": ."LlamaForCausalLM".'),
        ("architectures", [], r"says architectures = \[\]. Name the class"),
        ("architectures", "LlamaForCausalLM", "says architectures = 'LlamaForCausalLM'. Name the class .* in a list"),
        ("quantization_config", {}, "without a 'quant_method', .* Remove the table if the weights are float"),
        ("quantization_config", [1], r"a 'quantization_config' that is no table, but \[1\]. Remove it if"),
        ("quantization_config", "int8", "a 'quantization_config' that is no table, but 'int8'"),
        ("quantization_config", {"quant_method": "goldstick"}, "source: .* config says no 'version'"),
    ],
)
def test_a_config_that_says_what_cannot_be(key: str, value: Any, says: str, source: Path) -> None:
    change_json(source / "config.json", lambda config: config.__setitem__(key, value))
    with pytest.raises(GoldstickError, match=says):
        goldstick.plan(source, RECIPE)


def test_what_a_config_calls_quantized_and_the_files_hold_as_numbers_is_float(source: Path) -> None:
    table = {"quant_method": "gptq", "bits": 4}
    change_json(source / "config.json", lambda config: config.__setitem__("quantization_config", table))
    planned = goldstick.plan(source, RECIPE)
    assert not planned.source.quantized_as
    assert not any("Quantized from" in warning for warning in planned.warnings)
    assert "quantization_config" in json.loads((source / "config.json").read_text())


def test_an_adapter_beside_the_weights_is_named(source: Path) -> None:
    (source / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "adapter_config.json) is left out" in goldstick.plan(source, RECIPE).warnings[0]


def test_why_a_calibrated_recipe_is_not_proven_by_tensors_is_no_other_warning(source: Path, tmp_path: Path) -> None:
    save_file({"input_ids": torch.zeros(2, 8, dtype=torch.long)}, tmp_path / "ids.safetensors")
    data = {"dataset": str(tmp_path / "ids.safetensors"), "samples": 2}
    recipe = {"stages": [{"rtn": {"scheme": "w4a16-g32", "range_search": "imatrix"}}], "calibration": data}
    (source / "adapter_config.json").write_text("{}")  # there is a warning
    with pytest.raises(UsageError, match=r"proven tensor by tensor: its stages look at data\."):
        goldstick.quantize(source, recipe, output=tmp_path / "out", proof="tensors")
