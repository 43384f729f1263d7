"""Ways to call a model: which arguments its forward may take together."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from goldstick.hf.argument_values import (
    ALTERNATIVES,
    SOURCES,
    TEXTS_OF,
    TOKENS,
    images,
    noise,
    setting,
    source_of,
    token_ids,
)
from goldstick.hf.joint_arguments import joint_inputs

Inputs = dict[str, Tensor]


def arguments_of(model: nn.Module) -> list[str]:
    """The names that a model's forward takes."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in inspect.signature(model.forward).parameters.items() if one.kind in kinds]


def takes_any_name(model: nn.Module) -> bool:
    """Whether a model's forward takes arguments that its signature does not name."""
    return any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(model.forward).parameters.values()
    )


def plain_inputs(model: nn.Module) -> Inputs | None:
    """4 sequences of 16 tokens for a model that takes text and nothing beside; ``None`` for others."""
    arguments = arguments_of(model)
    names = {*arguments} & {*SOURCES} - {"attention_mask", "decoder_input_ids"}
    if getattr(model, "main_input_name", "input_ids") != "input_ids" or names - {"input_ids"}:
        return None
    if ("input_ids" not in arguments and not takes_any_name(model)) or _required(model) - {"input_ids"}:
        return None
    return text_alone(model)


def _required(model: nn.Module) -> set[str]:
    """The arguments without which a forward cannot be called."""
    arguments = inspect.signature(model.forward).parameters
    return {name for name in arguments_of(model) if arguments[name].default is inspect.Parameter.empty}


