"""Inputs to try a model with: those that somebody gave for it, or some that its forward and its config ask for."""

from __future__ import annotations

import copy
import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from goldstick.checkpoint.source import refuse_links_out
from goldstick.errors import DataError
from goldstick.hf.calling import Inputs as Inputs
from goldstick.hf.calling import arguments_of, plain_inputs, text_alone, ways_to_call

#: The file of a checkpoint that holds inputs which were given for it.
INPUTS_NAME = "proof_inputs.npz"
#: Bytes of inputs that a checkpoint may carry.
_LARGEST = 2**28
#: Inputs that were given for models, and those that were found for them, by the shapes that were asked for.
_GIVEN: WeakKeyDictionary[nn.Module, Inputs] = WeakKeyDictionary()
_CHOSEN: WeakKeyDictionary[nn.Module, dict[str, Inputs]] = WeakKeyDictionary()
#: Parameters up to which a model of random numbers is built to try inputs on; beyond, one without numbers.
_LARGEST_TRIED = 5 * 10**7


def fixed_inputs(model: nn.Module, like: Mapping[str, Sequence[int]] | None = None) -> Inputs:
    """Keyword arguments of a model's forward that are the same every time: those that were given, or some that run.

    Text is 4 sequences of 16 tokens; pictures, videos, waveforms and spectrograms are noise. Of several ways to call a
    model the first is taken with which a small twin of it runs.

    Args:
        model: The model.
        like: Shapes by name: of the ways to call it, the one that has these. Without any, what proofs used before
            they recorded that: text alone, where the model takes text.

    Raises:
        DataError: Nothing says how to run it; the message says what to give.
    """
    given = given_inputs(model)
    if given is not None:
        return given
    plain = plain_inputs(model)
    if plain is not None and "decoder_input_ids" not in plain:
        return plain
    if like is not None and not like:
        like = shapes_of_inputs(text_alone(model)) if "input_ids" in arguments_of(model) else None
    chosen = _CHOSEN.setdefault(model, {})
    key = repr(like)
    if key not in chosen:
        chosen[key] = _chosen(model, like)
    return chosen[key]


def shapes_of_inputs(inputs: Mapping[str, Any]) -> dict[str, list[int]]:
    """Shapes by name, as a proof records them."""
    return {name: list(value.shape) for name, value in inputs.items() if isinstance(value, Tensor)}


def inputs_for(model: nn.Module, batches: Sequence[Mapping[str, Tensor]] = ()) -> Mapping[str, Any] | None:
    """Some keyword arguments of a model's forward, to try it with; ``None`` where nothing says what they are."""
    if not hasattr(model, "config") and given_inputs(model) is None:
        return batches[0] if batches else None
    try:
        found = fixed_inputs(model)
    except DataError:
        return batches[0] if batches else None
    device = next(model.parameters()).device
    return {name: value if device.type == "meta" else value.to(device) for name, value in found.items()}


def give_inputs(model: nn.Module, inputs: Mapping[str, Tensor] | None) -> None:
    """Let :func:`fixed_inputs` of this model be these, where there are any; numbers take the dtype of its weights.

    Raises:
        DataError: Its forward takes no argument of such a name.
    """
    if inputs is None:
        return
    names = arguments_of(model)
    wrong = [name for name in inputs if names and name not in names]
    if wrong:
        raise DataError(
            f"The inputs hold {wrong[0]!r}, which {type(model).__name__} does not take. It takes {', '.join(names)}."
        )
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    _GIVEN[model] = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def given_inputs(model: nn.Module) -> Inputs | None:
    """What :func:`give_inputs` gave."""
    return _GIVEN.get(model)


def as_inputs(inputs: Mapping[str, Tensor] | str | Path | None) -> Mapping[str, Tensor] | None:
    """Keyword arguments as they are given, or from the file that is given."""
    return read_inputs(Path(inputs)) if isinstance(inputs, str | Path) else inputs


def read_inputs(path: Path) -> Inputs:
    """The tensors of a ``.safetensors`` or ``.npz`` file by the names of a forward's arguments.

    Raises:
        DataError: It cannot be read, or holds none.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        else:
            found = load_file(path)
    except Exception as error:  # whatever a file of any content makes numpy or safetensors say
        raise DataError(
            f"The inputs {path} cannot be read: {error}. Give a .safetensors or .npz file with a tensor for each "
            "argument of the model's forward."
        ) from error
    if not found:
        raise DataError(f"The inputs {path} hold no tensor.")
    return found


def inputs_beside(directory: Path) -> Inputs | None:
    """The inputs that a checkpoint carries, if it does.

    Raises:
        SourceError: Their file is a link out of the directory.
        DataError: They cannot be read, or would take more memory than such inputs do.
    """
    path = directory / INPUTS_NAME
    if not path.is_file():
        return None
    refuse_links_out(path)
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"The inputs {path} cannot be read: {error}. Remove the file, or copy it again.") from error
    if size > _LARGEST:
        raise DataError(f"The inputs {path} unpack to {size:,} bytes, and a checkpoint carries {_LARGEST:,} at most.")
    return read_inputs(path)


def packed_inputs(inputs: Mapping[str, Tensor]) -> bytes:
    """The bytes of :data:`INPUTS_NAME`; numbers in float32."""
    held = {name: (x.float() if x.is_floating_point() else x).cpu().numpy() for name, x in sorted(inputs.items())}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **held)
    return buffer.getvalue()


def _chosen(model: nn.Module, like: Mapping[str, Sequence[int]] | None) -> Inputs:
    twin, plain = _twin(model), plain_inputs(model)
    if plain is not None and (twin is None or _runs(twin, plain)):
        return plain
    for inputs in ways_to_call(model if twin is None else twin):
        if like is not None:
            if shapes_of_inputs(inputs) == {name: list(shape) for name, shape in like.items()}:
                return inputs
        elif twin is None or _runs(twin, inputs):
            return inputs
    raise DataError(
        f"Nothing says how to run a {type(model).__name__}, which takes {', '.join(arguments_of(model)) or 'anything'}."
        " Give inputs for it: --inputs FILE (inputs= in Python), a .safetensors or .npz file with a tensor for each "
        "argument of its forward."
    )


def _twin(model: nn.Module) -> nn.Module | None:
    """The same model with random numbers, or without any; ``None`` where it cannot be made of its config."""
    config, kind = getattr(model, "config", None), type(model)
    size = sum(parameter.numel() for parameter in model.parameters())
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu" if size <= _LARGEST_TRIED else "meta"):
            twin: nn.Module = kind(copy.deepcopy(config))
    except Exception:  # any code of the model may fail, in any way
        return None
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return twin.eval().to(dtype)


def _runs(twin: nn.Module, inputs: Inputs) -> bool:
    device = next(twin.parameters()).device
    try:
        with torch.no_grad():
            twin(**{name: value.to(device) for name, value in inputs.items()})
    except NotImplementedError:
        return device.type == "meta"  # it looks at numbers, which the meta device does not have
    except Exception as error:
        return device.type == "meta" and "meta" in str(error)
    return True
