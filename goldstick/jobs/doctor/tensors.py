"""Tensors: missing, too many, misshapen, or not of the bits and groups that the config declares."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from goldstick.checkpoint.unused_tensors import unused_tensors
from goldstick.formats.base import StoredLayer
from goldstick.formats.input_scale import part_name
from goldstick.hf.idle_biases import idle_biases
from goldstick.hf.key_report import key_report
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.finding import Finding

_AGAIN = "fetch the checkpoint again, or export it again with the tool it came from"


def tensor_findings(examined: Examined) -> Iterator[Finding]:
    """What is missing, extra or misshapen, by config and headers alone."""
    unused = [*unused_tensors(examined.directory)]
    if examined.stored is not None:
        unused += idle_biases(examined.stored, examined.names, examined.network)
    found = key_report(examined.tensors, examined.stored, examined.table, examined.names, examined.network, unused)
    told = {finding.where[0].partition(":")[0] for finding in examined.contradictions}
    if missing := _untold(examined, found.missing, told):
        yield Finding(
            severity="fault",
            check="missing-tensors",
            what="the model has parameters for which nothing is stored; readers start them at random",
            where=tuple(missing),
            remedy=f"{_AGAIN}; for a missing head, 'tie_word_embeddings' in config.json may be wrong",
        )
    if extra := _untold(examined, found.extra, told):
        yield Finding(
            severity="fault" if examined.stored else "remark",
            check="extra-tensors",
            what="tensors that belong to nothing in the model",
            where=tuple(extra),
            remedy="remove them, or correct what config.json says of the model",
        )
    if found.misshapen:
        yield Finding(
            severity="fault",
            check="shapes",
            what="tensors of another shape than the model's",
            where=tuple(f"{name} is {words}" for name, words in found.misshapen.items()),
            remedy="config.json and weights do not belong together: fetch both again",
        )
    for layer in examined.layers:
        yield from _parts(examined, layer)


def _untold(examined: Examined, names: tuple[str, ...], told: set[str]) -> list[str]:
    """Names that no contradiction of the config has named yet."""
    weight_name = examined.stored.format.weight_name if examined.stored else lambda name, dtype: None
    stems = {(weight_name(name, None) or name).removesuffix(".weight") for name in told}
    return [name for name in names if name not in told and name.rpartition(".")[0] not in stems]


def _parts(examined: Examined, layer: StoredLayer) -> Iterator[Finding]:
    assert examined.stored is not None
    wrong = []
    for suffix, (shape, dtype) in examined.stored.format.stored_specs(layer, examined.tensors).items():
        name = part_name(layer.name, suffix)
        info = examined.tensors.get(name)
        if info is None:
            yield Finding(
                severity="fault",
                check="missing-tensors",
                what="quantized layers lack tensors that their config calls for",
                where=(name,),
                remedy=_AGAIN,
            )
        elif (info.shape, info.dtype) != (shape, dtype):
            wrong.append(f"{name} is {_words(info.shape, info.dtype)}, not {_words(shape, dtype)}")
    if wrong:
        yield Finding(
            severity="fault",
            check="config",
            what="tensors are not those of the bits and groups that the config declares",
            where=(f"{'; '.join(wrong)}{_fitting(examined, layer)}",),
            remedy="correct bits and group_size in quantization_config, or export the checkpoint again",
        )


def _fitting(examined: Examined, layer: StoredLayer) -> str:
    """Which bits and groups the tensors would fit, in words."""
    assert examined.stored is not None
    storage, inputs = examined.stored.format, layer.shape[-1]
    codes = examined.tensors.get(part_name(layer.name, storage.codes_suffix))
    scales = examined.tensors.get(part_name(layer.name, storage.scale_suffix or ""))
    if codes is None or scales is None or len(codes.shape) < 2 or len(scales.shape) < 2:
        return ""
    bits, groups = storage.fitting(codes, scales, inputs)
    if bits != int(bits) or not 1 <= bits <= 8 or groups < 1 or inputs % groups:
        return ""
    size = "one scale by channel" if groups == 1 else f"groups of {inputs // groups}"
    return f"; they fit {int(bits)} bits with {size}"


def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
