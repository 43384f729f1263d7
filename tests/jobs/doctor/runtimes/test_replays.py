"""Failures that people reported of runtimes, made small: ``doctor --for`` finds each, and says what to change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from safetensors.torch import load_file, save_file
from torch import Tensor

from goldstick import api
from goldstick.jobs.doctor.finding import Diagnosis, Finding
from tests.support.runtime_checkpoints import Workshop
from tests.support.small_checkpoints import WEIGHTS, small_checkpoints

CT = "compressed-tensors"
BLOCK = "model.layers.0"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("replays"))


def copied(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "checkpoint"))


def change_config(directory: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    table = json.loads((directory / "config.json").read_text())
    change(table)
    (directory / "config.json").write_text(json.dumps(table))
    return directory


def change_quantization(directory: Path, **entries: Any) -> Path:
    return change_config(directory, lambda table: table["quantization_config"].update(entries))


def change_group(directory: Path, **entries: Any) -> Path:
    """Other arguments of the weights of the one group."""
    return change_config(
        directory, lambda table: table["quantization_config"]["config_groups"]["group_0"]["weights"].update(entries)
    )


def change_tensors(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(directory / WEIGHTS)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / WEIGHTS)
    return directory


def found(directory: Path, runtime: str, check: str, *, devices: int = 1) -> Finding:
    """The one finding of a check, in the diagnosis for a runtime that has no further faults of its rules."""
    diagnosis = api.doctor(directory, runtime=runtime, tensor_parallel=devices)
    hits = [finding for finding in diagnosis.findings if finding.check == check]
    assert len(hits) == 1, diagnosis.findings
    assert len(hits[0].remedy) > 20
    assert diagnosis.verdict is not None
    if hits[0].severity == "fault" and check != "fused-scales":
        assert not diagnosis.verdict.loads
    return hits[0]


def taken(directory: Path, runtime: str, *, devices: int = 1) -> Diagnosis:
    """The diagnosis of a checkpoint that a runtime takes: what the fault was planted in is sound."""
    diagnosis = api.doctor(directory, runtime=runtime, tensor_parallel=devices)
    assert diagnosis.verdict is not None and diagnosis.verdict.loads, diagnosis.findings
    return diagnosis


def test_a_fused_layer_with_one_part_in_float(workshop: Workshop) -> None:
    """vllm-project/vllm#47473: query and key quantized, value not: different schemes for the shards of qkv_proj."""
    directory = workshop.quantized("llama", "w4a16-g128", CT, ("*v_proj",))
    for runtime in ("vllm", "sglang"):
        finding = found(directory, runtime, "fused-schemes")
        assert finding.where == (
            f"{BLOCK}.self_attn.{{q_proj,k_proj,v_proj}}: q_proj w4a16-g128, k_proj w4a16-g128, v_proj float",
        )
    taken(directory, "transformers")


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_gptq_of_three_bits(runtime: str, workshop: Workshop) -> None:
    """vllm-project/vllm#14394 and sgl-project/sglang#228: GPTQ files of 3 bits are not run."""
    finding = found(workshop.quantized("llama", "w3a16-g128", "gptq"), runtime, "scheme")
    assert "4 or 8 bits" in finding.what
    assert finding.where[0].startswith("GPTQ of 3 bits")


def test_inputs_that_are_to_be_turned_at_run_time(workshop: Workshop, tmp_path: Path) -> None:
    """transformers does not hand transform_config on, SGLang does not read it, vLLM splits no such layer."""
    place = {"targets": ["re:.*mlp\\.down_proj$"], "location": "input"}
    group = {"type": "hadamard", "apply": [place], "head_dim": 256}
    directory = copied(workshop.quantized("llama", "w8a8-dynamic", CT), tmp_path)
    for runtime in ("transformers", "sglang"):
        taken(directory, runtime)
    change_quantization(directory, transform_config={"config_groups": {"R4": group}})
    for runtime, devices in (("transformers", 1), ("sglang", 1), ("vllm", 2)):
        finding = found(directory, runtime, "transforms", devices=devices)
        assert finding.where == ("transform_config: R4 at input",)
    verdict = taken(directory, "vllm").verdict
    assert verdict is not None and list(verdict.hardware) == ["NVIDIA GPU"]


