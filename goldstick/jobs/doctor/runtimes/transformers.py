"""transformers alone, without goldstick: what its quantizers load, with which packages."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from goldstick.formats import FALLBACK
from goldstick.formats.auto_round import AUTO_ROUND
from goldstick.formats.awq import AWQ
from goldstick.formats.bitsandbytes import BITSANDBYTES
from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.fp8 import FP8
from goldstick.formats.gguf import GGUF
from goldstick.formats.gptq import GPTQ
from goldstick.formats.mlx import MLX
from goldstick.formats.mxfp4 import MXFP4
from goldstick.hf.initialisers import initialisers_fail
from goldstick.jobs.doctor.runtimes.arguments import groups_of
from goldstick.jobs.doctor.runtimes.config_beside import config_beside_rule
from goldstick.jobs.doctor.runtimes.own_cache import own_cache_rule
from goldstick.jobs.doctor.runtimes.runtime import (
    AMD,
    CPU,
    NVIDIA,
    Answers,
    Rule,
    Runtime,
    from_capability,
    names_in,
    refused,
    yes,
)
from goldstick.jobs.doctor.runtimes.subject import Subject
from goldstick.jobs.doctor.runtimes.transformers_packages import by_auto_round, by_gptqmodel, everywhere
from goldstick.jobs.doctor.runtimes.transforms import turned_at_run_time

_SINGLE = "model.safetensors"


def _parts(subject: Subject) -> Iterator[tuple[str, Answers]]:
    table, method = subject.table, subject.method
    if method == COMPRESSED_TENSORS.method:
        for group in groups_of(table):
            yield group.words, everywhere("in 16 bits, decompressed at the first pass; package compressed-tensors")
    elif method == GPTQ.method:
        yield "GPTQ", by_gptqmodel(subject, "packages gptqmodel and optimum")
    elif method == AWQ.method:
        four = table.get("bits", table.get("w_bit")) == 4
        yield "AWQ", by_gptqmodel(subject, "packages gptqmodel and accelerate") if four else refused("it loads 4 bits")
    elif method == FP8.method:
        dequantized = yes("dequantized to bfloat16 while it is loaded; package accelerate")
        fp8 = from_capability("8.9", "dequantized to bfloat16 before; package accelerate")
        yield str(method), {NVIDIA: fp8, AMD: dequantized, CPU: dequantized}
    elif method == MXFP4.method:
        words = "packages accelerate, triton and kernels; without them dequantized to bfloat16"
        yield str(method), everywhere(words)
    elif method == GGUF.method:
        yield "GGUF", everywhere("with gguf_file=; packages gguf and accelerate; dequantized where it has no kernel")
    elif method == AUTO_ROUND.method:
        yield str(method), by_auto_round(table.get("packing_format"))
    elif method == BITSANDBYTES.method:
        yield str(method), everywhere("package bitsandbytes")
    elif method == MLX.method:
        yield "MLX", refused("it knows no such method")
    elif method is not None:
        yield f"quant_method {method}", refused("it draws the weights of a method that it does not know at random")


def _asymmetric(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method and subject.table.get("dequantize") is not True:
        yield from (group.words for group in groups_of(subject.table) if not group.weights.symmetric)


def _dropped_inputs(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method and subject.table.get("dequantize") is True:
        yield from (group.words for group in groups_of(subject.table) if group.inputs is not None)


def _experts(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method:
        for module in subject.quantized:
            assert module.scheme is not None
            if module.expert and (not module.scheme.weight.symmetric or module.scheme.activation is not None):
                yield f"{module.name}: {module.label}"


def _dtype(subject: Subject) -> Iterator[str]:
    dtype = subject.config.get("dtype", subject.config.get("torch_dtype")) or _stored_dtype(subject)
    if subject.method == COMPRESSED_TENSORS.method and dtype not in (None, "bfloat16"):
        for group in groups_of(subject.table):
            if group.weights.nvfp4 or group.weights.mxfp4 or group.weights.scale_dtype == "torch.uint8":
                yield f"{group.words}; the model is {dtype}"


def _stored_dtype(subject: Subject) -> str | None:
    """The dtype of the float matrices in the files, which transformers takes where the config names none."""
    for info in subject.stored:
        if info.name.endswith(".weight") and info.dtype in (torch.float32, torch.float16, torch.bfloat16):
            return str(info.dtype).removeprefix("torch.")
    return None


def _initialisers(subject: Subject) -> Iterator[str]:
    if subject.model is None or subject.method != COMPRESSED_TENSORS.method:
        return
    packed = {
        module.name for module in subject.quantized if module.scheme is not None and module.scheme.activation is None
    }  # fmt: skip
    reason = initialisers_fail(subject.model, packed) if packed else None
    if reason is not None:
        yield f"{subject.architecture}: {reason}"


def _embedded(subject: Subject) -> Iterator[str]:
    packed = subject.method == COMPRESSED_TENSORS.method and subject.table.get("dequantize") is not True
    if packed and "modules.json" in subject.files:
        yield from (group.words for group in groups_of(subject.table))


def _scaled_activations(subject: Subject) -> Iterator[str]:
    """Activations that are given scales of their own to divide by, which transformers' AWQ expects in the files."""
    name = names_in("transformers_awq_activations").get(str(subject.config.get("model_type")))
    if subject.method != AWQ.method or name is None or subject.model is None:
        return
    stored = {info.name for info in subject.stored}
    for path, _ in subject.model.named_modules():
        if path.rpartition(".")[2] == name and f"{path}.scales" not in stored:
            yield path


def _no_texts(subject: Subject) -> Iterator[str]:
    main = getattr(type(subject.model), "main_input_name", "input_ids")
    if subject.method == GPTQ.method and subject.model is not None and main != "input_ids":
        yield f"{subject.architecture} takes {main}"


