"""What a checkpoint, or a plan of one, gives the rules of runtimes to look at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.gguf.shards import gguf_file_in, read_model
from goldstick.checkpoint.source import read_config
from goldstick.core.layout import Layout
from goldstick.errors import GoldstickError
from goldstick.formats.gguf import GGUF
from goldstick.jobs.doctor.examined import Examined
from goldstick.jobs.doctor.runtimes.subject import Module, Subject
from goldstick.structure.network import Network, Role, Site

_CODES = (".qweight", ".weight_packed")
#: Layouts of the matrices that rules look at.
LAYOUTS = (Layout.LINEAR, Layout.EXPERTS, Layout.TRANSPOSED_EXPERTS)


def subject_of(directory: Path, examined: Examined | None, tensor_parallel: int) -> Subject:
    """A checkpoint as rules look at it; its config and headers alone where goldstick does not read the rest.

    Args:
        directory: The checkpoint.
        examined: The checkpoint as goldstick reads it; ``None`` where it does not.
        tensor_parallel: Over how many devices layers are to be split.
    """
    config = examined.config if examined is not None else _config(directory)
    table = config.get("quantization_config")
    file = gguf_file_in(directory)
    header = None
    if file is not None:
        try:
            header = read_model(file)
        except GoldstickError:  # told by the checks of the file
            header = None
    return Subject(
        directory=directory,
        config=config,
        table=table if isinstance(table, Mapping) else {},
        modules=_modules(examined) if examined is not None else (),
        packed_otherwise=_packed_otherwise(examined) if examined is not None else (),
        unused=_unused(examined) if examined is not None else {},
        tensor_parallel=tensor_parallel,
        files=frozenset(path.name for path in directory.iterdir()),
        gguf=header,
        model=examined.network.model if examined is not None else None,
    )


def subject_of_file(path: Path, tensor_parallel: int) -> Subject:
    """A GGUF file that goldstick does not read, or a directory that holds one, by its header alone."""
    files = [path] if path.is_file() else sorted(path.glob("*.gguf"))
    header = None
    try:
        header = read_model(files[0]) if files else None
    except GoldstickError:  # told by the checks of the file
        header = None
    table = {"quant_method": GGUF.method}
    return Subject(config={}, table=table, gguf=header, tensor_parallel=tensor_parallel)


def _config(directory: Path) -> Mapping[str, Any]:
    try:
        return read_config(directory)
    except GoldstickError:
        return {}


def _modules(examined: Examined) -> tuple[Module, ...]:
    sites = sites_of(examined.network)
    found = [
        Module(
            name=layer.name.removesuffix(".weight"),
            shape=layer.shape[-2:],
            scheme=layer.scheme,
            role=role_of(sites.get(examined.names.piece(layer.name).parameter)),
        )
        for layer in examined.layers
    ]
    codes = {layer.name for layer in examined.layers}
    for name, info in examined.tensors.items():
        site = sites.get(examined.names.piece(name).parameter)
        if site is None or name in codes or not name.endswith(".weight") or not info.dtype.is_floating_point:
            continue
        if len(info.shape) == 2 and site.layout in LAYOUTS:
            module = name.removesuffix(".weight")
            found.append(Module(name=module, shape=info.shape, scheme=None, role=role_of(site)))
    return tuple(found)


def _packed_otherwise(examined: Examined) -> tuple[str, ...]:
    """Modules with packed codes that goldstick takes for no layer, such as routers of a class of their own."""
    layers = {layer.name.removesuffix(".weight") for layer in examined.layers}
    stems = [name.removesuffix(suffix) for name in examined.tensors for suffix in _CODES if name.endswith(suffix)]
    return tuple(name for name in stems if name not in layers)


def _unused(examined: Examined) -> dict[str, torch.Size]:
    """Float matrices that the model has no place for."""
    known = examined.network.model.state_dict()
    parts = {name for layer in examined.layers for name in examined.part_names(layer)}
    found = {}
    for name, info in examined.tensors.items():
        float_matrix = name.endswith(".weight") and info.dtype in _FLOATS and len(info.shape) == 2
        if float_matrix and name not in parts and examined.names.piece(name).parameter not in known:
            found[name.removesuffix(".weight")] = info.shape
    return found


_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def sites_of(network: Network) -> dict[str, Site]:
    """Parameter → its site."""
    return {site.parameter_name: site for site in network.sites}


def role_of(site: Site | None) -> Role:
    """What a matrix is in the model; ``inner`` where the model does not know it."""
    return site.role if site is not None else "inner"
