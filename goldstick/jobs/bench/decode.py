"""Bench of decoding: tokens a second of whole networks, one token at a time, in turn."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from goldstick.errors import UsageError
from goldstick.hf.random_models import float_llama, llama_config, quantized_llama
from goldstick.jobs.bench.stopwatch import PlainRead, in_turn, seconds_of, verdict
from goldstick.jobs.optimize.optimize import optimize
from goldstick.nn import QuantizedLinear

#: Schemes that ``bench decode`` times.
SCHEMES = ("w4a16-g128", "w8a8-dynamic")
FLOAT = "float32"
_VOCABULARY = 4096
_CONTEXT = 16
_TOKENS = 4


@dataclass(frozen=True, kw_only=True)
class DecodeTime:
    """Tokens a second of a model, one at a time: as it was loaded, and optimized.

    Attributes:
        plain: As it was loaded.
        optimized: After :func:`goldstick.optimize`.
        times_plain: Median of the rounds' ratios.
    """

    plain: float
    optimized: float
    times_plain: float


@dataclass(frozen=True, kw_only=True)
class NetworkTime:
    """What one token of a network takes.

    Attributes:
        network: The dtype of its weights, or their scheme.
        tokens_s: Tokens a second: the inverse of the median.
        weight_gb_s: The rate at which it went through the weights of its linear layers.
        of_read: That rate as a share of what a plain loop reads, in the same rounds.
        times_float: Median of the rounds' ratios to the float network.
    """

    network: str
    tokens_s: float
    weight_gb_s: float
    of_read: float
    times_float: float

    @property
    def verdict(self) -> str:
        """``faster``, ``as fast`` or ``SLOWER``, against float; of the float network itself ``float``."""
        return "float" if self.network == FLOAT else verdict(self.times_float)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**asdict(self), "verdict": self.verdict}


@torch.no_grad()
def bench_decode(hidden: int, inner: int, blocks: int, seconds: float) -> list[NetworkTime]:
    """Time Llamas with random weights: in float32 as transformers runs it, then optimized ones of :data:`SCHEMES`.

    Args:
        hidden: Width of the hidden state; heads are 64 wide, four queries share a key where their number allows it.
        inner: Width inside the MLP.
        blocks: How many.
        seconds: For each network.

    Raises:
        UsageError: The widths are no multiples of 128, the size of a group.
    """
    if hidden % 128 or inner % 128:
        raise UsageError(f"Groups of 128 do not divide {hidden} and {inner}; give multiples of 128.")
    heads = hidden // 64
    config = llama_config(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=blocks,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4 if heads % 4 == 0 else heads,
        vocab_size=_VOCABULARY,
    )
    networks = {FLOAT: float_llama(config)}
    for scheme in SCHEMES:
        networks[scheme] = quantized_llama(config, scheme)
        optimize(networks[scheme])
    read, rates = PlainRead(), list[float]()
    kept = _Turns(networks).rounds(seconds * len(networks), lambda: rates.append(read.bytes_per_second()))
    found = []
    for name, network in networks.items():
        middle = statistics.median(own[name] for own in kept)
        rate = _weight_bytes(network) / middle
        found.append(
            NetworkTime(
                network=name,
                tokens_s=1 / middle,
                weight_gb_s=rate / 1e9,
                of_read=rate / statistics.median(rates),
                times_float=statistics.median(own[FLOAT] / own[name] for own in kept),
            )
        )
    return found


@torch.no_grad()
def decode_time(model: Any, seconds: float) -> DecodeTime:
    """Time a loaded causal language model, and what :func:`goldstick.optimize` makes of a copy."""
    faster = copy.deepcopy(model)
    optimize(faster)
    kept = _Turns({"plain": model, "optimized": faster}).rounds(seconds)
    return DecodeTime(
        plain=1 / statistics.median(own["plain"] for own in kept),
        optimized=1 / statistics.median(own["optimized"] for own in kept),
        times_plain=statistics.median(own["plain"] / own["optimized"] for own in kept),
    )


@torch.no_grad()
def tokens_a_second(model: Any, seconds: float) -> float:
    """How fast a causal language model writes one text."""
    return 1 / statistics.median(own["model"] for own in _Turns({"model": model}).rounds(seconds))


def can_write(model: Any) -> bool:
    """Whether this is a causal language model of transformers."""
    return getattr(model, "can_generate", bool)() and not getattr(model.config, "is_encoder_decoder", False)


class _Turns:
    """Networks that read a short prompt and then decode, each in its turn, always the same places."""

    def __init__(self, networks: Mapping[str, Any]) -> None:
        prompt = torch.zeros(1, _CONTEXT, dtype=torch.long)
        self._turns = {
            name: (network, network(input_ids=prompt, use_cache=True).past_key_values)
            for name, network in networks.items()
        }

    def rounds(self, seconds: float, between: Callable[[], object] = bool) -> list[dict[str, float]]:
        """Seconds a token of each, a round at a time for so many seconds, but for the first, which warms up."""
        return in_turn({name: partial(self._one, *turn) for name, turn in self._turns.items()}, seconds, between)

    def _one(self, network: Any, cache: Any) -> float:
        taken = seconds_of(partial(_steps, network, cache)) / _TOKENS
        cache.crop(-_TOKENS)  # the same context in every round
        return taken


def _steps(model: Any, cache: Any) -> None:
    for _ in range(_TOKENS):
        model(input_ids=torch.zeros(1, 1, dtype=torch.long), past_key_values=cache)


def _weight_bytes(network: nn.Module) -> int:
    total = 0
    for module in network.modules():
        if isinstance(module, QuantizedLinear):
            total += module.weight_packed.nbytes + module.weight_scale.nbytes
        elif isinstance(module, nn.Linear):
            total += module.weight.nbytes
    return total
