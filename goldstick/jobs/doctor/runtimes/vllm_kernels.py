"""Kernels of vLLM: what its quantization methods take, and on which hardware."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.gptq import GPTQ
from goldstick.jobs.doctor.runtimes.arguments import Arguments, Group, groups_of
from goldstick.jobs.doctor.runtimes.runtime import AMD, CPU, NVIDIA, Answer, Answers, from_capability, no, refused, yes
from goldstick.jobs.doctor.runtimes.subject import Subject

MARLIN_GROUPS = (None, 32, 64, 128)
_TRITON_GROUPS = (*MARLIN_GROUPS, 256)
#: Layouts whose inputs are quantized, by their names in compressed-tensors.
_OF_ACTIVATIONS = ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized")
_NO_CPU = no("there is no such kernel for CPUs")
NO_AMD = no("there is no such kernel for AMD GPUs")
#: What becomes of integer inputs of packed weights, which one kernel alone rounds.
_INPUTS = {NVIDIA: "; inputs in 16 bits without --linear-backend humming", AMD: "; inputs in 16 bits"}
_INPUTS[CPU] = _INPUTS[AMD]
_EMULATED = yes("computed in 16 bits, dequantized in every call")


def compressed(group: Group, subject: Subject) -> Answers:
    """A group of compressed-tensors."""
    weights, inputs = group.weights, group.inputs
    if weights.nvfp4:
        if inputs is not None and not inputs.nvfp4:
            return refused("NVFP4 weights take NVFP4 or float inputs")
        words = "FP4 products from 10.0 on, weights alone before" if inputs else "weights alone"
        return {NVIDIA: from_capability("7.5", words), AMD: _EMULATED, CPU: _NO_CPU}
    if weights.mxfp4:
        words = "FP4 products from 10.0 on, which round the inputs too; weights alone before"
        return {NVIDIA: from_capability("8.0", words), AMD: _EMULATED, CPU: _NO_CPU}
    if weights.mxfp8:
        words = "inputs are rounded to MXFP8 where the GPU has its products"
        return {NVIDIA: from_capability("7.5", words), AMD: _EMULATED, CPU: _NO_CPU}
    if _four_bits_with_fp8(weights, inputs):
        hopper = no("its kernel for them is for Hopper")
        return {NVIDIA: yes("compute capability 9.0 alone (Hopper)"), AMD: hopper, CPU: hopper}
    if group.layout == "pack-quantized" and weights.kind == "int" and weights.strategy in ("channel", "group"):
        return _packed(weights, inputs, subject)
    if group.layout in _OF_ACTIVATIONS:
        found = _eight_bits(weights, inputs) if weights.kind == "int" else _fp8(weights, inputs)
        if found is not None:
            return found
    return refused(f"no scheme of it is {weights.words}, inputs {inputs.words if inputs else 'in 16 bits'}")


def _four_bits_with_fp8(weights: Arguments, inputs: Arguments | None) -> bool:
    fp8 = inputs is not None and (inputs.kind, inputs.bits, inputs.strategy) == ("float", 8, "token")
    return fp8 and (weights.kind, weights.bits, weights.strategy) == ("int", 4, "group") and weights.symmetric


def _packed(weights: Arguments, inputs: Arguments | None, subject: Subject) -> Answers:
    """Integers in words. Integer inputs are for the Humming kernels, which come behind all others if not asked for."""
    if weights.bits not in range(2, 9):
        return refused(f"it runs packed weights of 2 to 8 bits, not of {weights.bits}")
    if inputs is None:
        return weight_only(weights, subject)
    if inputs.kind == "int" and inputs.dynamic and inputs.symmetric and inputs.strategy in ("token", "group"):
        found = weight_only(weights, subject)
        return {hardware: yes(one.words + _INPUTS[hardware]) if one.runs else one for hardware, one in found.items()}
    return refused("packed weights take dynamic and symmetric integer inputs, by token or group")


def weight_only(weights: Arguments, subject: Subject) -> Answers:
    """Integer weights under 16-bit inputs."""
    size = weights.group_size
    four = weights.bits == 4
    marlin = four or (weights.bits == 8 and weights.symmetric)
    fast = marlin and size in MARLIN_GROUPS
    triton = four and size in _TRITON_GROUPS
    exllama = marlin and weights.symmetric and size is not None
    amd = yes("any that Triton runs on") if triton else yes("in float16") if exllama else NO_AMD
    return {
        NVIDIA: from_capability("7.5", "" if fast else "by the slower kernels of Humming or Triton"),
        AMD: amd,
        CPU: _weight_only_on_cpu(weights, subject),
    }


def _weight_only_on_cpu(weights: Arguments, subject: Subject) -> Answer:
    if weights.bits != 4:
        return no("weights of 4 bits alone have a kernel for CPUs")
    if weights.group_size is not None and weights.group_size % 2:
        return no("group sizes are even there")
    odd = [module.name for module in subject.quantized if any(size % 32 for size in module.shape[-2:])]
    if not odd and any(module.expert for module in subject.quantized):
        return yes("with AMX tiles")
    return no(f"inputs and outputs are multiples of 32 there, not those of {odd[0]}") if odd else yes("with AVX-512")


def _eight_bits(weights: Arguments, inputs: Arguments | None) -> Answers | None:
    """Integer inputs of 8 bits."""
    if inputs is None or inputs.kind != "int" or inputs.bits != 8 or not weights.symmetric or weights.dynamic:
        return None
    by_token = inputs.strategy == "token" and inputs.dynamic
    by_tensor = inputs.strategy == "tensor" and not inputs.dynamic
    if weights.bits == 8 and weights.strategy in ("tensor", "channel") and (by_token or by_tensor):
        return {NVIDIA: from_capability("7.5"), AMD: yes("any that Triton runs on"), CPU: yes("any")}
    if weights.bits == 4 and weights.strategy in ("group", "channel") and by_token:
        return {NVIDIA: from_capability("7.5", "by the kernels of Humming"), AMD: NO_AMD, CPU: yes("any")}
    return None


def _fp8(weights: Arguments, inputs: Arguments | None) -> Answers | None:
    """FP8 weights, with or without FP8 inputs."""
    if weights.bits != 8 or weights.strategy not in ("tensor", "channel", "block") or not weights.symmetric:
        return None
    if inputs is None:
        return {NVIDIA: from_capability("7.5", "weights alone"), AMD: NO_AMD, CPU: _NO_CPU}
    static = inputs.strategy == "tensor" and not inputs.dynamic and inputs.symmetric
    if inputs.kind != "float" or not (inputs.dynamic or static) or (static and weights.strategy == "block"):
        return None
    return _fp8_products(block=weights.strategy == "block", static=static)


def _fp8_products(*, block: bool, static: bool) -> Answers:
    cpu = no("its build for CPUs rounds no inputs to FP8 by static scales") if static else yes("any")
    return {
        NVIDIA: from_capability("7.5", "FP8 products from 8.9 on, weights alone before"),
        AMD: yes("MI300 or later"),
        CPU: yes("with AMX tiles") if block else cpu,
    }


def fine_grained_fp8(table: Mapping[str, Any]) -> Answers:
    """FP8 by blocks or tensors."""
    block, scheme = table.get("weight_block_size"), table.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        return refused(f"activation_scheme is static or dynamic, not {scheme}")
    if block is not None and (len(block) != 2 or scheme != "dynamic"):
        return refused("weights in blocks of two sizes take dynamic inputs alone")
    return _fp8_products(block=block is not None, static=scheme == "static")


def gptq(table: Mapping[str, Any], subject: Subject) -> Iterator[tuple[str, Answers]]:
    """GPTQ: what the config says of all layers, and of some under ``dynamic``."""
    dynamic = table.get("dynamic")
    overrides = dynamic if isinstance(dynamic, Mapping) else {}
    changed = [{**table, **change} for pattern, change in overrides.items() if isinstance(change, Mapping) and change]
    for part in (table, *changed):
        bits, symmetric, size = part.get("bits"), part.get("sym"), part.get("group_size")
        name = f"GPTQ of {bits} bits, groups of {size}, {'symmetric' if symmetric else 'asymmetric'}"
        yield name, _gptq(bits, symmetric is True, size if type(size) is int and size > 0 else None, subject)


def _gptq(bits: object, symmetric: bool, size: int | None, subject: Subject) -> Answers:
    if bits not in (4, 8) or not symmetric:
        return refused("it runs GPTQ of 4 or 8 bits, symmetric")
    if size not in MARLIN_GROUPS:
        return refused("it runs GPTQ in groups of 32, 64 or 128, or by channel")
    grid = Arguments(
        bits=bits, kind="int", strategy="group", group_size=size, symmetric=True, dynamic=False, actorder=None,
        scale_dtype=None,
    )  # fmt: skip
    return weight_only(grid, subject)


def awq(table: Mapping[str, Any], subject: Subject) -> Answers:
    """AWQ: 4 bits."""
    size = table.get("group_size", table.get("q_group_size"))
    if table.get("bits", table.get("w_bit")) != 4:
        return refused("it runs AWQ of 4 bits")
    grid = Arguments(
        bits=4, kind="int", strategy="group", group_size=size if type(size) is int and size > 0 else None,
        symmetric=False, dynamic=False, actorder=None, scale_dtype=None,
    )  # fmt: skip
    return {**weight_only(grid, subject), AMD: yes("any that Triton runs on")}


def mxfp4_experts(architecture: str) -> Answers:
    """MXFP4 experts, as GPT-OSS is published."""
    if architecture != "GptOssForCausalLM":
        return refused("it takes quant_method mxfp4 for GPT-OSS alone")
    return {NVIDIA: from_capability("8.0"), AMD: yes("any"), CPU: yes("any")}


def model_optimizer(table: Mapping[str, Any]) -> Answers:
    """NVIDIA's Model Optimizer."""
    algorithm = str(table.get("quant_algo", "")).upper()
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        words = "FP4 products from 10.0 on, weights alone before"
        return {NVIDIA: from_capability("7.5", words), AMD: _EMULATED, CPU: _NO_CPU}
    if algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8"):
        cpu = _fp8_products(block=False, static=algorithm == "FP8")[CPU]
        cpu = cpu if algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN") else _NO_CPU
        return {NVIDIA: from_capability("8.0", "FP8 products from 8.9 on"), AMD: yes("MI300 or later"), CPU: cpu}
    if algorithm == "MIXED_PRECISION":
        return {NVIDIA: from_capability("8.0"), AMD: NO_AMD, CPU: _NO_CPU}
    return refused(f"it knows no algorithm {algorithm or 'that the config does not name'}")


def act_order(table: Mapping[str, Any], method: str | None) -> Iterator[str]:
    """Where the config says act-order with groups."""
    if method == COMPRESSED_TENSORS.method:
        yield from (group.words for group in groups_of(table) if group.weights.actorder in ("group", "dynamic"))
    if method != GPTQ.method:
        return
    dynamic = table.get("dynamic")
    for pattern, change in ({"all layers": {}} | dict(dynamic if isinstance(dynamic, Mapping) else {})).items():
        part = {**table, **(change if isinstance(change, Mapping) else {})}
        if part.get("desc_act") is True and part.get("group_size") != -1 and not pattern.startswith("-:"):
            yield f"desc_act with groups of {part.get('group_size')}: {pattern}"
