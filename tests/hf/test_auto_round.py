"""auto-round's own format: mixtures of bits, what is written in it, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import goldstick
from goldstick import api
from goldstick.errors import FormatError
from goldstick.hf.checkpoint import open_quantized
from goldstick.hf.source import open_source
from goldstick.jobs.doctor.examine import examine
from goldstick.nn import QuantizedLinear
from tests.support.commands import change_json
from tests.support.other_tools import FOLDER

pytestmark = pytest.mark.usefixtures("proof_here", "reference_backend", "transformers_as_it_was")

IDS = torch.arange(16)[None]
MIXED, PLAIN, ASYMMETRIC = (FOLDER / f"auto-round-{name}" for name in ("mixed", "w4a16", "asymmetric"))
FIRST = "model.layers.0."


def logits(directory: Path) -> torch.Tensor:
    model: Any = goldstick.load(directory, dtype=torch.float32)
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def changed(source: Path, into: Path, **changes: Any) -> Path:
    directory = Path(shutil.copytree(source, into))
    change_json(directory / "config.json", lambda config: config["quantization_config"].update(changes))
    return directory


def test_each_layer_has_what_is_said_of_it() -> None:
    found = {layer.name: layer.scheme.label for layer in open_quantized(MIXED).stored.layers}
    assert found[f"{FIRST}mlp.down_proj.weight"] == "w8a16-g64"
    assert found[f"{FIRST}mlp.up_proj.weight"] == "w2a16-g32"
    assert f"{FIRST}self_attn.q_proj.weight" not in found
    assert examine(MIXED).healthy


def test_patterns_are_searched_in_names_and_exact_names_go_before(tmp_path: Path) -> None:
    said = {"mlp.down.*": {"bits": 8, "group_size": 64}, f"{FIRST}self_attn.q_proj": {"bits": 16}}
    by_pattern = changed(MIXED, tmp_path / "pattern", extra_config=said)
    assert torch.equal(logits(by_pattern), logits(MIXED))
    both = changed(MIXED, tmp_path / "both", extra_config={"down.*": {"bits": 3}, **json.loads(
        (MIXED / "config.json").read_text())["quantization_config"]["extra_config"]})  # fmt: skip
    assert torch.equal(logits(both), logits(MIXED))


def test_layers_outside_the_blocks_that_it_lists_are_float(tmp_path: Path) -> None:
    down = {f"{FIRST}mlp.down_proj": {"bits": 8, "group_size": 64}}
    promised = changed(MIXED, tmp_path / "promised", extra_config=down)
    assert [finding.check for finding in examine(promised).findings if finding.severity == "fault"] == ["exceptions"]
    parts = [f"{FIRST}mlp", *(f"{FIRST}self_attn.{letter}" for letter in "kvo")]
    for number, listed in enumerate((parts, ", ".join(parts), [parts[:1], parts[1:]])):
        assert examine(changed(MIXED, tmp_path / str(number), extra_config=down, block_name_to_quantize=listed)).healthy
    for number, listed in enumerate(([4], 4, {"a": 1})):
        wrong = changed(MIXED, tmp_path / f"wrong {number}", block_name_to_quantize=listed)
        assert any("lists names, not" in str(finding.where) for finding in examine(wrong).findings)


def test_names_of_earlier_versions_mean_the_same(tmp_path: Path) -> None:
    older = changed(PLAIN, tmp_path / "older", quant_method="intel/auto-round", packing_format=None, act_bits=None,
                    backend="auto_round:gptq:exllamav2")  # fmt: skip
    assert torch.equal(logits(older), logits(PLAIN))


@pytest.mark.parametrize("name", ["auto-round-mixed", "auto-round-asymmetric"])
def test_transformers_runs_it_on_goldsticks_kernels(name: str) -> None:
    goldstick.register("auto-round")
    model: Any = AutoModelForCausalLM.from_pretrained(FOLDER / name, dtype=torch.float32)
    assert isinstance(model.model.layers[0].mlp.down_proj, QuantizedLinear)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, logits(FOLDER / name))


@pytest.mark.parametrize(
    ("source", "formats"),
    [
        (MIXED, ("native", "auto-round")),
        (MIXED, ("compressed-tensors", "auto-round")),
        (PLAIN, ("gptq", "auto-round")),
        (ASYMMETRIC, ("awq", "auto-round-awq")),
    ],
)
def test_exported_and_back_it_is_the_same(source: Path, formats: tuple[str, str], tmp_path: Path) -> None:
    there = api.export(source, formats[0], output=tmp_path / "there", proof="tensors").directory
    back = api.export(there, formats[1], output=tmp_path / "back", proof="tensors").directory
    assert torch.equal(logits(back), logits(source))
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (source, back))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())
    assert examine(there).healthy, "negative scales and all"
    assert examine(back).healthy
    again = open_source(back)
    assert again.quantized_as.startswith(formats[1])


def test_a_mixture_is_written_as_one_scheme_and_what_differs(tmp_path: Path) -> None:
    scheme = {"scheme": "w4a16-g32", "overrides": {"*down_proj": "w8a16-g64"}, "targets": {"exclude": ["*q_proj"]}}
    source = api.export(MIXED, "native", output=tmp_path / "source", proof="tensors").directory
    recipe = {"stages": [{"rtn": scheme}], "export": {"format": "auto-round"}}
    made = api.quantize(source, recipe, output=tmp_path / "made").directory
    table = json.loads((made / "config.json").read_text())["quantization_config"]
    assert (table["packing_format"], table["bits"], table["group_size"]) == ("auto_round:auto_gptq", 4, 32)
    assert table["extra_config"][f"{FIRST}mlp.down_proj"] == {
        "bits": 8, "group_size": 64, "sym": True, "data_type": "int"
    }  # fmt: skip
    assert table["extra_config"][f"{FIRST}self_attn.q_proj"]["bits"] == 16
    assert examine(made).healthy


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"packing_format": "auto_round:llm_compressor"}, "declares the packing 'auto_round:llm_compressor' of 'int'"),
        ({"packing_format": ["auto_round"]}, "declares the packing"),
        ({"data_type": "mx_fp"}, "of 'mx_fp' weights"),
        ({"act_bits": 8}, "inputs of 8 bits"),
        ({"extra_config": [1]}, "'extra_config' is a table of layers"),
        ({"extra_config": {f"{FIRST}mlp.up_proj": {"bits": 16}}}, "up_proj 16 bits of 'int', and it is stored as"),
        ({"sym": False}, "packs asymmetric layers as AWQ does"),
        ({"bits": 5}, "declares 5 bits"),
        ({"extra_config": {r"(.*)*\1x": {"bits": 8}}}, "expression"),
    ],
)
def test_what_is_not_read_is_named(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=words):
        goldstick.load(changed(PLAIN, tmp_path / "changed", **changes))


def test_what_transformers_needs_for_it_is_told() -> None:
    def words(directory: Path) -> str:
        return str(api.doctor(directory, runtime="transformers").verdict)

    assert "package auto-round" in words(PLAIN)
    assert "auto-round-lib" not in words(PLAIN)
    assert "packages auto-round and auto-round-lib" in words(ASYMMETRIC)


def test_so_is_what_vllm_runs_of_it(tmp_path: Path) -> None:
    def words(directory: Path) -> str:
        found = api.doctor(directory, runtime="vllm")
        return f"{found.verdict} {[finding.check for finding in found.findings]}"

    assert "'NVIDIA GPU': 'compute capability 7.5 or later', 'CPU': 'package auto-round-lib'" in words(PLAIN)
    assert "any that Triton runs on" in words(ASYMMETRIC)
    both = words(MIXED)
    assert "Humming" in both and "weights of 4 bits alone have a kernel for CPUs" in both
    assert "fused-schemes" in both, "q is float beside k and v of 2 bits"
    assert "groups have 32, 64 or 128 inputs" in words(changed(PLAIN, tmp_path / "16", group_size=16))
