"""``doctor --for``: a sound checkpoint is taken by the runtimes that read its format, and refused by the others."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from goldstick import api
from goldstick.algorithms.kv_cache import KVCache
from goldstick.checkpoint.kv_cache import KV_SIDECAR, stored_kv
from goldstick.cli import main
from goldstick.core.scheme import Scheme
from goldstick.formats import FORMATS
from goldstick.jobs.doctor.runtimes import RUNTIMES
from goldstick.jobs.doctor.runtimes.subject import Module, Subject
from tests.support.runtime_checkpoints import Workshop


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("for"))


def test_the_command_says_where_it_runs_and_its_code_whether_it_does(workshop: Workshop) -> None:
    directory = str(workshop.quantized("llama", "w4a16-g128", "gptq"))
    taken = CliRunner().invoke(main, ["doctor", directory, "--for", "vllm"])
    assert taken.exit_code == 0, taken.output
    assert "vllm 0.32.0: loads it" in taken.stdout
    assert "  NVIDIA GPU: compute capability 7.5 or later" in taken.stdout
    refused = CliRunner().invoke(main, ["doctor", directory, "--for", "llama.cpp"])
    assert refused.exit_code == 1
    assert "llama.cpp 0c1e570 (2026-10-01): does not load it" in refused.stdout


def test_json_holds_the_verdict(workshop: Workshop) -> None:
    directory = str(workshop.quantized("llama", "w4a16-g128", "gptq"))
    printed = CliRunner().invoke(main, ["doctor", directory, "--for", "sglang", "--json"]).stdout
    verdict = json.loads(printed)["verdict"]
    assert (verdict["runtime"], verdict["version"], verdict["loads"]) == ("sglang", "0.5.23", True)
    assert verdict["hardware"]["NVIDIA GPU"] == "compute capability 8.0 or later"
    assert "AMD GPU" in verdict["not_on"]
    assert json.loads(CliRunner().invoke(main, ["doctor", directory, "--json"]).stdout)["verdict"] is None


def test_a_runtime_that_is_not_known_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["doctor", str(tmp_path), "--for", "nothing"])
    assert found.exit_code == 2
    assert "vllm" in found.stderr


def test_channels_of_four_bits_that_gptqmodel_does_not_multiply_on_processors(workshop: Workshop) -> None:
    """Its product there takes 32, 64, 128 or 256 inputs: seen with 512 (docs/consumers.md)."""
    narrow = workshop.quantized("llama", "w4a16-channel", "gptq")
    assert "CPU" in api.doctor(narrow, runtime="transformers").verdict.hardware
    config = json.loads((narrow / "config.json").read_text())
    table = config["quantization_config"]
    shapes = [torch.Size([128, size]) for size in (256, 512)]
    modules = [Module(name=f"layer_of_{size[-1]}", shape=size, scheme=Scheme.parse("w4a16")) for size in shapes]
    found = [
        RUNTIMES["transformers"].answers(Subject(config=config, table=table, modules=tuple(modules[:count])))["CPU"]
        for count in (1, 2)
    ]
    assert [answer.runs for answer in found] == [True, False]
    assert "layer_of_512" in found[1].words
    grouped = Subject(config=config, table=table | {"group_size": 128}, modules=tuple(modules))
    assert RUNTIMES["transformers"].answers(grouped)["CPU"].runs


def test_what_sentence_transformers_stumbles_over_is_said_of_its_encoders_alone(workshop: Workshop) -> None:
    """Seen with 6.2.0 (docs/consumers.md): it calls forward past the hook that decompresses the weights."""
    directory = workshop.quantized("llama", "w8a8-dynamic", "compressed-tensors")
    config = json.loads((directory / "config.json").read_text())
    rule = next(one for one in RUNTIMES["transformers"].rules if one.check == "sentence-transformers")
    table = config["quantization_config"]
    files = frozenset({"model.safetensors", "modules.json"})
    found = [
        rule.findings(Subject(config=config, table=table, files=files)),
        rule.findings(Subject(config=config, table=table, files=files - {"modules.json"})),
        rule.findings(Subject(config=config, table=table | {"dequantize": True}, files=files)),
    ]
    assert [len(hits) for hits in found] == [1, 0, 0]
    assert found[0][0].severity == "remark"


def test_scales_of_activations_that_awq_of_some_architectures_lacks_are_a_fault() -> None:
    """Seen with transformers 5.23.0 and gptqmodel 7.7.0 (docs/consumers.md): StarCoder2's outputs were NaN."""
    rule = next(one for one in RUNTIMES["transformers"].rules if one.check == "activations")
    model = torch.nn.ModuleDict({"mlp": torch.nn.ModuleDict({"act": torch.nn.GELU()})})
    awq = Subject(config={"model_type": "starcoder2"}, table={"quant_method": "awq", "bits": 4}, model=model)
    assert [finding.where for finding in rule.findings(awq)] == [("mlp.act",)]
    assert not rule.findings(dataclasses.replace(awq, config={"model_type": "llama"}))
    assert not rule.findings(dataclasses.replace(awq, table={"quant_method": "gptq", "bits": 4}))


