"""The exact bytes of a planned checkpoint's weight files: tensors, their padding, and the headers before them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from goldstick.checkpoint.gguf.writer import GgufWriter
from goldstick.checkpoint.safetensors_file import header_bytes
from goldstick.checkpoint.shards import MAX_SHARD_SIZE, shards_of
from goldstick.jobs.plan.plan import Plan, planned_gguf


def weight_file_bytes(plan: Plan) -> int:
    """Bytes of ``model.gguf``, or of all ``.safetensors`` files together, as writing the plan will make them.

    The files' index, where there are several, and what lies beside the weights (config, tokenizer, report) are no part
    of it.
    """
    layout = planned_gguf(plan)
    if layout is not None:
        with tempfile.TemporaryDirectory() as folder:
            writer = GgufWriter(Path(folder) / "head", layout.architecture.name, layout.metadata, layout.specs)
            writer.abandon()
            return writer.nbytes
    shards = shards_of([tensor.outputs for tensor in plan.tensors], plan.recipe.export.max_shard_size or MAX_SHARD_SIZE)
    return sum(len(header_bytes(shard)) for shard in shards) + plan.bytes_after
