"""Keys and values as codes: the arithmetic, and a store that grows token by token."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from goldstick.core.kv_cache import CODE_MAX, KVDtype
from goldstick.errors import QuantizationError
from goldstick.kernels.kv_nibbles import nibbles_of, turned_together
from goldstick.kernels.kv_numbers import CODINGS, kv_numbers
from goldstick.nn.kv_buffer import KVBuffer, joined

_FP8 = torch.float8_e4m3fn
#: As what kernels read codes; here all are int8, which every operation takes.
_READ_AS: Mapping[KVDtype, torch.dtype] = {"int8": torch.int8, "fp8": _FP8, "int4": torch.uint8}


def quantize_states(states: Tensor, scale: Tensor, dtype: KVDtype = "int8") -> Tensor:
    """Codes of clamp(x / s, −127, 127) rounded to whole numbers, or of clamp(x / s, −448, 448) to FP8; in float32.

    Args:
        states: [batch, kv_heads, tokens, channels], any float dtype.
        scale: float32, broadcast over it.
        dtype: What codes are.

    Returns:
        int8 of the shape of ``states``: the numbers, or the bits of FP8.
    """
    ratio, largest = states.float() / scale, CODE_MAX[dtype]
    if dtype == "fp8":
        return ratio.clamp(-largest, largest).to(_FP8).view(torch.int8)
    return ratio.round().clamp(-largest, largest).to(torch.int8)


def token_scale(states: Tensor, dtype: KVDtype = "int8") -> Tensor:
    """A scale for each token and head: max over channels of |x|, by the largest code; 1 where all are 0.

    Args:
        states: [batch, kv_heads, tokens, channels].
        dtype: What codes are.

    Returns:
        float32 [batch, kv_heads, tokens, 1].
    """
    scale = states.float().abs().amax(dim=-1, keepdim=True) / CODE_MAX[dtype]
    return torch.where(scale > 0, scale, torch.ones_like(scale))


class QuantizedStates:
    """The keys, or the values, of one layer: codes between the float tokens that a scheme keeps.

    In the order of the tokens: up to ``sinks`` first ones in float, codes, up to ``window`` newest ones in float. A
    token is rounded once, when it leaves the window. Tokens that ``crop`` uncovers stay rounded.

    Args:
        like: What it will hold, for dtype, device and all sizes but the number of tokens: [batch, kv_heads, any,
            channels].
        scale: Fixed scales [kv_heads or 1, channels or 1]; ``None`` makes one for each token and head.
        window: How many of the newest tokens stay in float.
        sinks: How many of the first tokens stay in float.
        dtype: What codes are.
        rotate: Whether what int4 holds is turned (:func:`goldstick.kernels.kv_nibbles.nibbles_of`).

    Attributes:
        turned: How many channels a Hadamard transform mixes before they are rounded; 0 for none.

    Raises:
        QuantizationError: The scales are those of another shape of heads.
    """

    def __init__(
        self,
        like: Tensor,
        scale: Tensor | None,
        *,
        window: int = 0,
        sinks: int = 0,
        dtype: KVDtype = "int8",
        rotate: bool = False,
    ) -> None:
        heads, channels = like.shape[1], like.shape[3]
        if scale is not None and (scale.shape[0] not in (1, heads) or scale.shape[1] not in (1, channels)):
            raise QuantizationError(
                f"The KV cache was calibrated for heads and channels {tuple(scale.shape)}, and the model gives "
                f"{(heads, channels)}: the scales belong to another model."
            )
        empty = like[:, :, :0]
        self.window, self.sinks, self.dtype, self.channels = window, sinks, dtype, channels
        self.turned = turned_together(channels) if rotate else 0
        self.seen = 0  # tokens ever added, less those cropped
        self.first = self.recent = empty  # [batch, kv_heads, tokens, channels]
        self.codes = self._rounded(empty)[0] if dtype == "int4" else empty.to(torch.int8)
        self.fixed: Tensor | None = None  # [kv_heads, 1, channels]
        if scale is not None:
            self.fixed = scale.to(like.device).expand(heads, channels).contiguous()[:, None]
        # [batch, kv_heads, tokens, 1]; of int4 [batch, kv_heads, tokens, 2], a step and a minimum.
        self.scales = self._rounded(empty)[1] if scale is None else None
        self._kv_buffers: dict[str, KVBuffer | None] = {}  # of codes and scales

    def __len__(self) -> int:
        return sum(part.shape[2] for part in (self.first, self.codes, self.recent))

    @property
    def nbytes(self) -> int:
        """Bytes held, scales and room for more tokens included."""
        parts = {name: getattr(self, name) for name in ("first", "codes", "recent", "fixed", "scales")}
        for name, buffer in self._kv_buffers.items():
            if buffer is not None and buffer.seen is parts[name]:
                parts[name] = buffer.buffer
        return sum(part.nbytes for part in parts.values() if part is not None)

    def append(self, states: Tensor) -> None:
        """Add tokens [batch, kv_heads, tokens, channels]; those that leave the window are rounded."""
        sinking = min(max(self.sinks - self.seen, 0), states.shape[2])
        self.seen += states.shape[2]
        self.first = _joined(self.first, states[:, :, :sinking])
        recent = _joined(self.recent, states[:, :, sinking:])
        keep = min(self.window, recent.shape[2])
        leaving, self.recent = recent.tensor_split([recent.shape[2] - keep], dim=2)
        if self.fixed is not None:
            self._add("codes", quantize_states(leaving, self.fixed, self.dtype))
        elif self.scales is not None:
            codes, scales = self._rounded(leaving)
            self._add("codes", codes)
            self._add("scales", scales)

    def _rounded(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Codes of some tokens, and what is known of each token."""
        if self.dtype == "int4":
            return nibbles_of(states, self.turned)
        scale = token_scale(states, self.dtype)
        return quantize_states(states, scale, self.dtype), scale

    def _add(self, name: str, new: Tensor) -> None:
        self._kv_buffers[name], tokens = joined(self._kv_buffers.get(name), getattr(self, name), new)
        setattr(self, name, tokens)

    def runs(self) -> tuple[list[Tensor], list[Tensor]]:
        """What is held, as :func:`goldstick.kernels.attention.attend` takes it.

        Returns:
            The runs of tokens that are not empty, floats and codes, and the scales of the latter: [kv_heads, channels],
            or by token [batch, kv_heads, tokens]; of int4 [batch, kv_heads, tokens, 2]. None where there are no codes.
        """
        codes = self.codes.view(_READ_AS[self.dtype])
        runs = [part for part in (self.first, codes, self.recent) if part.shape[2]]
        if not codes.shape[2]:
            return runs, []
        if self.scales is not None:
            return runs, [self.scales if self.dtype == "int4" else self.scales.squeeze(-1)]
        assert self.fixed is not None
        return runs, [self.fixed.squeeze(1)]

    @property
    def coding(self) -> int:
        """What codes are, as C++ counts it."""
        return CODINGS[_READ_AS[self.dtype]]

    def makes_room(self) -> bool:
        """Whether the next token is rounded at once; then there is a place behind the others for its codes."""
        floats = self.first
        if self.window or self.seen < self.sinks or (floats.shape[2] and floats.stride()[2:] != (self.channels, 1)):
            return False
        for name, part in self._growing():
            buffer = self._kv_buffers.get(name)
            if buffer is None or not buffer.fits(part):
                self._kv_buffers[name] = KVBuffer(part)
        return True

    def buffers(self) -> tuple[Tensor, Tensor | None]:
        """What :meth:`makes_room` has made: [batch, kv_heads, room, …] of codes, and of what is known of each token."""
        codes, scales = (self._kv_buffers.get(name) for name in ("codes", "scales"))
        assert codes is not None
        return codes.buffer, None if scales is None else scales.buffer

    def extend(self) -> None:
        """Count a token that was written into the buffers."""
        for name, _ in self._growing():
            buffer = self._kv_buffers[name]
            assert buffer is not None
            setattr(self, name, buffer.extended())
        self.seen += 1

    def _growing(self) -> list[tuple[str, Tensor]]:
        """What a rounded token adds to."""
        return [(name, part) for name in ("codes", "scales") if (part := getattr(self, name)) is not None]

    def dequantized(self) -> Tensor:
        """All tokens in the dtype they came in, [batch, kv_heads, tokens, channels]."""
        scale = self.fixed if self.scales is None else self.scales
        assert scale is not None
        codes = self.codes.view(_READ_AS[self.dtype])
        middle = kv_numbers(codes, scale, self.channels, self.recent.dtype, self.turned)
        floats = self.first.shape[2] + self.recent.shape[2]
        return torch.cat([self.first, middle, self.recent], dim=2) if floats else middle

    def drop_first(self, tokens: int) -> None:
        """Forget the oldest tokens."""
        self._keep(slice(max(tokens, 0), len(self)))

    def drop_last(self, tokens: int) -> None:
        """Forget the newest tokens; they may come again."""
        tokens = min(tokens, len(self))
        self._keep(slice(0, len(self) - tokens))
        self.seen -= tokens

    def _keep(self, kept: slice) -> None:
        """Keep a range of the tokens, counted over the three parts."""
        start = 0
        for name in ("first", "codes", "recent"):
            part: Tensor = getattr(self, name)
            size = part.shape[2]
            own = slice(max(kept.start - start, 0), max(kept.stop - start, 0))
            setattr(self, name, part[:, :, own])
            if name == "codes" and self.scales is not None:
                self.scales = self.scales[:, :, own]
            start += size

    def select_rows(self, rows: Tensor) -> None:
        """Make the batch of the given rows of it, repeated or in another order, as beam search wants."""
        for name in ("first", "codes", "recent", "scales"):
            part = getattr(self, name)
            if part is not None:
                setattr(self, name, part.index_select(0, rows.to(part.device)))

    def repeat_rows(self, times: int) -> None:
        """Repeat each row of the batch."""
        rows = torch.arange(self.codes.shape[0], device=self.codes.device)
        self.select_rows(rows.repeat_interleave(times))

    def move(self, device: torch.device | str) -> None:
        """Move everything to a device."""
        for name in ("first", "codes", "recent", "fixed", "scales"):
            part = getattr(self, name)
            if part is not None:
                setattr(self, name, part.to(device, non_blocking=True))


def _joined(old: Tensor, new: Tensor) -> Tensor:
    return torch.cat([old, new], dim=2) if new.shape[2] else old
