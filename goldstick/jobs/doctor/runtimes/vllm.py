"""vLLM: what its loaders take, and on which hardware its kernels run it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from goldstick.formats.auto_round import AUTO_ROUND
from goldstick.formats.awq import AWQ
from goldstick.formats.bitsandbytes import BITSANDBYTES
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.fp8 import FP8
from goldstick.formats.gguf import GGUF
from goldstick.formats.gptq import GPTQ
from goldstick.formats.modelopt import MODELOPT
from goldstick.formats.mxfp4 import MXFP4
from goldstick.jobs.doctor.runtimes.arguments import groups_of
from goldstick.jobs.doctor.runtimes.own_cache import own_cache_rule
from goldstick.jobs.doctor.runtimes.runtime import Answers, Rule, Runtime, names_in, refused
from goldstick.jobs.doctor.runtimes.servers import server_rules
from goldstick.jobs.doctor.runtimes.subject import Subject
from goldstick.jobs.doctor.runtimes.transforms import on_nvidia_alone, turned_on_several
from goldstick.jobs.doctor.runtimes.vllm_auto_round import auto_round
from goldstick.jobs.doctor.runtimes.vllm_kernels import (
    act_order,
    awq,
    compressed,
    fine_grained_fp8,
    gptq,
    model_optimizer,
    mxfp4_experts,
)

_QUANTIZATION = "vllm/model_executor/layers/quantization"
_GROUPS = f"{_QUANTIZATION}/compressed_tensors/compressed_tensors.py"

#: Architectures whose router is built as the config says, quantized or not; those of all others are float.
_ROUTERS_AS_CONFIGURED = frozenset({"Qwen3MoeForCausalLM", "Lfm2MoeForCausalLM", "K2HorizonForCausalLM"})

#: What reads methods that it does not know by itself.
_PLUGINS = {
    BITSANDBYTES.method: "a plugin reads it, vllm_bnb_plugin, which was not looked at",
    GGUF.method: "GGUF files are read by the package vllm-gguf-plugin alone",
}


def _parts(subject: Subject) -> Iterator[tuple[str, Answers]]:
    table, method = subject.table, subject.method
    if method == COMPRESSED_TENSORS.method:
        for group in groups_of(table):
            yield group.words, on_nvidia_alone(compressed(group, subject), subject)
    elif method == GPTQ.method:
        yield from gptq(table, subject)
    elif method == AWQ.method:
        yield f"{method} of {table.get('bits')} bits", awq(table, subject)
    elif method == FP8.method:
        yield f"{method} with {table.get('activation_scheme')} inputs", fine_grained_fp8(table)
    elif method == MXFP4.method:
        yield f"{method} of {subject.architecture}", mxfp4_experts(subject.architecture)
    elif method == MODELOPT.method:
        yield f"{method} {table.get('quant_algo')}", model_optimizer(table)
    elif method == AUTO_ROUND.method:
        yield from auto_round(table, subject)
    elif method is not None:
        yield f"quant_method {method}", refused(_PLUGINS.get(method, "it knows no such method"))


def _former(subject: Subject) -> Iterator[str]:
    last = names_in("vllm_former").get(subject.architecture)
    if last is not None:
        yield f"{subject.architecture}: {'until version ' if last[:1].isdigit() else ''}{last}"


def _foreign(subject: Subject) -> Iterator[str]:
    known = {**names_in("vllm"), **names_in("vllm_former")}
    if subject.architecture not in known:
        yield subject.architecture or "config.json names no architecture"


def _act_order(subject: Subject) -> Iterator[str]:
    yield from act_order(subject.table, subject.method)


def _cache(subject: Subject) -> Iterator[str]:
    scheme = subject.table.get("kv_cache_scheme")
    if not isinstance(scheme, dict) or subject.method != COMPRESSED_TENSORS.method:
        return
    told: dict[str, Any] = {name: scheme.get(name) for name in ("type", "num_bits", "strategy", "symmetric")}
    fits = (told["type"], told["num_bits"], told["symmetric"]) == ("float", 8, True)
    if not fits or told["strategy"] not in ("tensor", "attn_head"):
        yield ", ".join(f"{name} {value}" for name, value in told.items())


def _input_scales(subject: Subject) -> Iterator[str]:
    if subject.method != FP8.method or subject.table.get("activation_scheme") != "static":
        return
    if subject.directory is None:  # planned: named as goldstick names them
        yield from (module.name for module in subject.quantized if module.scheme and module.scheme.activation)
        return
    yield from (info.name for info in subject.stored if info.name.endswith(".activation_scale"))


def _sparse(subject: Subject) -> Iterator[str]:
    sparsity = subject.table.get("sparsity_config")
    if isinstance(sparsity, dict) and sparsity.get("targets"):
        yield f"sparsity_config: {sparsity.get('format')}"


VLLM = Runtime(
    name="vllm",
    title="vLLM",
    version="0.32.0",
    formats=(COMPRESSED_TENSORS, GPTQ, AWQ, FP8, MODELOPT, MXFP4),
    parts=_parts,
    read_in=f"{_GROUPS}, {_QUANTIZATION}/auto_gptq.py, {_QUANTIZATION}/inc/schemes/inc_wna16_scheme.py, "
    "vllm/model_executor/kernels/linear/__init__.py",
    remedy="quantize again with a scheme of docs/runtimes.md; 'goldstick quantize --for vllm' refuses others",
    rules=(
        Rule(
            check="architecture",
            severity="fault",
            what="vLLM had this architecture, and has it no longer",
            remedy="use the version named, or the plugin",
            read_in="vllm/model_executor/models/registry.py",
            find=_former,
        ),
        Rule(
            check="architecture",
            severity="remark",
            what="vLLM has no model of this architecture, and tries transformers' own, whose layers may differ",
            remedy="try it ('--model-impl transformers'), and compare its outputs",
            read_in="vllm/model_executor/models/registry.py",
            find=_foreign,
        ),
        Rule(
            check="act-order",
            severity="fault",
            what="act-order with groups, which vLLM no longer runs",
            remedy="quantize again without act-order (desc_act: false), or with one scale by channel",
            read_in=f"{_QUANTIZATION}/utils/gptq_utils.py",
            find=_act_order,
        ),
        Rule(
            check="cache",
            severity="fault",
            what="vLLM reads scales of FP8 caches by tensor or head, and not of others",
            remedy="remove 'kv_cache_scheme' from quantization_config, or quantize the cache to FP8",
            read_in=f"{_GROUPS} (validate_kv_cache_scheme)",
            find=_cache,
        ),
        Rule(
            check="input-scales",
            severity="fault",
            what="static scales of inputs under transformers' name, activation_scale; vLLM reads input_scale alone",
            remedy="store it as compressed-tensors ('goldstick export'), or quantize to fp8-dynamic or fp8-block",
            read_in=f"{_QUANTIZATION}/fp8.py (Fp8LinearMethod)",
            find=_input_scales,
        ),
        Rule(
            check="sparsity",
            severity="fault",
            what="weights stored sparse, which vLLM no longer reads",
            remedy="store them dense: load with the tool that made them, and save without sparsity_config",
            read_in=f"{_GROUPS} (_parse_sparsity_config)",
            find=_sparse,
        ),
        Rule(
            check="transforms",
            severity="fault",
            what="layers are to turn their input at run time, which vLLM refuses where they are split over devices",
            remedy="serve it on one device, or quantize again without rotate's 'online: true'",
            read_in=f"{_QUANTIZATION}/compressed_tensors/transform/module.py (HadamardTransform)",
            find=turned_on_several,
        ),
        own_cache_rule("vLLM", _QUANTIZATION),
        *server_rules(
            "vLLM",
            fused=f"{_QUANTIZATION}/compressed_tensors/utils.py (should_ignore_layer)",
            experts=f"{_QUANTIZATION}/compressed_tensors/compressed_tensors_moe/compressed_tensors_moe.py",
            routers="vllm/model_executor/models (GateLinear without quant_config)",
            routers_as_configured=_ROUTERS_AS_CONFIGURED,
            head=f"{_GROUPS} (ParallelLMHead)",
            ignore=f"{_GROUPS} (get_scheme_dict)",
            groups="vllm/distributed/utils.py (verify_group_size_divides_partition)",
            blocks=f"{_QUANTIZATION}/utils/fp8_utils.py (validate_fp8_block_shape)",
            heads="vllm/config/model.py (verify_with_parallel_config)",
        ),
    ),
)
