"""Arguments that only go together: what one holds is said by another, so that they are made side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

from goldstick.hf.argument_values import TOKENS, images, noise, setting, token_ids

Inputs = dict[str, Tensor]
_Maker = Callable[[nn.Module], Iterator[Inputs]]

#: Patches to a side of the pictures below.
_SIDE = 4


def joint_inputs(model: nn.Module, arguments: Collection[str]) -> Iterator[Inputs]:
    """Ways to call a forward that takes all of some arguments which belong together."""
    for names, maker in {**_TOGETHER, **({} if "input_ids" in arguments else _OF_TOWERS)}.items():
        if {*names} <= {*arguments}:
            yield from maker(model)


def _size(model: nn.Module, *names: str, otherwise: int) -> int:
    found = setting(model, *names)
    return found if isinstance(found, int) else otherwise


def _steps_of_control(model: nn.Module) -> Iterator[Inputs]:
    """States, actions and rewards of 16 steps [2, 16, ·], and when they were."""
    states, actions = _size(model, "state_dim", otherwise=17), _size(model, "act_dim", otherwise=4)
    widths = {"states": states, "actions": actions, "rewards": 1, "returns_to_go": 1}
    steps = torch.arange(TOKENS).repeat(2, 1)
    yield {name: noise(model, 2, TOKENS, width) for name, width in widths.items()} | {"timesteps": steps}


def _state_and_noise(model: nn.Module) -> Iterator[Inputs]:
    """A picture, a text with places for it, the state of a machine, and noise to make actions of."""
    token, patch = setting(model, "image_token_id", "image_token_index"), _size(model, "patch_size", otherwise=16)
    chunk, width = _size(model, "chunk_size", otherwise=8), _size(model, "max_action_dim", otherwise=32)
    for pixels in images(model):
        if pixels.ndim != 4:
            continue
        ids = token_ids(model, 1)
        if isinstance(token, int):
            count = (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch)
            ids = _with_places(ids, token, count)
        yield {
            "state": noise(model, 1, _size(model, "max_state_dim", otherwise=32)),
            "noise": noise(model, 1, chunk, width),
            "timestep": torch.full((1,), 0.5, dtype=pixels.dtype),
            "input_ids": ids,
            "pixel_values": pixels[:1, None],
            "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
        }


def _with_places(ids: Tensor, token: int, count: int) -> Tensor:
    """A text [1, tokens] with places for features behind its first four tokens."""
    ids = torch.where(ids == token, (token + 1) % 7, ids)
    return torch.cat([ids[:, :4], torch.full((1, count), token), ids[:, 4:]], 1)


def _prompted_pictures(model: nn.Module) -> Iterator[Inputs]:
    """Pictures and examples of the task, of half the height: they are put below each other."""
    for pixels in images(model):
        if pixels.ndim == 4:
            half = pixels[:, :, : pixels.shape[-2] // 2]
            yield {"pixel_values": half, "prompt_pixel_values": half.flip(-1), "prompt_masks": half.flip(-2)}


def _classes_and_tasks(model: nn.Module) -> Iterator[Inputs]:
    """Two pictures, one class and one task for each."""
    text = token_ids(model, 2)
    marks = torch.ones_like(text)
    texts = {f"{of}_{what}": value for of in ("classes", "tasks") for what, value in _text_and_mask(text, marks)}
    for pixels in images(model):
        if pixels.ndim == 4:
            yield {"pixel_values": pixels, **texts, "classes_structure": torch.ones(2, dtype=torch.long)}


def _text_and_mask(text: Tensor, mask: Tensor) -> list[tuple[str, Tensor]]:
    return [("input_ids", text), ("attention_mask", mask)]


def _picture_in_marked_places(model: nn.Module) -> Iterator[Inputs]:
    """A picture, and a text whose first places behind the beginning are marked for its features."""
    count = _size(model, "latent_query_num", otherwise=64)
    for pixels in images(model):
        if pixels.ndim == 4:
            ids = torch.cat([token_ids(model, 1), torch.ones(1, count, dtype=torch.long)], 1)
            places = torch.zeros_like(ids)
            places[:, 1 : 1 + count] = 1
            yield {"pixel_values": pixels[:1], "input_ids": ids, "image_embeds_position_mask": places}


def _asked_about_film(model: nn.Module) -> Iterator[Inputs]:
    """Four pictures of a film, a question about them, and a text with places for what a query transformer finds."""
    token, count = setting(model, "video_token_id"), 4 * _size(model, "num_query_tokens", otherwise=32)
    ids = token_ids(model, 1)
    question = {"qformer_input_ids": ids}
    for pixels in images(model):
        if pixels.ndim == 4 and isinstance(token, int):
            film = pixels[:1, None].repeat(1, 4, 1, 1, 1)
            yield {"pixel_values": film, **question, "input_ids": _with_places(ids, token, count)}


def _queries(model: nn.Module) -> Iterator[Inputs]:
    """Queries, and the states that they look at."""
    own = _size(model, "hidden_size", "d_model", otherwise=64)
    other = _size(model, "encoder_hidden_size", otherwise=own)
    yield {"query_embeds": noise(model, 2, TOKENS, own), "encoder_hidden_states": noise(model, 2, TOKENS, other)}


def _context(model: nn.Module) -> Iterator[Inputs]:
    """Noise to make tokens of, and the states of several layers of another model side by side."""
    layers, own = setting(model, "target_layer_ids"), _size(model, "hidden_size", otherwise=64)
    width = own * (len(layers) if isinstance(layers, (list, tuple)) else 1)
    yield {"noise_embeds": noise(model, 2, TOKENS, own), "context_hidden_states": noise(model, 2, TOKENS, width)}


def _placed_patches(model: nn.Module) -> Iterator[Inputs]:
    """Patches [1, patches, numbers] and the column and row of each."""
    patch, pooled = _size(model, "patch_size", otherwise=16), _size(model, "pooling_kernel_size", otherwise=1)
    side = torch.arange(_SIDE * pooled)
    places = torch.stack(torch.meshgrid(side, side, indexing="xy"), -1).reshape(1, -1, 2)
    values = noise(model, 1, places.shape[1], 3 * patch * patch)
    yield {"pixel_values": values, "pixel_position_ids": places}


def _row_of_patches(model: nn.Module) -> Iterator[Inputs]:
    """The patches of a picture in a row [1, channels, patch, patches · patch], and the grid they were cut from."""
    patch, channels = _size(model, "patch_size", otherwise=16), _size(model, "num_channels", otherwise=3)
    row = noise(model, 1, channels, patch, _SIDE * _SIDE * patch)
    yield {"pixel_values": row, "target_sizes": torch.tensor([[_SIDE, _SIDE]])}


def _merged_patches(model: nn.Module) -> Iterator[Inputs]:
    """Patches, the grid they lie in, and how many of a side are merged."""
    patch, channels = _size(model, "patch_size", otherwise=16), _size(model, "num_channels", otherwise=3)
    flat = noise(model, _SIDE * _SIDE, channels * patch * patch)
    yield {"pixel_values": flat, "grid_thw": torch.tensor([[1, _SIDE, _SIDE]]), "merge_sizes": torch.tensor([2])}


def _square_patches(model: nn.Module) -> Iterator[Inputs]:
    """Patches [patches, rows, columns, channels], each of as many as are merged, and the grid they lie in."""
    side = _size(model, "patch_size", otherwise=16) * _size(model, "spatial_merge_size", otherwise=1)
    values = noise(model, _SIDE * _SIDE, side, side, _size(model, "num_channels", otherwise=3))
    yield {"pixel_values": values, "image_grid_thw": torch.tensor([[1, _SIDE, _SIDE]])}


def _latents(model: nn.Module) -> Iterator[Inputs]:
    """What a codec's decoder reads, channels before frames and behind."""
    for width in dict.fromkeys(setting(model, name) for name in ("hidden_size", "latent_dim", "codebook_dim")):
        if isinstance(width, int):
            yield {"latents": noise(model, 2, width, TOKENS)}
            yield {"latents": noise(model, 2, TOKENS, width)}


