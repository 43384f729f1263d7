"""SGLang: what its loaders take."""

from __future__ import annotations

from collections.abc import Iterator

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
from goldstick.jobs.doctor.runtimes.exceptions import floats_of_no_group
from goldstick.jobs.doctor.runtimes.own_cache import own_cache_rule
from goldstick.jobs.doctor.runtimes.runtime import (
    AMD,
    CPU,
    HARDWARE,
    NVIDIA,
    Answers,
    Rule,
    Runtime,
    from_capability,
    names_in,
    no,
    refused,
    unread,
    yes,
)
from goldstick.jobs.doctor.runtimes.servers import server_rules
from goldstick.jobs.doctor.runtimes.sglang_kernels import awq, compressed, fine_grained_fp8, gptq, model_optimizer
from goldstick.jobs.doctor.runtimes.subject import Subject
from goldstick.jobs.doctor.runtimes.transforms import turned_at_run_time

_QUANTIZATION = "sglang/srt/layers/quantization"
_GROUPS = f"{_QUANTIZATION}/compressed_tensors/compressed_tensors.py"

#: Architectures whose layers are built without a quant_config.
_FLOAT_ONLY = ("MambaForCausalLM",)


def _parts(subject: Subject) -> Iterator[tuple[str, Answers]]:
    table, method = subject.table, subject.method
    if method == COMPRESSED_TENSORS.method:
        mixture = any(module.expert for module in subject.quantized)
        for group in groups_of(table):
            yield group.words, compressed(group, subject, mixture)
    elif method == GPTQ.method:
        yield f"GPTQ of {table.get('bits')} bits, groups of {table.get('group_size')}", gptq(table, subject)
    elif method == AWQ.method:
        yield f"AWQ of {table.get('bits')} bits", awq(table, subject)
    elif method == FP8.method:
        yield f"{method} with {table.get('activation_scheme')} inputs", fine_grained_fp8(table)
    elif method == MODELOPT.method:
        yield f"{method} {table.get('quant_algo')}", model_optimizer(table)
    elif method == MXFP4.method:
        yield str(method), {NVIDIA: from_capability("8.0"), AMD: yes("MI350 or later"), CPU: unread()}
    elif method == GGUF.method:
        no_cpu = no("there is no such kernel for CPUs")
        yield "GGUF", {NVIDIA: from_capability("6.0", "give it the file"), AMD: unread(), CPU: no_cpu}
    elif method in (AUTO_ROUND.method, BITSANDBYTES.method):
        yield str(method), dict.fromkeys(HARDWARE, unread())
    elif method is not None:
        yield f"quant_method {method}", refused("it knows no such method")


def _foreign(subject: Subject) -> Iterator[str]:
    if subject.gguf is None and subject.architecture not in names_in("sglang"):
        yield subject.architecture or "config.json names no architecture"


def _never_quantized(subject: Subject) -> Iterator[str]:
    if subject.architecture in _FLOAT_ONLY and subject.quantized:
        yield subject.architecture


def _floats(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method:
        yield from floats_of_no_group(subject)


SGLANG = Runtime(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    formats=(COMPRESSED_TENSORS, GPTQ, AWQ, FP8, MODELOPT, MXFP4),
    parts=_parts,
    read_in=f"{_GROUPS}, {_QUANTIZATION}/__init__.py, {_QUANTIZATION}/gptq/gptq.py, {_QUANTIZATION}/awq/awq.py",
    remedy="quantize again with a scheme of docs/runtimes.md; 'goldstick quantize --for sglang' refuses others",
    rules=(
        Rule(
            check="architecture",
            severity="remark",
            what="SGLang has no model of this architecture, and tries transformers' own, whose layers may differ",
            remedy="try it ('--model-impl transformers'), and compare its outputs",
            read_in="sglang/srt/models/registry.py",
            find=_foreign,
        ),
        Rule(
            check="architecture",
            severity="fault",
            what="SGLang builds the layers of this architecture in float, whatever the config says",
            remedy="serve the float model, or run the checkpoint in vLLM",
            read_in="sglang/srt/models (models that pass no quant_config on)",
            find=_never_quantized,
        ),
        Rule(
            check="targets",
            severity="fault",
            what="float layers that neither 'targets' nor 'ignore' names, where SGLang stops",
            remedy="add them to 'ignore' in quantization_config",
            read_in=f"{_QUANTIZATION}/compressed_tensors/utils.py (find_matched_target)",
            find=_floats,
        ),
        Rule(
            check="transforms",
            severity="fault",
            what="layers are to turn their input at run time, which SGLang does not do: outputs are wrong",
            remedy="serve it with vLLM, or quantize again without rotate's 'online: true'",
            read_in=f"{_QUANTIZATION}/compressed_tensors (no file reads 'transform_config')",
            find=turned_at_run_time,
        ),
        own_cache_rule("SGLang", _QUANTIZATION),
        *server_rules(
            "SGLang",
            fused=f"{_QUANTIZATION}/compressed_tensors/utils.py (should_ignore_layer)",
            experts=f"{_GROUPS} (get_moe_scheme)",
            routers="sglang/srt/models/mixtral.py, qwen2_moe.py (gates without quant_config)",
            routers_as_configured=frozenset({"Qwen3MoeForCausalLM"}),
            head=f"{_GROUPS} (get_lm_head_scheme)",
            ignore=f"{_GROUPS} (get_scheme_dict)",
            groups=f"{_QUANTIZATION}/marlin_utils.py (verify_marlin_supports_shape)",
            blocks=f"{_QUANTIZATION}/fp8.py (validate_block_quant_shapes)",
            heads="sglang/srt/models/llama.py (LlamaAttention)",
        ),
    ),
)
