"""Inputs for a model, by the names of its forward's arguments and the sizes of its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

Inputs = dict[str, Any]

_TEXTS, _TOKENS, _OTHERS = 2, 16, 2


def candidates(model: nn.Module) -> Iterator[Inputs]:
    """Ways to call a model, that of the whole model first."""
    arguments = inspect.signature(model.forward).parameters
    names = [name for name in arguments if name in _SOURCES]
    main = getattr(model, "main_input_name", "input_ids")
    if main not in names and main in _SOURCES:
        names.insert(0, main)
    needed = [name for name in names if name in arguments and arguments[name].default is inspect.Parameter.empty]
    everything = [name for name in names if name not in _ALTERNATIVES]
    ways: list[list[str]] = []
    if "input_ids" in names and "pixel_values" in names:
        yield from _with_image_tokens(model)
    text_last = [[name] for name in names if name not in needed]
    for way in ([*dict.fromkeys([main, *needed])], needed, everything, names, *text_last):
        full = _with_decoder(model, [name for name in way if name in _SOURCES], list(arguments))
        if full and full not in ways:
            ways.append(full)
    for way in ways:
        makers = [_SOURCES[name](model) for name in way]
        for values in _side_by_side(makers):
            yield dict(zip(way, values, strict=True))
    dummy = _dummy(model)
    if dummy is not None:
        yield {name: value for name, value in dummy.items() if name in arguments}


def _with_decoder(model: nn.Module, way: list[str], arguments: list[str]) -> list[str]:
    takes = "decoder_input_ids" in arguments and bool(_setting(model, "is_encoder_decoder"))
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
    token = _setting(model, "image_token_id", "image_token_index")
    owner = next((one for one in (model, getattr(model, "model", None)) if hasattr(one, "get_image_features")), None)
    if owner is None or not isinstance(token, int):
        return
    for pixels in _pictures(model):
        try:
            with torch.no_grad():
                made = owner.get_image_features(**pixels)
        except Exception:
            continue
        made = getattr(made, "pooler_output", made)
        parts = made if isinstance(made, (list, tuple)) else [made]
        rows = sum(part.numel() // part.shape[-1] for part in parts if isinstance(part, Tensor))
        ids = _ids(model, 1)
        ids[ids == token] = (token + 1) % 7
        full = torch.cat([ids[:, :4], torch.full((1, rows), token), ids[:, 4:]], 1)
        yield {"input_ids": full, **pixels}
        yield {"input_ids": full, "mm_token_type_ids": (full == token).long(), **pixels}


def _pictures(model: nn.Module) -> Iterator[Inputs]:
    """One picture, whole or as the patches that some models take, which lie in a grid."""
    patch = _setting(model, "patch_size")
    patch = patch if isinstance(patch, int) else 16
    channels = int(_setting(model, "num_channels", "in_channels", "in_chans") or 3)
    for pixels in _images(model):
        yield {"pixel_values": pixels[:1]}
        yield {"pixel_values": pixels[:1], "image_sizes": torch.tensor([pixels.shape[-2:]])}
        yield {"pixel_values": pixels[:1, None], "image_sizes": torch.tensor([pixels.shape[-2:]])}
    side = 2 * int(_setting(model, "spatial_merge_size", "merge_size") or 2)
    for deep in (int(_setting(model, "temporal_patch_size") or 1), 1):
        flat = _noise(model, side * side, channels * deep * patch * patch)
        yield {"pixel_values": flat, "image_grid_thw": torch.tensor([[1, side, side]])}
    yield {
        "pixel_values": _noise(model, side * side, channels, patch, patch),
        "image_grid_hws": torch.tensor([[side, side]]),
    }


def _ids(model: nn.Module, count: int = _TEXTS) -> Tensor:
    vocabulary = int(_setting(model, "vocab_size") or 100)
    special = {0, 1, 2, 3}
    ids = torch.randint(0, min(vocabulary, 200), (count, _TOKENS), generator=torch.Generator().manual_seed(0))
    return ids.where(
        torch.tensor([[int(i) not in special for i in row] for row in ids]), ids % 5 + min(4, vocabulary - 5)
    )


def _text(model: nn.Module) -> Iterator[Tensor]:
    yield _ids(model)


def _short_text(model: nn.Module) -> Iterator[Tensor]:
    yield _ids(model)[:, : _TOKENS // 2]


def _images(model: nn.Module) -> Iterator[Tensor]:
    size = _setting(model, "image_size", "img_size", "input_size") or 64
    if isinstance(size, dict):
        size = [size.get("height", size.get("longest_edge", 64)), size.get("width", size.get("longest_edge", 64))]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    channels = int(_setting(model, "num_channels", "in_channels", "in_chans", "num_input_channels") or 3)
    frames = _setting(model, "num_frames", "frames_per_clip")
    if "spatial_shapes" in inspect.signature(model.forward).parameters:  # it takes patches
        patch = int(_setting(model, "patch_size") or 16)
        yield _noise(model, _OTHERS, 16, channels * patch * patch)
    yield _noise(model, _OTHERS, channels, height, width)
    if isinstance(frames, int):
        yield _noise(model, _OTHERS, frames, channels, height, width)
    yield _noise(model, 1, 1, channels, height, width)
    for larger in (64, 128, 224):
        yield _noise(model, _OTHERS, channels, larger, larger)


def _videos(model: nn.Module) -> Iterator[Tensor]:
    frames = _setting(model, "num_frames", "frames_per_clip") or 4
    for images in _images(model):
        if images.ndim == 4:
            yield images[:, None].repeat(1, int(frames), 1, 1, 1)


def _spectrograms(model: nn.Module) -> Iterator[Tensor]:
    mels = int(_setting(model, "num_mel_bins", "input_feat_per_channel", "n_mels", "input_dim", "feature_size") or 80)
    longest = _setting(model, "max_source_positions", "max_length")
    lengths = [2 * longest, longest] if isinstance(longest, int) and longest <= 4000 else []
    for length in (128, *lengths, 1024):
        yield _noise(model, _OTHERS, length, mels)
        yield _noise(model, _OTHERS, mels, length)


def _waves(model: nn.Module) -> Iterator[Tensor]:
    yield _noise(model, _OTHERS, 4000)
    yield _noise(model, _OTHERS, 1, 4000)
    channels = int(_setting(model, "audio_channels") or 1)
    yield _noise(model, _OTHERS, channels, 16_000)
    yield from _spectrograms(model)
    longest = _setting(model, "max_length")
    mels = int(_setting(model, "num_mel_bins") or 64)
    if isinstance(longest, int) and longest <= 4000:
        yield _noise(model, 1, 1, longest, mels)
        yield _noise(model, 1, 1, 1, longest, mels)
    size = _setting(model, "spec_size") or 256
    yield _noise(model, 1, 1, 4 * int(size), mels)


def _series(model: nn.Module) -> Iterator[Tensor]:
    length = int(_setting(model, "context_length") or 64)
    lags = _setting(model, "lags_sequence")
    channels = int(_setting(model, "num_input_channels", "input_size") or 1)
    if lags:
        yield _noise(model, _OTHERS, length + max(lags))
    yield _noise(model, _OTHERS, length, channels)
    yield _noise(model, _OTHERS, length)


def _past_like(model: nn.Module) -> Iterator[Tensor]:
    for values in _series(model):
        yield torch.ones_like(values)


def _time_features(name: str) -> Callable[[nn.Module], Iterator[Tensor]]:
    def make(model: nn.Module) -> Iterator[Tensor]:
        count = int(_setting(model, "num_time_features") or 0) or 1
        length = next(_series(model)).shape[1] if name == "past" else int(_setting(model, "prediction_length") or 8)
        yield _noise(model, _OTHERS, length, count)

    return make


def _future(model: nn.Module) -> Iterator[Tensor]:
    yield _noise(model, _OTHERS, int(_setting(model, "prediction_length") or 8))


def _boxes(model: nn.Module) -> Iterator[Tensor]:
    yield torch.tensor([10, 10, 40, 40]).repeat(_TEXTS, _TOKENS, 1)


def _ones(model: nn.Module) -> Iterator[Tensor]:
    yield torch.ones(_TEXTS, _TOKENS, dtype=torch.long)


def _task(model: nn.Module) -> Iterator[Tensor]:
    length = int(_setting(model, "task_seq_len") or 77)
    yield torch.ones(_OTHERS, length, dtype=torch.long)


def _shapes(model: nn.Module) -> Iterator[Tensor]:
    yield torch.tensor([[4, 4]] * _OTHERS)


def _sixteen(model: nn.Module) -> Iterator[Tensor]:
    yield torch.ones(_OTHERS, 16, dtype=torch.long)


#: What arguments hold, by the names that forwards give them.
_SOURCES: dict[str, Callable[[nn.Module], Iterator[Tensor]]] = {
    "input_ids": _text,
    "pixel_values": _images,
    "pixel_values_videos": _videos,
    "input_features": _spectrograms,
    "input_values": _waves,
    "audio_values": _waves,
    "past_values": _series,
    "past_observed_mask": _past_like,
    "past_time_features": _time_features("past"),
    "future_time_features": _time_features("future"),
    "future_values": _future,
    "spatial_shapes": _shapes,
    "pixel_attention_mask": _sixteen,
    "bbox": _boxes,
    "attention_mask": _ones,
    "task_inputs": _task,
    "decoder_input_ids": _short_text,
}

#: Arguments that stand in for others, or that few calls need.
_ALTERNATIVES = {"pixel_values_videos", "attention_mask"}


def _noise(model: nn.Module, *shape: int) -> Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def _setting(model: nn.Module, *names: str) -> Any:
    """The value of the first of these names that the config has, or one nested in it at any depth."""
    waiting = [getattr(model, "config", None)]
    while waiting:
        config = waiting.pop(0)
        for name in names:
            value = getattr(config, name, None)
            if value is not None:
                return value
        waiting += [value for value in vars(config).values() if hasattr(value, "to_dict")] if config else []
    return None


def _dummy(model: nn.Module) -> Inputs | None:
    try:
        found = getattr(model, "dummy_inputs", None)
    except Exception:
        return None
    return dict(found) if isinstance(found, dict) else None