def test_gptq_that_is_asymmetric(workshop: Workshop) -> None:
    """ModelCloud's gptq_v2 with sym false (AutoGPTQ/AutoGPTQ#640): vLLM and SGLang run symmetric GPTQ alone."""
    directory = workshop.quantized("llama", "w4a16-g128-asym", "gptq-v2")
    for runtime in ("vllm", "sglang"):
        assert "symmetric" in found(directory, runtime, "scheme").what


def test_groups_that_a_split_cuts(workshop: Workshop) -> None:
    """vllm-project/vllm#5675: input size not aligned with the quantized weight, for too many devices."""
    directory = workshop.quantized("llama", "w4a16-g128", "gptq")
    finding = found(directory, "vllm", "groups", devices=4)
    assert f"{BLOCK}.mlp.down_proj: 256 inputs over 4 devices in groups of 128" in finding.where
    assert not any("up_proj" in place for place in finding.where)  # whose outputs are cut
    taken(directory, "vllm")


def test_blocks_of_experts_that_a_split_cuts(workshop: Workshop) -> None:
    """vllm-project/vllm#25292: FP8 blocks of 128 and experts of 768 over 4 devices, which leaves 192 rows."""
    recipe = {"scheme": "fp8a16-block", "targets": {"include": ["*experts*"]}}
    directory = workshop.with_stage("qwen3_moe", recipe, "fp8")
    finding = found(directory, "vllm", "blocks", devices=4)
    assert f"{BLOCK}.mlp.experts.0.gate_proj: 256 outputs over 4 devices in blocks of 128" in finding.where
    taken(directory, "vllm")


def test_blocks_of_a_dense_layer_that_a_split_cuts(workshop: Workshop) -> None:
    """sgl-project/sglang#3345: FP8 blocks and 18432 rows over 32 devices, which leaves 576."""
    directory = workshop.quantized("llama", "fp8-block", "fp8")
    finding = found(directory, "sglang", "blocks", devices=4)
    assert f"{BLOCK}.mlp.gate_proj: 256 outputs over 4 devices in blocks of 128" in finding.where
    taken(directory, "sglang")


def test_heads_that_the_devices_do_not_divide(workshop: Workshop) -> None:
    """Of no thread: vLLM and SGLang stop at a number of devices that does not divide the heads."""
    directory = workshop.quantized("llama", "w8a8-dynamic", CT)
    assert found(directory, "vllm", "heads", devices=8).where == ("4 heads over 8 devices",)
    taken(directory, "vllm", devices=4)


def test_a_quantized_router(workshop: Workshop, tmp_path: Path) -> None:
    """intel/auto-round#586: KeyError layers.0.mlp.gate.qweight. vLLM 0.32 builds Qwen3's router as configured, others'
    in float."""
    directory = copied(workshop.quantized("mixtral", "w4a16-g128", CT), tmp_path)
    taken(directory, "vllm")
    gate = f"{BLOCK}.block_sparse_moe.gate"

    def pack(tensors: dict[str, Tensor]) -> None:
        tensors.pop(f"{gate}.weight")
        tensors[f"{gate}.weight_packed"] = torch.zeros(2, 16, dtype=torch.int32)
        tensors[f"{gate}.weight_scale"] = torch.ones(2, 1, dtype=torch.bfloat16)
        tensors[f"{gate}.weight_shape"] = torch.tensor([2, 128])

    change_tensors(directory, pack)
    for runtime in ("vllm", "sglang"):
        assert found(directory, runtime, "router").where == (gate,)


