"""Whether transformers can build a model whose packed layers have no float weight."""

from __future__ import annotations

import copy
from collections.abc import Collection
from itertools import chain
from typing import Any

from goldstick.errors import GoldstickError
from goldstick.hf.names import empty_model


def initialisers_fail(model: Any, packed: Collection[str]) -> str | None:
    """Why transformers' own loader fails on a compressed-tensors checkpoint of a model, or ``None`` if it does not.

    It lets a model initialise what no file holds, module by module. Most look first whether a layer has a weight; some
    (T5, Falcon, Mamba, GPTBigCode) reach for it, and a packed layer has none, whoever wrote the file. So the model is
    built once more, without numbers, and tried.

    Args:
        model: The transformers model, which is not touched.
        packed: Paths of its linear layers that are stored packed.
    """
    try:
        twin = empty_model(copy.deepcopy(model.config), type(model))
    except GoldstickError:  # a model that was changed since it was made from its config
        return None
    for path, module in twin.named_modules():
        if path in packed:
            module._parameters.pop("weight", None)
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor._is_hf_initialized = True  # as the loader marks what it has read, so that no number is drawn
    try:
        twin.initialize_weights()
    except AttributeError as error:
        return str(error).splitlines()[0]
    except Exception:  # what a model's own code does not do without numbers, it may well do with them
        return None
    return None
