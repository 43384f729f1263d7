"""transformers' ``from_pretrained`` on goldstick's kernels for checkpoints of compressed-tensors, GPTQ and AWQ.

A quantizer in the place of transformers' own, for methods that ``registration`` hands to goldstick: those whose package
is not installed, and those the user asks for.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from goldstick.checkpoint.kv_cache import read_kv
from goldstick.checkpoint.source import open_tensors
from goldstick.errors import FormatError
from goldstick.hf.cache import use_quantized_cache
from goldstick.hf.loading import translated
from goldstick.hf.quantizer import GoldstickConfig, GoldstickQuantizer, take_over


class ForeignConfig(GoldstickConfig):
    """The ``quantization_config`` of another format, as its file has it."""

    def __init__(self, **table: Any) -> None:
        super().__init__()
        self.table = table
        self.quant_method = table.get("quant_method", "")

    def to_dict(self) -> dict[str, Any]:
        """The table of the file."""
        return copy.deepcopy(self.table)


class ForeignQuantizer(GoldstickQuantizer):
    """Looks at the files first: which layers they quantize, and how, decides what the empty model must hold."""

    def _process_model_before_weight_loading(self, model: Any, checkpoint_files: Any = None, **_: Any) -> None:
        config: Any = self.quantization_config
        if not checkpoint_files:
            raise FormatError(
                "goldstick reads a quantized checkpoint from its files; a state_dict does not say enough."
            )
        directory, self.table = Path(checkpoint_files[0]).parent, config.table
        # Those that transformers chose: a variant's, or shards that a config names.
        self.tensors = open_tensors(directory, [Path(file).name for file in checkpoint_files])
        self.quantization_config = GoldstickConfig(**translated(directory, model, self.table, self.tensors))
        super()._process_model_before_weight_loading(model, checkpoint_files)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        model = super()._process_model_after_weight_loading(model)
        assert self.directory is not None  # of the files
        kv = read_kv(self.directory, self.table, self.tensors)
        if kv is not None:
            use_quantized_cache(model, kv)
        return model


def serve(methods: frozenset[str]) -> None:
    """Let transformers hand checkpoints of these methods to goldstick."""
    for method in sorted(methods):
        take_over(method, ForeignConfig, ForeignQuantizer)
