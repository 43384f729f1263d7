"""Subject: what the rules of a runtime look at, of a checkpoint that lies there or of one that is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from goldstick.checkpoint.gguf.file import GgufFile
from goldstick.checkpoint.safetensors_file import TensorInfo, read_header
from goldstick.core.scheme import Scheme
from goldstick.errors import GoldstickError
from goldstick.structure.network import Role
from goldstick.structure.run_together import RUN_TOGETHER


@dataclass(frozen=True, kw_only=True)
class Module:
    """One matrix of a checkpoint.

    Attributes:
        name: What the checkpoint calls the module that holds it, such as ``model.layers.0.mlp.down_proj``.
        shape: [out, in].
        scheme: What it became; ``None`` where it is float.
        role: What it is in the model.
    """

    name: str
    shape: torch.Size
    scheme: Scheme | None
    role: Role = "inner"

    @property
    def leaf(self) -> str:
        """The last word of its name."""
        return self.name.rpartition(".")[2]

    @property
    def expert(self) -> bool:
        """Whether it is a matrix of an expert."""
        return ".experts." in self.name

    @property
    def label(self) -> str:
        """Its scheme, or ``float``."""
        return self.scheme.label if self.scheme else "float"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What rules look at.

    Attributes:
        config: The config.json.
        table: Its ``quantization_config``; empty for a float checkpoint.
        modules: Linear layers and matrices of experts, as far as the checkpoint can be read.
        packed_otherwise: Modules that are stored packed, and of which the model has no linear layer.
        unused: Float matrices that the model as transformers builds it has no place for: module → shape.
        tensor_parallel: Over how many devices layers are to be split.
        files: Names of the files beside it.
        gguf: The header of its GGUF file.
        model: The model on the meta device; ``None`` where it cannot be built.
    """

    config: Mapping[str, Any]
    table: Mapping[str, Any]
    modules: tuple[Module, ...] = ()
    packed_otherwise: tuple[str, ...] = ()
    unused: Mapping[str, torch.Size] = field(default_factory=dict)
    tensor_parallel: int = 1
    files: frozenset[str] = frozenset()
    gguf: GgufFile | None = None
    model: Any = None
    directory: Path | None = None

    @property
    def method(self) -> str | None:
        """The ``quant_method`` of its config; ``None`` for a float checkpoint."""
        found = self.table.get("quant_method")
        return found if isinstance(found, str) else None

    @property
    def architecture(self) -> str:
        """The first of the config's ``architectures``."""
        found = self.config.get("architectures")
        return str(found[0]) if isinstance(found, list) and found else ""

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The part of the config that describes the language model."""
        found = self.config.get("text_config")
        return found if isinstance(found, Mapping) else self.config

    @property
    def quantized(self) -> tuple[Module, ...]:
        """Its quantized matrices."""
        return tuple(module for module in self.modules if module.scheme is not None)

    @property
    def stored(self) -> Iterator[TensorInfo]:
        """What its weight files hold; nothing of a file that cannot be read, which other checks tell."""
        for name in sorted(self.files):
            if self.directory is not None and name.endswith(".safetensors"):
                with suppress(GoldstickError):
                    yield from read_header(self.directory / name).values()

    def fused(self) -> Iterator[tuple[str, tuple[Module, ...]]]:
        """Layers that runtimes make one of, experts apart: what they are called together, and they."""
        by_name = {module.name: module for module in self.modules if not module.expert}
        for name in by_name:
            parent, _, leaf = name.rpartition(".")
            members = next((together for together in RUN_TOGETHER if together[0] == leaf), ())
            found = tuple(by_name[part] for member in members if (part := f"{parent}.{member}") in by_name)
            if len(found) > 1:
                yield f"{parent}.{{{','.join(module.leaf for module in found)}}}", found

    def experts(self) -> Iterator[tuple[str, tuple[Module, ...]]]:
        """The matrices of all experts of a layer: where they lie, and they."""
        found: dict[str, list[Module]] = {}
        for module in self.modules:
            if module.expert:
                found.setdefault(module.name.partition(".experts.")[0] + ".experts", []).append(module)
        yield from ((place, tuple(members)) for place, members in found.items())
