"""Kernels of SGLang: what its quantization methods take, and on which hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from goldstick.jobs.doctor.runtimes.arguments import Arguments, Group
from goldstick.jobs.doctor.runtimes.layers_together import CUT_BY_INPUTS
from goldstick.jobs.doctor.runtimes.runtime import (
    AMD,
    CPU,
    NVIDIA,
    Answer,
    Answers,
    from_capability,
    no,
    refused,
    unread,
    yes,
)
from goldstick.jobs.doctor.runtimes.subject import Subject

_MARLIN_GROUPS = (None, 32, 64, 128)
_OF_ACTIVATIONS = ("naive-quantized", "int-quantized", "float-quantized", "nvfp4-pack-quantized", "pack-quantized")
_NO_AMD = no("its kernel (Marlin) is NVIDIA's alone")
_NO_CPU = no("there is no such kernel for CPUs")
_AMX = yes("with AMX")


def compressed(group: Group, subject: Subject, mixture: bool) -> Answers:
    """A group of compressed-tensors; ``mixture`` where the model has quantized experts."""
    weights, inputs = group.weights, group.inputs
    if inputs is None and weights.kind == "int" and weights.strategy in ("channel", "group"):
        return _packed(weights, group.layout, subject)
    if mixture and weights.mxfp4:
        return {NVIDIA: from_capability("8.0"), AMD: unread(), CPU: unread()}
    if group.layout not in _OF_ACTIVATIONS:
        return refused(f"it has no scheme for dense layers stored as {group.layout}")
    if weights.nvfp4:
        if inputs is not None and not inputs.nvfp4:
            return refused("NVFP4 weights take NVFP4 or float inputs")
        words = "FP4 products from 10.0 on, weights alone before" if inputs else "weights alone"
        return {NVIDIA: from_capability("8.0", words), AMD: _NO_AMD, CPU: _NO_CPU}
    found = _eight_bits(weights, inputs, mixture) if weights.kind == "int" else _fp8(weights, inputs)
    return found or refused(f"no scheme of it is {weights.words}, inputs {inputs.words if inputs else 'in 16 bits'}")


def _packed(weights: Arguments, layout: str | None, subject: Subject) -> Answers:
    if layout != "pack-quantized" or weights.bits not in (4, 8):
        return refused(f"it runs integer weights of 4 or 8 bits, packed, not of {weights.bits} as {layout}")
    if weights.group_size not in _MARLIN_GROUPS:
        return refused(f"it runs groups of 32, 64 or 128, or one scale by channel, not groups of {weights.group_size}")
    if weights.bits == 8 and not weights.symmetric:
        return refused("it runs weights of 8 bits that are symmetric")
    return {NVIDIA: _marlin("8.0", subject), AMD: _NO_AMD, CPU: unread()}


def _eight_bits(weights: Arguments, inputs: Arguments | None, mixture: bool) -> Answers | None:
    if inputs is None or not weights.symmetric or weights.dynamic:
        return None
    if weights.bits == 4 and mixture and inputs.kind == "float" and inputs.dynamic:
        return {NVIDIA: from_capability("9.0", "experts"), AMD: _NO_AMD, CPU: _NO_CPU}
    by_token = inputs.strategy == "token" and inputs.dynamic
    by_tensor = inputs.strategy == "tensor" and not inputs.dynamic
    if (weights.bits, inputs.bits, inputs.kind) != (8, 8, "int") or not (by_token or by_tensor):
        return None
    if mixture:
        return refused("experts with 8-bit integer inputs run on NPUs alone")
    return {NVIDIA: from_capability("8.0"), AMD: unread(), CPU: unread()}


def _fp8(weights: Arguments, inputs: Arguments | None) -> Answers | None:
    if weights.bits != 8 or not weights.symmetric or weights.strategy not in ("tensor", "channel", "block"):
        return None
    if inputs is None:
        single = weights.strategy != "block"
        return {NVIDIA: from_capability("8.0", "weights alone"), AMD: unread(), CPU: unread()} if single else None
    static = inputs.strategy == "tensor" and not inputs.dynamic
    if inputs.kind != "float" or not (inputs.dynamic or static):
        return None
    older = "" if weights.strategy == "block" else "weights alone before 8.9"
    since = "8.9" if weights.strategy == "block" else "8.0"
    return {NVIDIA: from_capability(since, older), AMD: yes("MI300 or later"), CPU: unread()}


def gptq(table: Mapping[str, Any], subject: Subject) -> Answers:
    """GPTQ: Marlin, or AMX."""
    bits, size = table.get("bits"), table.get("group_size")
    by_channel = None if size == -1 else size
    if bits not in (4, 8) or table.get("sym") is not True:
        return refused("it runs GPTQ of 4 or 8 bits, symmetric (by Marlin), and has no other kernel for it any more")
    if by_channel not in _MARLIN_GROUPS:
        return refused("it runs GPTQ in groups of 32, 64 or 128, or by channel")
    return {NVIDIA: _marlin("8.0", subject), AMD: _NO_AMD, CPU: _AMX if bits == 4 else _NO_CPU}


def awq(table: Mapping[str, Any], subject: Subject) -> Answers:
    """AWQ: Marlin, or kernels of its own."""
    bits, size = table.get("bits", table.get("w_bit")), table.get("group_size", table.get("q_group_size"))
    if bits != 4:
        return refused("it runs AWQ of 4 bits")
    if (None if size == -1 else size) in _MARLIN_GROUPS:
        return {NVIDIA: from_capability("8.0", "7.5 in float16"), AMD: yes("in float16"), CPU: _AMX}
    if any(module.expert for module in subject.quantized):
        return refused("experts of AWQ run in groups of 32, 64 or 128, or by channel")
    return {NVIDIA: from_capability("7.5", "in float16"), AMD: yes("in float16"), CPU: _AMX}


def fine_grained_fp8(table: Mapping[str, Any]) -> Answers:
    """FP8 by blocks or tensors."""
    block, scheme = table.get("weight_block_size"), table.get("activation_scheme")
    if scheme not in ("static", "dynamic"):
        return refused(f"activation_scheme is static or dynamic, not {scheme}")
    if block is not None and (len(block) != 2 or scheme != "dynamic"):
        return refused("weights in blocks of two sizes take dynamic inputs alone")
    return {NVIDIA: from_capability("8.0", "FP8 products from 8.9 on"), AMD: yes("MI300 or later"), CPU: _AMX}


def model_optimizer(table: Mapping[str, Any]) -> Answers:
    """NVIDIA's Model Optimizer."""
    algorithm = str(table.get("quant_algo", "")).upper()
    if algorithm in ("NVFP4", "W4A16_NVFP4"):
        return {NVIDIA: from_capability("8.0", "FP4 products from 10.0 on"), AMD: _NO_AMD, CPU: _NO_CPU}
    if algorithm in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "MIXED_PRECISION"):
        return {NVIDIA: from_capability("8.9"), AMD: unread(), CPU: _NO_CPU}
    return refused(f"it knows no algorithm {algorithm or 'that the config does not name'}")


def _out_of_tiles(subject: Subject) -> str | None:
    """A layer whose part on a device, with what it is fused with, fills no tiles of Marlin; ``None`` for none."""
    fused = {member.name: members for _, members in subject.fused() for member in members}
    for module in subject.quantized:
        outputs = sum(member.shape[0] for member in fused.get(module.name, (module,)))
        inputs = module.shape[1]
        if module.leaf in CUT_BY_INPUTS:
            inputs //= subject.tensor_parallel
        else:
            outputs //= subject.tensor_parallel
        tiles = outputs % 64 == inputs % 128 == 0 or outputs % 128 == inputs % 64 == 0
        if not module.expert and not tiles:
            return f"{module.name} has {inputs} inputs and {outputs} outputs on a device"
    return None


def _marlin(capability: str, subject: Subject) -> Answer:
    odd = _out_of_tiles(subject)
    if odd is not None:
        return no(f"inputs and outputs are multiples of 64 and 128 there, and {odd}; AWQ has another kernel")
    return from_capability(capability)
