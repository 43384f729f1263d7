"""Initial weights in which looking a value up is laid out already, so that minutes of training suffice.

Transformers learn to look up and copy by forming induction heads (Olsson et al. 2022, arXiv:2209.11895), which takes
many more tokens than a short training on a CPU has. Here a part of the attention begins near that solution, in the
spirit of mimetic initialisation (Trockman and Kolter 2023, arXiv:2305.09828); everything is trained afterwards.

- Every embedding has the same value in a few dimensions, from which the first layer's heads make positional queries:
  each looks a fixed number of tokens back and writes what it finds to a subspace kept free, `written`.
- In later layers half the heads compare a token (or its `written`) with the `written` of earlier tokens, so a name
  finds what was said behind the same name, and copy the token found there.
- In the second layer the other heads gather the words some tokens back, such as the name in a question.
- In the layers after it they look for a token that is like the words gathered *and* follows them, as a yes/no
  question needs, and fetch what was `written` there, as a question for the name needs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention

_DEVIATION = 0.12
_CONSTANT_DIMENSIONS = 16
_CONSTANT = 0.17
_BACK = ((3, 4), (3, 4), (5, 1), (5, 1))  # tokens back, for the two query heads of each key/value head
_GATHER = (3.0, 6.5)
_GATHER_SCALE = 4.0
_GATHER_SHARPNESS = 1.8  # later positions are told from a residual stream that has grown
_SECOND_MATCH = 0.7
_FAST = 3  # pairs of rotary dimensions that turn fast enough to tell neighbouring positions apart
_SLOW = 6  # the first pair that turns slowly enough to compare contents at any distance
_SHARPNESS = 3.0
_MATCH = 1.4
_FINAL_NORM = 0.4
_ROPE_THETA = 10000.0


@torch.no_grad()
def lay_out_induction(model: LlamaForCausalLM) -> None:
    """Overwrite embeddings and attention of a freshly initialised model; heads of 32, two queries to a key."""
    config = model.config
    hidden, size = config.hidden_size, config.hidden_size // config.num_attention_heads
    free = torch.zeros(hidden, hidden - _CONSTANT_DIMENSIONS)
    free[_CONSTANT_DIMENSIONS:] = torch.linalg.qr(torch.randn(free.shape[1], free.shape[1])).Q
    frames = torch.split(free.T, size)  # orthonormal rows (32, hidden), orthogonal to each other and to the constant
    read, written, copied = frames[:2], frames[2:4], frames[4:6]

    embedding = model.model.embed_tokens.weight.normal_(std=_DEVIATION)
    for frame in written:
        embedding.sub_(embedding @ frame.T @ frame)
    embedding[:, :_CONSTANT_DIMENSIONS] = _CONSTANT
    model.model.norm.weight.fill_(_FINAL_NORM)

    angles = 1.0 / _ROPE_THETA ** (torch.arange(0, size, 2) / size)
    layers = [_Heads(layer.self_attn, size) for layer in model.model.layers]
    for head, back in enumerate(_BACK):
        layers[0].look_back(head, back, angles)
        layers[0].copy(head, read[head % 2], _DEVIATION * written[head % 2])
    slow = (torch.arange(size) % (size // 2) >= _SLOW).float()[:, None] * _MATCH
    for number, heads in enumerate(layers[1:]):
        for head in range(2):
            heads.match(head, slow * written[head], (slow * read[head], 0.5 * slow * written[head]))
            heads.copy(head, copied[head], _DEVIATION * copied[head])
            if number == 0:
                heads.look_back(head + 2, _GATHER, angles, _GATHER_SHARPNESS)
                heads.copy(head + 2, read[head], _GATHER_SCALE * _DEVIATION * read[head])
            else:
                mild = _SECOND_MATCH * slow
                heads.match(head + 2, mild * (read[head] + written[head]), (mild * read[head],) * 2)
                heads.copy(head + 2, written[head], _DEVIATION * read[head])


class _Heads:
    """The heads of one attention layer: one key/value head serves two query heads."""

    def __init__(self, attention: LlamaAttention, size: int) -> None:
        self.attention = attention
        self.size = size

    def look_back(self, head: int, back: tuple[float, float], angles: Tensor, sharpness: float = 1.0) -> None:
        """Let the two queries of a key/value head look a number of tokens back."""
        rows = _head(self.attention.k_proj.weight, head, self.size)
        rows[:, :_CONSTANT_DIMENSIONS] += sharpness * _positional(angles, 0)[:, None]
        for query, tokens in zip((2 * head, 2 * head + 1), back, strict=True):
            rows = _head(self.attention.q_proj.weight, query, self.size)
            rows[:, :_CONSTANT_DIMENSIONS] += sharpness * _positional(angles, tokens)[:, None]

    def match(self, head: int, key: Tensor, queries: tuple[Tensor, Tensor]) -> None:
        """Compare what two queries read (32, hidden) with what the key reads."""
        _head(self.attention.k_proj.weight, head, self.size).copy_(key)
        for query, rows in zip((2 * head, 2 * head + 1), queries, strict=True):
            _head(self.attention.q_proj.weight, query, self.size).copy_(rows)

    def copy(self, head: int, source: Tensor, target: Tensor) -> None:
        """Carry what is found from one frame (32, hidden) to another."""
        _head(self.attention.v_proj.weight, head, self.size).copy_(source)
        for query in (2 * head, 2 * head + 1):
            _head(self.attention.o_proj.weight.T, query, self.size).copy_(target)


def _head(weight: Tensor, head: int, size: int) -> Tensor:
    """The rows of one head, as a view."""
    return weight[head * size : (head + 1) * size]


def _positional(angles: Tensor, back: float) -> Tensor:
    """What each constant dimension gives to a head's dimensions, to look `back` tokens back.

    Under rotary embeddings a pair (s, 0) of a key and (s cos(back a), -s sin(back a)) of a query score highest
    `back` tokens apart.
    """
    norm = _CONSTANT / (_CONSTANT**2 * _CONSTANT_DIMENSIONS / 256 + _DEVIATION**2 * 176 / 256) ** 0.5
    strength = torch.where(torch.arange(len(angles)) < _FAST, _SHARPNESS / (_CONSTANT_DIMENSIONS * norm), 0.0)
    return torch.cat((strength * torch.cos(back * angles), -strength * torch.sin(back * angles)))
