"""The smallest model of an architecture that its config allows and that runs."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from goldstick.hf.example_inputs import Inputs, fixed_inputs
from tools.zoo.catalogue import Architecture
from tools.zoo.outputs import outputs_of
from tools.zoo.shrink import VARIANTS, shrunk

#: Models with more parameters are not built.
LARGEST = 30_000_000
_LARGEST_PARAMETER = 1e3
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class NotBuilt(Exception):  # noqa: N818
    """No variant of the config gives a model; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model on random weights, and inputs that it ran on.

    Attributes:
        variant: How its config was made smaller.
        inputs: ``None`` where none was found that runs; ``obstacle`` says what the plainest one met.
    """

    model: Any
    variant: str
    parameters: int
    inputs: Inputs | None
    obstacle: str = ""


def build(architecture: Architecture) -> Built:
    """Try smaller configs, and inputs for each, until a model runs.

    Raises:
        NotBuilt: No config gives a model of at most 30 million parameters.
    """
    try:
        cls = architecture.model_class()
    except AttributeError as error:
        raise NotBuilt(f"transformers names the class and has none: {_line(error)}") from error
    try:
        whole = cls.forward is not nn.Module.forward
    except ImportError as error:  # a stand-in for a class whose libraries are not there
        raise NotBuilt(_line(error)) from error
    if not whole:
        raise NotBuilt("it has no forward: its parts are called one by one")
    try:
        default = architecture.default_config()
    except Exception as error:
        raise NotBuilt(f"its config cannot be made of nothing: {_line(error)}") from error
    first, silent = "", None
    for label, config in _configs(default):
        try:
            model = _random_model(cls, config)
        except Exception as error:
            first = first or f"{label}: {_line(error)}"
            continue
        count = sum(parameter.numel() for parameter in model.parameters())
        inputs, obstacle = _inputs_that_run(model)
        built = Built(model=model, variant=label, parameters=count, inputs=inputs, obstacle=obstacle)
        if inputs is not None:
            return built
        silent = silent or built
    if silent is None:
        raise NotBuilt(first)
    return silent


def _configs(default: Any) -> Iterator[tuple[str, Any]]:
    for sizes in VARIANTS:
        try:
            yield sizes.label, shrunk(default, sizes)
        except Exception as error:
            yield sizes.label, error
    yield "default", copy.deepcopy(default)


def _random_model(cls: Any, config: Any) -> Any:
    if isinstance(config, Exception):
        raise config
    build = cls._from_config if hasattr(cls, "_from_config") else cls
    size = _parameters(cls, config)
    if size > LARGEST:
        raise ValueError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = build(copy.deepcopy(config)).float().eval()
    _draw_weights(model)
    return model


def _draw_weights(model: nn.Module) -> None:
    """Weights that let signals through and biases that show; what the config leaves without numbers is drawn, too."""
    for module in model.modules():
        if isinstance(module, _LAYERS):
            module.weight.data.normal_(0, (1.5 / module.weight[0].numel()) ** 0.5)
            if module.bias is not None:
                module.bias.data.normal_(0, 0.1)
    for parameter in model.parameters():
        values = parameter.data
        if not values.is_floating_point() or not values.numel():
            continue
        wild = not bool(values.isfinite().all()) or float(values.abs().max()) > _LARGEST_PARAMETER
        if wild or (values.ndim > 1 and not values.any()):
            values.normal_(0, 0.02)


def _parameters(cls: Any, config: Any) -> int:
    """How many parameters a model would have; without allocating them, where its class allows."""
    try:
        with torch.device("meta"):
            model: nn.Module = cls(copy.deepcopy(config))
    except Exception as error:
        if isinstance(error, NotImplementedError) or "meta" in str(error):
            return _written(config)  # it looks at numbers while it is made
        raise
    return sum(parameter.numel() for parameter in model.parameters())


def _written(config: Any) -> int:
    """About as many parameters as a config without small settings has: more than are built, where it is not narrow."""
    widths = [getattr(config, name, 0) for name in ("hidden_size", "d_model", "vocab_size")]
    return LARGEST + 1 if any(isinstance(width, int) and width > 512 for width in widths) else 0


def _inputs_that_run(model: Any) -> tuple[Inputs | None, str]:
    """What goldstick tries the model with, or what the plainest way to call it meets."""
    try:
        inputs = fixed_inputs(model)
        outputs_of(model, inputs)
    except Exception as error:
        return None, _line(error)
    return inputs, ""


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"
