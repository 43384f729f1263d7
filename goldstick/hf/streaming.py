"""A transformers model whose blocks are read from disk when their turn comes, and let go after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.checkpoint.kv_cache import read_kv
from goldstick.checkpoint.safetensors_file import TensorInfo
from goldstick.checkpoint.source import open_tensors, read_config
from goldstick.core.freed_memory import return_freed_memory
from goldstick.errors import CheckpointError
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.counted_modules import most_modules
from goldstick.hf.example_inputs import give_inputs, inputs_beside
from goldstick.hf.loading import LazyTensor, from_pretrained, quantized_class
from goldstick.hf.names import CheckpointNames, model_class
from goldstick.hf.rehearsal import put_into
from goldstick.hf.resting_layers import RestingLayers, move_to
from goldstick.hf.source import float_config, open_source, runs_in_float
from goldstick.structure.blocks import block_of, find_blocks
from goldstick.structure.network import Network


class StreamedModel:
    """The model of a checkpoint directory, float or quantized, with one block in memory at a time.

    ``from_pretrained`` builds the model and reads everything outside the repeated blocks, exactly as it always does;
    the weights of the blocks stay on the meta device until :meth:`load`, which reads them with the same code of
    transformers. So a streamed model computes, to the bit, what the whole one computes.

    Args:
        directory: A float checkpoint, or a quantized one that goldstick loads.
        dequantized: Whether a quantized one gives the float model that its codes stand for.
        device: Where what is read goes; the CPU where ``None``.

    Attributes:
        model: The model.
        blocks: Paths of its repeated blocks; empty where it has none, and everything was read.
        entered: The block that :meth:`enter` read last; empty where there is none.
        keeps_blocks: Whether blocks that :meth:`enter` read stay in memory.
        resting: Layers of its blocks that are on the device only while they are used; ``None`` for none.

    Raises:
        SourceError: The directory is no readable model.
        CheckpointError: A tensor outside the blocks is missing.
    """

    def __init__(self, directory: Path, *, dequantized: bool = False, device: torch.device | None = None) -> None:
        self.directory, self._device = directory, device
        self._of_block: dict[str, dict[str, TensorInfo]] = {}
        self._outside: dict[str, TensorInfo] = {}
        self.blocks: tuple[str, ...] = ()
        self.entered = ""
        self.keeps_blocks = False
        self.resting: RestingLayers | None = None
        config = read_config(directory, "no checkpoint")
        table = config.get("quantization_config")
        tensors: Mapping[str, TensorInfo] | None = None
        dequantized = dequantized or runs_in_float(directory, config)
        if not dequantized:
            cls, settings, tensors = quantized_class(directory, config)
        else:
            cls, settings = model_class(config, str(directory)), float_config(directory)
            tensors = open_source(directory).tensors if table is not None else None
        self._tensors: Mapping[str, TensorInfo] = open_tensors(directory) if tensors is None else tensors
        # To transformers a class from elsewhere is custom code, and gets no conversions.
        own = {"__module__": cls.__module__, "_load_pretrained_model": staticmethod(self._read_the_rest)}
        streaming: Any = type(cls.__name__, (cls,), own)
        with most_modules(len(self._tensors)):
            model, info = from_pretrained(streaming, directory, config=settings, dtype="auto", tensors=tensors)
        model.__class__ = cls
        self.model: nn.Module = model.eval()
        self._to_device(self.model)
        give_inputs(self.model, inputs_beside(directory))
        self._require(info["missing_keys"], info["mismatched_keys"], info["unexpected_keys"])
        kv = None if dequantized else read_kv(directory, table or {})
        if kv is not None:
            use_quantized_cache(model, kv)

    def load(self, block: str) -> None:
        """Read the weights of a block.

        Raises:
            CheckpointError: A tensor of it is missing or does not fit.
        """
        found, _ = self._read(self._of_block[block])
        state = self._model.get_submodule(block).state_dict()
        found.missing_keys = {f"{block}.{name}" for name, value in state.items() if value.is_meta}
        self._model._adjust_missing_and_unexpected_keys(found)
        self._require(found.missing_keys, {*found.mismatched_keys, *found.conversion_errors}, found.unexpected_keys)
        if self._quantizer is not None:
            self._quantizer.finish(block)
        module = self._model.get_submodule(block)
        if self.resting is None or self._device is None:
            self._to_device(module)
            return
        for path, part in module.named_modules(prefix=block):
            if path not in self.resting.paths:
                self._to_device(part, recurse=False)
        self.resting.watch(block, module)

    def nbytes_on_device(self) -> int:
        """Bytes of resting layers that are on the device now."""
        return 0 if self.resting is None else self.resting.nbytes()

    def read_with(self, block: str | None) -> str | None:
        """A block if it is streamed; ``None`` for one that was read with what lies outside."""
        return block if block in self.blocks else None

    def enter(self, block: str) -> None:
        """Read a block whose turn has come, and let go of the one that was entered before it."""
        if self.entered and not self.keeps_blocks:
            self.release(self.entered)
            return_freed_memory()
        self.entered = block
        self.load(block)

    def release(self, block: str) -> None:
        """Let go of the weights of a block; buffers that no checkpoint holds stay. A float block can be read again."""
        if self.resting is not None:
            self.resting.leave()
        for module in self._model.get_submodule(block).modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._non_persistent_buffers_set:
                    module._buffers[name] = buffer.to("meta")

    def load_outside(self) -> None:
        """Read again what :meth:`release_outside` let go of.

        Raises:
            CheckpointError: A tensor does not fit any more.
        """
        found, _ = self._read(self._outside)
        self._model.tie_weights()
        self._to_device(self._model)
        self._require((), {*found.mismatched_keys, *found.conversion_errors}, ())

    def release_outside(self) -> None:
        """Let go of the parameters outside the blocks of a float model that its files hold."""
        names = CheckpointNames(self._model)
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        stored = {id(parameters.get(names.piece(name).parameter)) for name in self._outside} - {id(None)}
        for module in self._model.modules():
            for name, parameter in module._parameters.items():
                if id(parameter) in stored:  # those that are tied to one of them, too
                    module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=False)

    def _read_the_rest(
        self, model: Any, state_dict: Any, checkpoint_files: Any, load_config: Any, expected_keys: Any = None
    ) -> tuple[Any, Any]:
        """In place of transformers' reading of all tensors: read those outside the blocks, remember the others."""
        self._model, self._settings, self._quantizer = model, load_config, load_config.hf_quantizer
        # The places for packed weights hold no matrices, by which blocks are recognised.
        network = Network(model) if self._quantizer is None else self._quantizer.network
        blocks = find_blocks(model) if self._quantizer is None else network.blocks
        tied = [(block_of(one, blocks), block_of(other, blocks)) for one, other in network.tied().items()]
        together = {block for pair in tied if pair[0] != pair[1] for block in pair}
        self.blocks = tuple(
            block for block in blocks if block not in together and _is_called(model.get_submodule(block))
        )
        names = CheckpointNames(model)
        for name, info in self._tensors.items():
            block = block_of(names.piece(name).parameter, self.blocks)
            (self._outside if block is None else self._of_block.setdefault(block, {}))[name] = info
        if self._quantizer is not None:
            self._quantizer.postponed = self.blocks
        found, offloaded = self._read(self._outside)
        found.missing_keys = {name for name in found.missing_keys if block_of(name, self.blocks) is None}
        return found, offloaded

    def _read(self, infos: Mapping[str, TensorInfo]) -> tuple[Any, Any]:
        return put_into(self._model, {name: LazyTensor(info) for name, info in infos.items()}, self._settings)

    def _to_device(self, module: nn.Module, recurse: bool = True) -> None:
        """Move what was read; parameters stay the objects they are, so that ties hold."""
        if self._device is not None:
            move_to(module, self._device, recurse)

    def _require(self, missing: Iterable[Any], wrong: Iterable[Any], unexpected: Iterable[Any]) -> None:
        problems = {"missing": missing, "misshapen": wrong}
        if self._quantizer is not None:  # a float checkpoint may hold what its model has no use for
            problems["unexpected"] = unexpected
        for kind, names in problems.items():
            if some := sorted(map(str, names)):
                raise CheckpointError(
                    f"{self.directory} does not hold what its config promises: {kind} {', '.join(some[:3])}"
                    f"{f' and {len(some) - 3} more' if len(some) > 3 else ''}. The checkpoint is damaged or incomplete."
                )


def _is_called(module: nn.Module) -> bool:
    """Whether a block's turn can be seen, and stays where it is when it is read: no list of layers, and no layer."""
    return not isinstance(module, (nn.ModuleList, nn.ModuleDict)) and any(True for _ in module.children())