def _masked_mel(model: nn.Module) -> Iterator[Inputs]:
    """Spectrograms, of which no frame is left out."""
    bands = _size(model, "input_feat_size", "num_mel_bins", otherwise=128)
    mask = torch.zeros(2, 128, dtype=torch.bool)
    yield {"audio_mel": noise(model, 2, 128, bands), "audio_mel_mask": mask}


def _told_frames(model: nn.Module) -> Iterator[Inputs]:
    """Spectrograms whose width or number of frames the config says in ways of its own, and which frames count."""
    wide = setting(model, "input_size")
    if isinstance(wide, int):
        yield {"input_features": noise(model, 2, 64, wide), "input_features_mask": torch.ones(2, 64, dtype=torch.long)}
    window = setting(model, "n_window")
    if isinstance(window, int):
        bands, frames = _size(model, "num_mel_bins", otherwise=128), 4 * window
        mask = torch.ones(2, frames, dtype=torch.long)
        yield {"input_features": noise(model, 2, bands, frames), "input_features_mask": mask}


def _voice(model: nn.Module) -> Iterator[Inputs]:
    """Sixteen frames of a spectrogram and the noise that becomes a wave: every frame is hundreds of samples."""
    bands, channels = _size(model, "num_mel_bins", otherwise=80), _size(model, "model_in_channels", otherwise=64)
    yield {"input_features": noise(model, 2, TOKENS, bands), "noise_sequence": noise(model, 2, TOKENS, channels)}


_TOGETHER: dict[tuple[str, ...], _Maker] = {
    ("states", "actions", "rewards", "returns_to_go", "timesteps"): _steps_of_control,
    ("state", "noise", "timestep", "input_ids", "pixel_values", "pixel_attention_mask"): _state_and_noise,
    ("pixel_values", "prompt_pixel_values", "prompt_masks"): _prompted_pictures,
    ("pixel_values", "classes_input_ids", "tasks_input_ids", "classes_structure"): _classes_and_tasks,
    ("pixel_values", "input_ids", "image_embeds_position_mask"): _picture_in_marked_places,
    ("pixel_values", "qformer_input_ids", "input_ids"): _asked_about_film,
    ("query_embeds", "encoder_hidden_states"): _queries,
    ("noise_embeds", "context_hidden_states"): _context,
}

#: The same of forwards that take no text: in others these arguments come with places in it.
_OF_TOWERS: dict[tuple[str, ...], _Maker] = {
    ("pixel_values", "pixel_position_ids"): _placed_patches,
    ("pixel_values", "target_sizes"): _row_of_patches,
    ("pixel_values", "grid_thw", "merge_sizes"): _merged_patches,
    ("pixel_values", "image_grid_thw"): _square_patches,
    ("input_features", "noise_sequence"): _voice,
    ("latents",): _latents,
    ("audio_mel", "audio_mel_mask"): _masked_mel,
    ("input_features", "input_features_mask"): _told_frames,
}
