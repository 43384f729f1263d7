"""What the arguments of forwards hold, by the names that forwards give them and the sizes that configs name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

TEXTS, TOKENS, _OTHERS = 4, 16, 2


def token_ids(model: nn.Module, count: int = TEXTS) -> Tensor:
    """Random tokens [count, 16] of a model's vocabulary."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = int(getattr(text, "vocab_size", None) or setting(model, "vocab_size") or 100)
    return torch.randint(0, vocabulary, (count, TOKENS), generator=torch.Generator().manual_seed(0))


def _text(model: nn.Module) -> Iterator[Tensor]:
    yield token_ids(model)


def _short_text(model: nn.Module) -> Iterator[Tensor]:
    yield token_ids(model)[:, : TOKENS // 2]


def images(model: nn.Module) -> Iterator[Tensor]:
    """Pictures of the config's size, then of others."""
    size = setting(model, "image_size", "img_size", "input_size") or 64
    if isinstance(size, Mapping):
        size = [size.get("height", size.get("longest_edge", 64)), size.get("width", size.get("longest_edge", 64))]
    height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[-1]))
    channels = int(setting(model, "num_channels", "in_channels", "in_chans", "num_input_channels") or 3)
    frames = setting(model, "num_frames", "frames_per_clip")
    if "spatial_shapes" in inspect.signature(model.forward).parameters:  # it takes patches
        patch = int(setting(model, "patch_size") or 16)
        yield noise(model, _OTHERS, 16, channels * patch * patch)
    yield noise(model, _OTHERS, channels, height, width)
    if isinstance(frames, int):
        yield noise(model, _OTHERS, frames, channels, height, width)
    yield noise(model, 1, 1, channels, height, width)
    yield noise(model, 1, 2, channels, height, width)
    for larger in (64, 128, 224):
        yield noise(model, _OTHERS, channels, larger, larger)


def _videos(model: nn.Module) -> Iterator[Tensor]:
    frames = setting(model, "num_frames", "frames_per_clip") or 4
    for pictures in images(model):
        if pictures.ndim == 4:
            yield pictures[:, None].repeat(1, int(frames), 1, 1, 1)


def _spectrograms(model: nn.Module) -> Iterator[Tensor]:
    mels = int(setting(model, "num_mel_bins", "input_feat_per_channel", "n_mels", "input_dim", "feature_size") or 80)
    longest = setting(model, "max_source_positions", "max_length")
    lengths = [2 * longest, longest] if isinstance(longest, int) and longest <= 4000 else []
    for length in (128, *lengths, 1024):
        yield noise(model, _OTHERS, length, mels)
        yield noise(model, _OTHERS, mels, length)
    read = _first_width(model)
    if read not in (None, mels):
        yield noise(model, _OTHERS, 128, read)
        yield noise(model, _OTHERS, read, 128)
    if size := setting(model, "spec_size"):
        yield noise(model, 1, 1, 4 * int(size), mels)


def _first_width(model: nn.Module) -> int | None:
    """What the first product of a model reads."""
    layers = (one for one in model.modules() if isinstance(one, nn.Linear | nn.Conv1d))
    first = next(layers, None)
    return first.in_features if isinstance(first, nn.Linear) else first.in_channels if first is not None else None


def _frames(model: nn.Module) -> Iterator[Tensor]:
    for values in _spectrograms(model):
        yield torch.ones(len(values), max(values.shape[1:]), dtype=torch.long)


def _waves(model: nn.Module) -> Iterator[Tensor]:
    yield noise(model, _OTHERS, 4000)
    yield noise(model, _OTHERS, 1, 4000)
    yield noise(model, _OTHERS, 7680)  # which most numbers of samples to a frame divide
    channels = int(setting(model, "audio_channels") or 1)
    yield noise(model, _OTHERS, channels, 16_000)
    yield from _spectrograms(model)
    longest = setting(model, "max_length")
    mels = int(setting(model, "num_mel_bins") or 64)
    if isinstance(longest, int) and longest <= 4000:
        yield noise(model, 1, 1, longest, mels)
        yield noise(model, 1, 1, 1, longest, mels)
    size = setting(model, "spec_size") or 256
    yield noise(model, 1, 1, 4 * int(size), mels)


def _series(model: nn.Module) -> Iterator[Tensor]:
    length = int(setting(model, "context_length") or 64)
    lags = setting(model, "lags_sequence")
    channels = int(setting(model, "num_input_channels", "input_size") or 1)
    if lags:
        yield noise(model, _OTHERS, length + max(lags))
    yield noise(model, _OTHERS, length, channels)
    yield noise(model, _OTHERS, length)