def _named_otherwise(subject: Subject) -> Iterator[str]:
    weights = {name for name in subject.files if name.endswith(".safetensors")}
    if weights and not {_SINGLE, f"{_SINGLE}.index.json"} & subject.files:
        yield ", ".join(sorted(weights)[:3])


def _edges(subject: Subject) -> Iterator[str]:
    if subject.method != FP8.method:
        return
    for module in subject.quantized:
        assert module.scheme is not None
        size = module.scheme.weight.group_size
        if size is not None and any(width % size for width in module.shape[-2:]):
            yield f"{module.name}: {list(module.shape)} in blocks of {size}"


def _gguf(subject: Subject) -> Iterator[str]:
    if subject.gguf is not None:
        name = subject.gguf.metadata.get("general.architecture")
        if name not in names_in("transformers_gguf"):
            yield f"general.architecture {name}"


_GGUF_READER = "transformers/modeling_gguf_pytorch_utils.py"
_COMPRESSED = "transformers/quantizers/quantizer_compressed_tensors.py"

TRANSFORMERS = Runtime(
    name="transformers",
    title="transformers",
    version="5.23.0",
    formats=(COMPRESSED_TENSORS, GPTQ, AWQ, FP8, MXFP4, BITSANDBYTES),
    splits=False,
    parts=_parts,
    read_in="transformers/quantizers/auto.py",
    remedy="export it ('goldstick export --format compressed-tensors'), or import goldstick first, which loads "
    f"its own formats ({FALLBACK}) and others",
    rules=(
        Rule(
            check="asymmetric",
            severity="fault",
            what="asymmetric weights, whose zeros compressed-tensors stores in another shape than it creates",
            remedy="add 'dequantize': true to quantization_config, as goldstick writes it",
            read_in=f"{_COMPRESSED}, with compressed-tensors 0.20.0",
            find=_asymmetric,
        ),
        Rule(
            check="transforms",
            severity="fault",
            what="layers are to turn their input at run time, which transformers does not let compressed-tensors do: "
            "outputs are wrong",
            remedy="load it with goldstick.load; or hand the config's 'transform_config' to compressed-tensors' "
            "apply_transform_config after loading (docs/rotation.md)",
            read_in=f"{_COMPRESSED}, with compressed-tensors 0.20.0",
            find=turned_at_run_time,
        ),
        config_beside_rule("transformers/quantizers/auto.py (get_hf_quantizer)"),
        own_cache_rule("transformers without goldstick", "transformers/quantizers"),
        Rule(
            check="inputs",
            severity="fault",
            what="'dequantize' in quantization_config, with which inputs are not quantized",
            remedy="remove it where all weights are symmetric",
            read_in=_COMPRESSED,
            find=_dropped_inputs,
        ),
        Rule(
            check="experts",
            severity="fault",
            what="experts that are asymmetric or have quantized inputs, which are not loaded into fused experts",
            remedy="quantize experts symmetric and with float inputs, or load it with goldstick.load",
            read_in=f"{_COMPRESSED}, with compressed-tensors 0.20.0",
            find=_experts,
        ),
        Rule(
            check="dtype",
            severity="fault",
            what="MX and NVFP4 layers are computed in bfloat16, and the model is of another dtype",
            remedy="load it with dtype=torch.bfloat16, or set 'dtype' in config.json",
            read_in=f"{_COMPRESSED}, with compressed-tensors 0.20.0",
            find=_dtype,
        ),
        Rule(
            check="initialisers",
            severity="fault",
            what="initialisers of the model reach for the weights of packed layers, which have none",
            remedy="load it with goldstick.load; or leave these layers in float",
            read_in="transformers/modeling_utils.py (initialize_weights)",
            find=_initialisers,
        ),
        Rule(
            check="sentence-transformers",
            severity="remark",
            what="sentence-transformers ends with an error in the first call, since it calls 'forward' past the hook "
            "that decompresses the weights",
            remedy="after loading, call the model within once: model[0].auto_model(**model.tokenizer(['a'], "
            "return_tensors='pt'))",
            read_in="sentence_transformers/base/modules/transformer.py (6.2.0), with compressed-tensors 0.20.0",
            find=_embedded,
        ),
        Rule(
            check="activations",
            severity="fault",
            what="AWQ divides activations of this architecture by scales that the files lack: outputs are NaN or wrong",
            remedy="store it as GPTQ or compressed-tensors ('goldstick export')",
            read_in="transformers/integrations/awq.py (AWQ_SCALES_MAPPINGS), with gptqmodel 7.7.0",
            find=_scaled_activations,
        ),
        Rule(
            check="texts",
            severity="fault",
            what="GPTQ is loaded for models of text alone",
            remedy="store it as compressed-tensors ('goldstick export')",
            read_in="transformers/quantizers/quantizer_gptq.py",
            find=_no_texts,
        ),
        Rule(
            check="file-name",
            severity="fault",
            what="no weight file has a name that transformers looks for",
            remedy=f"rename it {_SINGLE}",
            read_in="transformers/modeling_utils.py",
            find=_named_otherwise,
        ),
        Rule(
            check="blocks",
            severity="fault",
            what="matrices whose rows or inputs are not whole blocks of FP8, which are read wrong or refused",
            remedy="leave these layers in float, or quantize to FP8 by channel (fp8-dynamic)",
            read_in="transformers/integrations/finegrained_fp8.py",
            find=_edges,
        ),
        Rule(
            check="architecture",
            severity="fault",
            what="GGUF files of this architecture are not read",
            remedy="run it in llama.cpp, load it with goldstick.load, or export it to another format",
            read_in=_GGUF_READER,
            find=_gguf,
        ),
    ),
)