def test_static_inputs_of_fp8_have_no_kernel_on_processors_in_vllm(workshop: Workshop) -> None:
    """Seen with 0.32.0 (docs/consumers.md)."""
    config = json.loads((workshop.quantized("llama", "fp8-dynamic", "compressed-tensors") / "config.json").read_text())
    table = config["quantization_config"]
    assert RUNTIMES["vllm"].answers(Subject(config=config, table=table))["CPU"].runs
    for group in table["config_groups"].values():
        group["input_activations"] |= {"dynamic": False, "strategy": "tensor"}
    found = RUNTIMES["vllm"].answers(Subject(config=config, table=table))
    assert (found["CPU"].runs, found["NVIDIA GPU"].runs) == (False, True)


@pytest.mark.parametrize(("name", "faults"), [("activation_scale", 1), ("input_scale", 0)])
def test_static_scales_of_the_format_fp8_are_read_by_vllm_under_one_name(
    name: str, faults: int, tmp_path: Path
) -> None:
    """Seen with 0.32.0 (docs/consumers.md): there is no parameter named activation_scale."""
    save_file({f"model.layers.0.mlp.down_proj.{name}": torch.ones(())}, tmp_path / "model.safetensors")
    table = {"quant_method": "fp8", "activation_scheme": "static"}
    written = Subject(config={}, table=table, files=frozenset({"model.safetensors"}), directory=tmp_path)
    rule = next(one for one in RUNTIMES["vllm"].rules if one.check == "input-scales")
    assert len(rule.findings(written)) == faults
    module = Module(name="layer", shape=torch.Size([128, 128]), scheme=Scheme.parse("fp8"))
    assert len(rule.findings(Subject(config={}, table=table, modules=(module,)))) == 1
    assert not rule.findings(Subject(config={}, table=table | {"activation_scheme": "dynamic"}, modules=(module,)))


def test_experts_of_four_bits_take_amx_on_processors_in_vllm(workshop: Workshop) -> None:
    """Seen with 0.32.0 (docs/consumers.md): no backend without AMX tiles."""
    verdict = api.doctor(workshop.quantized("mixtral", "w4a16-g128", "compressed-tensors"), runtime="vllm").verdict
    assert verdict.hardware["CPU"] == "with AMX tiles"
    dense = api.doctor(workshop.quantized("llama", "w4a16-g128", "compressed-tensors"), runtime="vllm").verdict
    assert dense.hardware["CPU"] == "with AVX-512"


@pytest.mark.parametrize(("dtype", "faults"), [(torch.float32, 1), (torch.bfloat16, 0)])
def test_mx_layers_of_a_model_whose_config_names_no_dtype(
    dtype: torch.dtype, faults: int, workshop: Workshop, tmp_path: Path
) -> None:
    """Seen with an encoder of 2021 (docs/consumers.md): transformers takes the dtype of the files."""
    config = json.loads((workshop.quantized("llama", "mxfp8", "compressed-tensors") / "config.json").read_text())
    config.pop("dtype")
    save_file({"embeddings.weight": torch.ones(2, 2, dtype=dtype)}, tmp_path / "model.safetensors")
    rule = next(one for one in RUNTIMES["transformers"].rules if one.check == "dtype")
    files, table = frozenset({"model.safetensors"}), config["quantization_config"]
    assert len(rule.findings(Subject(config=config, table=table, files=files, directory=tmp_path))) == faults
    assert not rule.findings(Subject(config=config, table=table))


@pytest.mark.parametrize("runtime", ["vllm", "sglang", "transformers"])
def test_a_cache_that_goldstick_alone_knows_is_remarked(runtime: str, tmp_path: Path) -> None:
    """One that the config tells of is judged by what it says."""
    settings = KVCache(dtype="int4", rotate=True).solve({})
    stored = stored_kv(settings, {0: "model.layers.0.self_attn"}, FORMATS["compressed-tensors"], torch.float32)
    assert not stored.config and not stored.tensors
    rule = next(one for one in RUNTIMES[runtime].rules if one.check == "own-cache")
    files = frozenset({"model.safetensors", KV_SIDECAR})
    (found,) = rule.findings(Subject(config={}, table={}, files=files))
    assert found.severity == "remark" and found.where == (KV_SIDECAR,)
    told = stored_kv(KVCache(mode="dynamic").solve({}), {0: "model"}, FORMATS["compressed-tensors"], torch.float32)
    assert not rule.findings(Subject(config={}, table=told.config, files=files))
    assert not rule.findings(Subject(config={}, table={}, files=files - {KV_SIDECAR}))