def text_alone(model: nn.Module) -> Inputs:
    """4 sequences of 16 tokens, and for an encoder–decoder the first 8 of each behind them."""
    inputs = {"input_ids": token_ids(model)}
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = inputs["input_ids"][:, : TOKENS // 2]
    return inputs


def ways_to_call(model: nn.Module) -> Iterator[Inputs]:
    """Keyword arguments of a model's forward, those that reach most of it first; not all of them run."""
    arguments = inspect.signature(model.forward).parameters
    required = [name for name, one in arguments.items() if one.default is one.empty and source_of(name, True)]
    names = [name for name in arguments if name in SOURCES or name in required]
    main = getattr(model, "main_input_name", "input_ids")
    if isinstance(main, str) and main not in names and main in SOURCES and takes_any_name(model):
        names.insert(0, main)
    everything = [name for name in names if name not in ALTERNATIVES]
    ways: list[list[str]] = []
    if "input_ids" in names and "pixel_values" in names:
        for inputs in _with_image_tokens(model):
            yield inputs | {name: next(_source(name, model))[:1] for name in required if name not in inputs}
    yield from _patches_in_grids(model, arguments)
    yield from joint_inputs(model, arguments)
    text_last = [[name] for name in names if name not in required]
    least = [
        name for name in dict.fromkeys([*(main if isinstance(main, list) else [main]), *required]) if name in names
    ]
    for way in (least, required, everything, names, *text_last):
        full = _with_decoder(model, [name for name in way if name in names], list(arguments))
        if full and full not in ways:
            ways.append(full)
    for way in ways:
        makers = [_source(name, model) for name in way]
        for values in _side_by_side(makers):
            rows = min(len(value) for value in values)  # texts are more than others
            cut = [name in TEXTS_OF or name not in SOURCES for name in way]
            yield {name: one[:rows] if short else one for name, one, short in zip(way, values, cut, strict=True)}
    dummy = _dummy(model)
    if dummy is not None:
        yield {name: value for name, value in dummy.items() if name in arguments}


def _source(name: str, model: nn.Module) -> Iterator[Tensor]:
    source = source_of(name, needed=True)
    assert source is not None
    return source(model)


def _with_decoder(model: nn.Module, way: list[str], arguments: list[str]) -> list[str]:
    takes = "decoder_input_ids" in arguments and bool(setting(model, "is_encoder_decoder"))
    return [*way, "decoder_input_ids"] if takes and way and "decoder_input_ids" not in way else way


def _side_by_side(makers: list[Iterator[Tensor]]) -> Iterator[list[Tensor]]:
    """The next of every iterator that has more, the last of the others; until all have ended."""
    last: list[Any] = [next(maker) for maker in makers]
    while True:
        yield list(last)
        ended = True
        for index, maker in enumerate(makers):
            value = next(maker, None)
            if value is not None:
                last[index], ended = value, False
        if ended:
            return


def _with_image_tokens(model: Any) -> Iterator[Inputs]:
    """A text with the places that a picture's features take, as many as the model makes of it."""
    token = setting(model, "image_token_id", "image_token_index")
    owner = next((one for one in (model, getattr(model, "model", None)) if hasattr(one, "get_image_features")), None)
    if owner is None or not isinstance(token, int):
        return
    device = next(model.parameters()).device
    for pixels in _pictures(model):
        try:
            with torch.no_grad():
                made = owner.get_image_features(**{name: value.to(device) for name, value in pixels.items()})
        except Exception:  # any code of the model may fail, in any way
            continue
        made = getattr(made, "pooler_output", made)
        parts = made if isinstance(made, (list, tuple)) else [made]
        rows = sum(part.numel() // part.shape[-1] for part in parts if isinstance(part, Tensor))
        ids = token_ids(model, 1)
        ids[ids == token] = (token + 1) % 7
        full = torch.cat([ids[:, :4], torch.full((1, rows), token), ids[:, 4:]], 1)
        yield {"input_ids": full, **pixels}
        yield {"input_ids": full, "mm_token_type_ids": (full == token).long(), **pixels}


def _patches_in_grids(model: nn.Module, arguments: Mapping[str, Any]) -> Iterator[Inputs]:
    """Patches and the grid they lie in, for a forward that takes both and no text."""
    patches = next((name for name in ("pixel_values", "hidden_states") if name in arguments), None)
    grid = next((name for name in arguments if name.endswith("grid_thw") or name.endswith("grid_hws")), None)
    if patches is None or grid is None or "input_ids" in arguments:
        return
    for pixels in _pictures(model):
        held = [value for name, value in pixels.items() if "grid" in name]
        if held:
            yield {patches: pixels["pixel_values"], grid: held[0]}


def _pictures(model: nn.Module) -> Iterator[Inputs]:
    """One picture, whole or as the patches that some models take, which lie in a grid."""
    patch = setting(model, "patch_size")
    patch = patch if isinstance(patch, int) else 16
    channels = int(setting(model, "num_channels", "in_channels", "in_chans") or 3)
    for pixels in images(model):
        yield {"pixel_values": pixels[:1]}
        yield {"pixel_values": pixels[:1], "image_sizes": torch.tensor([pixels.shape[-2:]])}
        yield {"pixel_values": pixels[:1, None], "image_sizes": torch.tensor([pixels.shape[-2:]])}
    side = 2 * int(setting(model, "spatial_merge_size", "merge_size") or 2)
    grid = torch.tensor([[1, side, side]])
    for deep in dict.fromkeys((int(setting(model, "temporal_patch_size") or 1), 1, 2)):
        flat = noise(model, side * side, channels * deep * patch * patch)
        yield {"pixel_values": flat, "image_grid_thw": grid}
    yield {"pixel_values": noise(model, side * side, channels, patch, patch), "image_grid_thw": grid}
    yield {
        "pixel_values": noise(model, side * side, channels, patch, patch),
        "image_grid_hws": torch.tensor([[side, side]]),
    }


def _dummy(model: nn.Module) -> Inputs | None:
    try:
        found = getattr(model, "dummy_inputs", None)
    except Exception:  # a property of any code
        return None
    if not isinstance(found, dict):
        return None
    return {name: value for name, value in found.items() if isinstance(value, Tensor)}
