"""Servers: the rules that vLLM and SGLang, whose layers are built alike, have in common."""

from __future__ import annotations

from collections.abc import Iterator

from goldstick.formats.compressed_tensors import COMPRESSED_TENSORS
from goldstick.formats.fp8 import FP8
from goldstick.formats.modelopt import MODELOPT
from goldstick.formats.mxfp4 import MXFP4
from goldstick.jobs.doctor.runtimes.exceptions import unnamed_heads, unused_floats
from goldstick.jobs.doctor.runtimes.layers_together import (
    experts_otherwise,
    fused_otherwise,
    quantized_heads,
    quantized_routers,
    split_blocks,
    split_groups,
    split_heads,
)
from goldstick.jobs.doctor.runtimes.runtime import Rule
from goldstick.jobs.doctor.runtimes.subject import Subject


def server_rules(
    title: str,
    *,
    fused: str,
    experts: str,
    routers: str,
    routers_as_configured: frozenset[str],
    head: str,
    ignore: str,
    groups: str,
    blocks: str,
    heads: str,
) -> tuple[Rule, ...]:
    """The rules of a server.

    Args:
        title: Its name in sentences.
        fused, experts, routers, head, ignore, groups, blocks, heads: The files of its source that say so.
        routers_as_configured: Architectures whose router is built as the config says; those of all others are float.
    """

    def built_in_float(subject: Subject) -> Iterator[str]:
        if subject.architecture not in routers_as_configured:
            yield from quantized_routers(subject)

    return (
        Rule(
            check="fused-schemes",
            severity="fault",
            what=f"layers that {title} makes one of have different schemes, or one of them is float",
            remedy="give the layers of a fused one the same scheme, or leave all of them in float",
            read_in=fused,
            find=fused_otherwise,
        ),
        Rule(
            check="expert-schemes",
            severity="fault",
            what=f"the matrices of a layer's experts have different schemes; {title} runs them in one kernel",
            remedy="give all experts of a layer, gate, up and down, the same scheme",
            read_in=experts,
            find=experts_otherwise,
        ),
        Rule(
            check="router",
            severity="fault",
            what=f"a router is quantized, and {title} builds it in float and finds no weight for it",
            remedy="leave routers in float ('--exclude'); goldstick does so unless a recipe includes them",
            read_in=routers,
            find=built_in_float,
        ),
        Rule(
            check="head",
            severity="fault",
            what=f"the output head is quantized, and the config does not say so where {title} looks for it",
            remedy="name it in 'targets' (compressed-tensors), set 'lm_head': true (GPTQ), or leave it in float",
            read_in=head,
            find=_unsaid_heads,
        ),
        Rule(
            check="tied-head",
            severity="fault",
            what=f"the head is quantized and config.json ties it to the embedding: {title} passes over its codes",
            remedy="set 'tie_word_embeddings': false in config.json",
            read_in=head,
            find=_tied_heads,
        ),
        Rule(
            check="ignore",
            severity="remark",
            what="float layers beside the model (such as those that predict further tokens) that the config does not "
            f"except: run with speculative decoding, {title} looks for their codes",
            remedy="add them to 'ignore' in quantization_config",
            read_in=ignore,
            find=_unexcepted,
        ),
        Rule(
            check="groups",
            severity="fault",
            what="the inputs of a layer, on each device, are not whole groups",
            remedy="serve it on fewer devices, or quantize with a group size that divides them",
            read_in=groups,
            find=split_groups,
        ),
        Rule(
            check="blocks",
            severity="fault",
            what="the outputs of a layer, on each device or in a fused layer, are not whole blocks of FP8",
            remedy="serve it on fewer devices, with expert parallelism, or quantize to FP8 by channel (fp8-dynamic)",
            read_in=blocks,
            find=split_blocks,
        ),
        Rule(
            check="heads",
            severity="fault",
            what="attention heads cannot be split over the devices",
            remedy="take a number of devices that divides them",
            read_in=heads,
            find=split_heads,
        ),
    )


def _unsaid_heads(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method:
        yield from unnamed_heads(subject)
    elif subject.method in (FP8.method, MXFP4.method) or not subject.table.get("lm_head"):
        yield from (head.name for head in quantized_heads(subject) if subject.method != MODELOPT.method)


def _tied_heads(subject: Subject) -> Iterator[str]:
    tied = subject.config.get("tie_word_embeddings", subject.text_config.get("tie_word_embeddings"))
    yield from (head.name for head in quantized_heads(subject) if tied is True)


def _unexcepted(subject: Subject) -> Iterator[str]:
    if subject.method == COMPRESSED_TENSORS.method:
        yield from unused_floats(subject)
