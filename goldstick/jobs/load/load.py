"""Load: a checkpoint directory as a model that runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from goldstick.checkpoint.gguf.directory import checkpoint_directory, made_by_another_tool
from goldstick.checkpoint.source import read_config, require_model
from goldstick.core.processes import local_rank
from goldstick.errors import CheckpointError, UsageError
from goldstick.hf.names import CheckpointNames, empty_model, model_class
from goldstick.hf.source import float_config, open_source, runs_in_float
from goldstick.structure.network import Network


def load(
    directory: str | Path,
    *,
    model: nn.Module | None = None,
    dtype: str | torch.dtype = "auto",
) -> nn.Module:
    """A model on packed weights from a compressed checkpoint.

    Args:
        directory: A checkpoint in any format that goldstick reads, or a GGUF file.
        model: The float module a native checkpoint was made from, for modules that are no transformers models; it is
            rewritten in place and returned.
        dtype: What float tensors are read as; ``auto`` keeps the checkpoint's.

    Raises:
        UsageError: The model is no module, or the dtype no float dtype.
        CheckpointError: Tensors are missing, unexpected or misshapen.
        FormatError: The checkpoint is of a kind goldstick does not read.
        SourceError: There is no such directory, or it must not be trusted.
    """
    if model is not None and not isinstance(model, nn.Module):
        raise UsageError(f"model is the float module that the checkpoint was made from, not {type(model).__name__}.")
    return _load(require_model(Path(directory), local=True), model, _float_dtype(dtype))


def _float_dtype(dtype: str | torch.dtype) -> str | torch.dtype:
    """``auto``, or a dtype by its name, with or without ``torch.``."""
    if dtype == "auto":
        return dtype
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(f"dtype is 'auto' or a float dtype such as 'bfloat16', not {dtype!r}.")
    return found


def _load(directory: Path, model: nn.Module | None, dtype: str | torch.dtype) -> nn.Module:
    if model is None and made_by_another_tool(directory):
        with checkpoint_directory(directory) as made:
            return _load(made, None, dtype)
    if model is not None or not (directory / "config.json").exists():
        from goldstick.jobs.load.plain_module import load_into

        if model is None:
            raise CheckpointError(
                f"{directory} has no config.json, so goldstick cannot build its model: give the float module it was "
                "made "
                "from, goldstick.load(directory, model=module)."
            )
        loaded = load_into(model, directory)
        return loaded if isinstance(dtype, str) else loaded.to(dtype)
    config = read_config(directory, "no checkpoint")
    if runs_in_float(directory, config):
        return load_float(directory, dtype)
    from goldstick.hf.loading import load_transformers

    return load_transformers(directory, config, dtype)


def load_float(directory: Path, dtype: str | torch.dtype = "auto") -> nn.Module:
    """The float model of a source directory, through transformers; of a quantized one that which its codes stand for.

    Raises:
        SourceError: The directory is no readable float model.
        CheckpointError: A parameter of the model is missing or has another shape.
    """
    from goldstick.hf.key_report import key_report, require_complete_keys
    from goldstick.hf.loading import from_pretrained

    source = open_source(directory)
    cls: Any = model_class(source.config, str(directory))
    empty = empty_model(float_config(directory), cls, len(source.tensors))
    found = key_report(source.tensors, None, {}, CheckpointNames(empty), Network(empty))
    # A float checkpoint may hold what its model has no use for.
    require_complete_keys(directory, dataclasses.replace(found, extra=()))
    tensors = source.tensors if source.quantized_as else None
    model, _ = from_pretrained(cls, directory, config=float_config(directory), dtype=dtype, tensors=tensors)
    return model.eval()  # type: ignore[no-any-return]


def find_device(name: str) -> torch.device:
    """The torch device of a name.

    Raises:
        UsageError: There is no such device here.
    """
    try:
        device = torch.device(name)
        if device.type != "cpu" and ":" not in name:  # torchrun gives each process a device of its own
            device = torch.device(device.type, local_rank() % max(1, _count(device.type)))
        if device.type == "meta":
            raise RuntimeError("On the device meta nothing is computed.")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:  # as torch's many back ends happen to say it
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UsageError(f"There is no device {name!r} here: {reason}. Use --device cpu.") from error
    return device


def _count(kind: str) -> int:
    """How many devices of a kind there are."""
    module: Any = getattr(torch, kind, None)
    return int(module.device_count()) if hasattr(module, "device_count") else 1