def test_sparse_weights(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/llm-compressor#1241: KeyError embed_tokens.weight.bitmask, with a sparsity_config."""
    directory = copied(workshop.quantized("llama", "w4a16-g128", CT), tmp_path)
    change_quantization(directory, sparsity_config={"format": "sparse-bitmask", "targets": ["Linear"], "ignore": []})
    assert found(directory, "vllm", "sparsity").where == ("sparsity_config: sparse-bitmask",)


def test_a_float_block_that_predicts_further_tokens(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/vllm#43304: the block of multi-token prediction is float, and built as the config says of all."""
    directory = copied(workshop.quantized("deepseek", "w4a16-g128", CT), tmp_path)
    extra = f"model.layers.1.{'eh_proj'}"  # one block behind the last, which transformers leaves out
    change_tensors(directory, lambda tensors: tensors.update({f"{extra}.weight": torch.zeros(128, 256).bfloat16()}))
    finding = found(directory, "vllm", "ignore")
    assert (finding.severity, finding.where) == ("remark", (extra,))
    change_config(directory, lambda table: table["quantization_config"]["ignore"].append(extra))
    assert "ignore" not in {finding.check for finding in taken(directory, "vllm").findings}


def test_a_quantized_head_that_no_target_names(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/llm-compressor#1820 and sgl-project/sglang#35358: no parameter lm_head.weight_packed, or garbage."""
    recipe = {"scheme": "w4a16-g128", "targets": {"include": ["*_proj", "lm_head"]}}
    directory = copied(workshop.with_stage("llama", recipe, CT), tmp_path)
    for runtime in ("vllm", "sglang"):
        taken(directory, runtime)  # goldstick names it

    def forget(table: dict[str, Any]) -> None:
        table["quantization_config"]["config_groups"]["group_0"]["targets"] = ["Linear"]

    change_config(directory, forget)
    for runtime in ("vllm", "sglang"):
        assert found(directory, runtime, "head").where == ("lm_head",)


def test_asymmetric_weights_in_transformers(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/llm-compressor#1618: transformers does not load what was quantized with symmetric false."""
    directory = copied(workshop.quantized("llama", "w4a16-g128-asym", CT), tmp_path)
    taken(directory, "transformers")
    change_config(directory, lambda table: table["quantization_config"].pop("dequantize"))
    assert "dequantize" in found(directory, "transformers", "asymmetric").remedy
    taken(directory, "vllm")


def test_act_order_with_groups(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/vllm#7374: desc_act true gives nonsense over two devices; vLLM 0.32 refuses it altogether."""
    directory = copied(workshop.quantized("llama", "w4a16-g128", "gptq"), tmp_path)
    change_quantization(directory, desc_act=True)
    assert found(directory, "vllm", "act-order").where == ("desc_act with groups of 128: all layers",)
    change_quantization(directory, group_size=-1)
    assert "act-order" not in {finding.check for finding in api.doctor(directory, runtime="vllm").findings}


def test_act_order_in_compressed_tensors(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/vllm#54809, which took it out: actorder group is refused, static is not."""
    directory = copied(workshop.quantized("llama", "w4a16-g128", CT), tmp_path)
    change_group(directory, actorder="group")
    assert found(directory, "vllm", "act-order").where[0].startswith("group_0: weights int of 4 bits by group 128")
    change_group(directory, actorder="static")
    taken(directory, "vllm")


def test_a_cache_of_integers(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/vllm#33480 and #20964: scales of an int8 cache; vLLM reads those of FP8 alone."""
    directory = copied(workshop.quantized("llama", "w4a16-g128", CT), tmp_path)
    scheme = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "dynamic": False}
    change_quantization(directory, kv_cache_scheme=scheme)
    assert found(directory, "vllm", "cache").where == ("type int, num_bits 8, strategy tensor, symmetric True",)
    change_quantization(directory, kv_cache_scheme=scheme | {"type": "float"})
    assert "cache" not in {finding.check for finding in api.doctor(directory, runtime="vllm").findings}


def test_float_groups_that_no_scheme_is(workshop: Workshop, tmp_path: Path) -> None:
    """vllm-project/llm-compressor#1355: FP8 by group: no compressed-tensors compatible scheme was found."""
    directory = copied(workshop.quantized("llama", "fp8-dynamic", CT), tmp_path)
    taken(directory, "vllm")
    change_group(directory, strategy="group", group_size=128)
    for runtime in ("vllm", "sglang"):
        assert "no scheme of it is float of 8 bits by group 128" in found(directory, runtime, "scheme").what


def test_scales_of_scales_that_fused_layers_do_not_share(workshop: Workshop, tmp_path: Path) -> None:
    """intel/auto-round#2380: NVFP4 global scales of query, key and value differ; the fused layer has one."""
    directory = copied(workshop.quantized("llama", "nvfp4a16", CT), tmp_path)
    change_tensors(directory, lambda tensors: tensors[f"{BLOCK}.self_attn.v_proj.weight_global_scale"].mul_(2))
    assert found(directory, "vllm", "fused-scales").severity == "fault"


def test_a_method_that_transformers_does_not_know(workshop: Workshop) -> None:
    """deepseek-ai/DeepSeek-V3#558: unknown quantization type. Of modelopt that is so today; vLLM has it."""
    directory = workshop.quantized("llama", "nvfp4a16", "modelopt")
    assert "at random" in found(directory, "transformers", "scheme").what
    taken(directory, "vllm")
    taken(directory, "sglang")


def test_a_file_name_that_transformers_does_not_look_for(workshop: Workshop, tmp_path: Path) -> None:
    """QwenLM/Qwen3-VL#492: no file named model.safetensors, in a folder that AutoGPTQ made."""
    directory = copied(workshop.quantized("llama", "w4a16-g128", "gptq"), tmp_path)
    (directory / WEIGHTS).rename(directory / "gptq_model-4bit-128g.safetensors")
    change_config(directory, lambda table: table["quantization_config"].update(group_size=128))
    hits = [one for one in api.doctor(directory, runtime="transformers").findings if one.check == "file-name"]
    assert "fault" in {one.severity for one in hits}


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoints(tmp_path_factory.mktemp("gguf"))["gguf"]


def respelled(directory: Path, tmp_path: Path, key: str, value: str) -> Path:
    """The GGUF file of a checkpoint, alone, with another string of the same length under a key."""
    file = Path(shutil.copy(directory / "model.gguf", tmp_path / "model.gguf"))
    content = file.read_bytes()
    at = content.index(key.encode()) + len(key) + 4
    length = int.from_bytes(content[at : at + 8], "little")
    assert len(value) == length
    file.write_bytes(content[: at + 8] + value.encode() + content[at + 8 + length :])
    return file


def test_an_architecture_that_llama_cpp_does_not_know(gguf: Path, tmp_path: Path) -> None:
    """ggml-org/llama.cpp#14951: unknown model architecture."""
    taken(gguf, "llama.cpp")
    finding = found(respelled(gguf, tmp_path, "general.architecture", "mlama"), "llama.cpp", "architecture")
    assert finding.where == ("general.architecture mlama",)


def test_a_splitting_that_llama_cpp_does_not_know(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#11341 and #12122: unknown pre-tokenizer type; a name that llama.cpp got later is known."""

    def file_with(splitting: str) -> Path:
        file = tmp_path / f"{splitting}.gguf"
        writer = GGUFWriter(str(file), "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(splitting)
        writer.add_token_list(["a", "b"])
        writer.add_tensor("token_embd.weight", np.zeros((2, 32), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return file

    finding = found(file_with("a-new-kind"), "llama.cpp", "splitting")
    assert (finding.severity, finding.where) == ("fault", ("tokenizer.ggml.pre a-new-kind",))
    known = api.doctor(file_with("deepseek-r1-qwen"), runtime="llama.cpp")
    assert "splitting" not in {one.check for one in known.findings}


def test_a_tokenizer_that_llama_cpp_does_not_know(gguf: Path, tmp_path: Path) -> None:
    """Of no thread: the tokenizer itself."""
    finding = found(respelled(gguf, tmp_path, "tokenizer.ggml.model", "other"), "llama.cpp", "tokenizer")
    assert finding.where == ("tokenizer.ggml.model other",)


def test_weights_that_are_no_gguf_file(workshop: Workshop) -> None:
    """llama.cpp reads GGUF files alone, and vLLM 0.32 none."""
    assert "export" in found(workshop.quantized("llama", "w4a16-g128", CT), "llama.cpp", "scheme").remedy