def _past_like(model: nn.Module) -> Iterator[Tensor]:
    for values in _series(model):
        yield torch.ones_like(values)


def _time_features(name: str) -> Callable[[nn.Module], Iterator[Tensor]]:
    def make(model: nn.Module) -> Iterator[Tensor]:
        count = int(setting(model, "num_time_features") or 0) or 1
        length = next(_series(model)).shape[1] if name == "past" else int(setting(model, "prediction_length") or 8)
        yield noise(model, _OTHERS, length, count)

    return make


def _future(model: nn.Module) -> Iterator[Tensor]:
    yield noise(model, _OTHERS, int(setting(model, "prediction_length") or 8))


def _boxes(model: nn.Module) -> Iterator[Tensor]:
    yield torch.tensor([10, 10, 40, 40]).repeat(TEXTS, TOKENS, 1)


def _ones(model: nn.Module) -> Iterator[Tensor]:
    yield torch.ones(TEXTS, TOKENS, dtype=torch.long)


def _task(model: nn.Module) -> Iterator[Tensor]:
    length = int(setting(model, "task_seq_len") or 77)
    yield torch.ones(_OTHERS, length, dtype=torch.long)


def _shapes(model: nn.Module) -> Iterator[Tensor]:
    yield torch.tensor([[4, 4]] * _OTHERS)


def _states(model: nn.Module) -> Iterator[Tensor]:
    yield noise(
        model, _OTHERS, TOKENS, int(setting(model, "hidden_size", "d_model", "dim") or _first_width(model) or 64)
    )


def _regions(setting_name: str, otherwise: int) -> Callable[[nn.Module], Iterator[Tensor]]:
    def make(model: nn.Module) -> Iterator[Tensor]:
        yield noise(model, TEXTS, 4, int(setting(model, setting_name) or otherwise))

    return make


def _flat_patches(model: nn.Module) -> Iterator[Tensor]:
    """Patches behind their row and column."""
    patch = int(setting(model, "patch_size") or 16)
    width = int(setting(model, "patch_embed_hidden_size") or 3 * patch * patch)
    places = torch.arange(1, 9).repeat(_OTHERS, 1)[..., None].expand(-1, -1, 2)
    yield torch.cat([places, noise(model, _OTHERS, 8, width)], -1)


def _shown(model: nn.Module) -> Iterator[Tensor]:
    yield torch.ones(1, TOKENS, 1, dtype=torch.long)


def _sixteen(model: nn.Module) -> Iterator[Tensor]:
    yield torch.ones(_OTHERS, 16, dtype=torch.long)


#: What arguments hold, by the names that forwards give them.
SOURCES: dict[str, Callable[[nn.Module], Iterator[Tensor]]] = {
    "input_ids": _text,
    "pixel_values": images,
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
    "input_features_mask": _frames,
    "visual_feats": _regions("visual_feat_dim", 2048),
    "visual_pos": _regions("visual_pos_dim", 4),
    "flattened_patches": _flat_patches,
    "image_attention_mask": _shown,
}

#: What else a forward cannot do without holds, by how names end.
_ENDINGS = {"input_ids": _text, "attention_mask": _ones, "embeds": _states, "hidden_states": _states}


def source_of(name: str, needed: bool = False) -> Callable[[nn.Module], Iterator[Tensor]] | None:
    """What an argument holds; ``None`` where its name does not say it."""
    if name in SOURCES or not needed:
        return SOURCES.get(name)
    return next((source for ending, source in _ENDINGS.items() if name.endswith(ending)), None)


#: Arguments with a row for each text.
TEXTS_OF = {"input_ids", "decoder_input_ids", "bbox", "attention_mask", "visual_feats", "visual_pos"}

#: Arguments that stand in for others, or that few calls need.
ALTERNATIVES = {"pixel_values_videos", "attention_mask", "input_features_mask", "image_attention_mask"}


def noise(model: nn.Module, *shape: int) -> Tensor:
    """Normal noise in the dtype of a model's weights."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.randn(shape, dtype=torch.float32, generator=torch.Generator().manual_seed(0)).to(dtype)


def setting(model: nn.Module, *names: str) -> Any:
    """The value of the first of these names that the config has, or one nested in it at any depth."""
    waiting = [getattr(model, "config", None)]
    while waiting:
        config: Any = waiting.pop(0)
        for name in names:
            value = getattr(config, name, None)
            if value is not None:
                return value
        waiting += [value for value in vars(config).values() if hasattr(value, "to_dict")] if config else []
    return None
