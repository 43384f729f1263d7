"""Orthogonal matrices that spread a spike over all channels: randomised Hadamard transforms.

With H a Hadamard matrix (entries ±1, H·Hᵀ = n·I) and s random signs, Q = diag(s)·H / √n turns a vector with one large
entry into one whose entries are all alike in size, and keeps its length (QuaRot, arXiv 2404.00456).
Everything is float64 and built from additions in a fixed order, so the bits do not depend on the number of threads
(but for the dense matrices of widths such as 50, which no useful Hadamard matrix divides).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

#: Largest matrix of Paley's that is looked for beside the power of two.
LARGEST_PALEY = 256
#: Widths whose power of two is smaller than this get a dense random matrix instead of tiny Hadamard blocks.
SMALLEST_BLOCK = 8
#: Numbers turned at a time, so that the passes of one transform find them in the cache.
_CHUNK = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """A random orthogonal matrix Q [size, size], as the few numbers that make it.

    A vector of several times ``size`` channels is turned block by block, each by the same Q.

    Attributes:
        size: Channels that are mixed with each other.
        seed: Seed of the random signs.
        keeps_ones: Whether Q leaves the vector of ones where it is: Q = H·diag(s)·Hᵀ / n with s₀ = 1. It then
            commutes with subtracting the mean, as LayerNorm does.
        signed: Whether the signs are random; otherwise all are 1 and Q is H / √n.
    """

    size: int
    seed: int
    keeps_ones: bool = False
    signed: bool = True

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"A rotation needs at least one channel, not {self.size}.")

    def matrix(self) -> Tensor:
        """Q, float64 [size, size]."""
        return self.turn(torch.eye(self.size, dtype=torch.float64))

    @torch.no_grad()
    def turn(self, rows: Tensor) -> Tensor:
        """x·Q for every row x of ``rows`` [..., channels]; float64 of the same shape.

        Raises:
            ValueError: ``size`` does not divide the channels.
        """
        if rows.shape[-1] % self.size:
            raise ValueError(f"{rows.shape[-1]} channels cannot be turned in blocks of {self.size}.")
        flat = rows.detach().to(torch.float64).reshape(-1, self.size)
        step = max(1, _CHUNK // self.size)
        chunks = [self._turn(flat[start : start + step]) for start in range(0, flat.shape[0], step)]
        return torch.cat(chunks).reshape(rows.shape) if chunks else flat.reshape(rows.shape)

    def _turn(self, rows: Tensor) -> Tensor:
        order, block = hadamard_orders(self.size)
        if order * block < SMALLEST_BLOCK and order * block < self.size:
            return torch.matmul(rows, _dense(self.size, self.seed, self.keeps_ones).to(rows.device))
        generator = torch.Generator().manual_seed(self.seed)
        signs = torch.randint(0, 2, (self.size,), generator=generator).to(torch.float64) * 2 - 1
        signs = signs if self.signed else torch.ones_like(signs)
        scale = 1 / math.sqrt(order * block)
        if not self.keeps_ones:
            return _times_hadamard(rows * signs.to(rows.device), order, block) * scale
        signs.view(-1, order * block)[:, 0] = 1
        spectrum = _times_hadamard(rows, order, block) * scale * signs.to(rows.device)
        return _times_hadamard(spectrum, order, block, transposed=True) * scale


def hadamard_orders(size: int) -> tuple[int, int]:
    """(m, 2^k): Q mixes m · 2^k channels at a time by the product of a Paley matrix of order m and a Sylvester one.

    m · 2^k is ``size`` where a Hadamard matrix of that order is known here (m is 1, or q + 1 or 2(q + 1) for a
    prime q as in Paley 1933), and otherwise the largest power of two that divides it.
    """
    power = size & -size
    for order in (size // power << shift for shift in range(power.bit_length())):
        if order > LARGEST_PALEY:
            break
        if order == 1 or _paley_prime(order):
            return order, size // order
    return 1, power


def hadamard(size: int) -> Tensor:
    """A Hadamard matrix: entries ±1, H·Hᵀ = size·I, the first column all ones; float64.

    Raises:
        ValueError: None of this order is known here.
    """
    order, block = hadamard_orders(size)
    if order * block != size:
        raise ValueError(f"No Hadamard matrix of order {size} is known here.")
    return _times_hadamard(torch.eye(size, dtype=torch.float64), order, block)


def _times_hadamard(rows: Tensor, order: int, block: int, *, transposed: bool = False) -> Tensor:
    """Every ``order`` · ``block`` channels times H_order ⊗ H_block (or its transpose)."""
    values = rows.reshape(-1, order, block)
    half = 1
    while half < block:
        pairs = values.reshape(-1, order, block // (2 * half), 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack((first + second, first - second), dim=-2)
        half *= 2
    values = values.reshape(-1, order, block)
    if order > 1:
        signs = paley(order)
        signs = signs.T if transposed else signs
        mixed = torch.zeros_like(values)
        for source in range(order):  # one addition at a time: no product whose order a library chooses
            mixed += values[:, source, None, :] * signs[source].to(values)[:, None]
        values = mixed
    return values.reshape(rows.shape)


@lru_cache(maxsize=8)
def paley(order: int) -> Tensor:
    """Paley's Hadamard matrix of order q + 1 (q ≡ 3 mod 4) or 2(q + 1) (q ≡ 1 mod 4), q prime; first column ones.

    Raises:
        ValueError: ``order`` is of neither form.
    """
    prime = _paley_prime(order)
    if not prime:
        raise ValueError(f"Paley's constructions give no Hadamard matrix of order {order}.")
    squares = {number * number % prime for number in range(1, prime)}
    residue = torch.tensor([0, *(1 if number in squares else -1 for number in range(1, prime))], dtype=torch.float64)
    index = torch.arange(prime)
    core = torch.zeros(prime + 1, prime + 1, dtype=torch.float64)
    core[1:, 1:] = residue[(index[:, None] - index) % prime]
    core[0, 1:] = 1
    core[1:, 0] = -1 if prime % 4 == 3 else 1
    unit = torch.eye(prime + 1, dtype=torch.float64)
    if prime % 4 == 3:
        matrix = core + unit
    else:
        plus, minus = core + unit, core - unit
        matrix = torch.cat((torch.cat((plus, minus), dim=1), torch.cat((minus, -plus), dim=1)))
    return matrix * matrix[:, :1]


def _paley_prime(order: int) -> int:
    """The prime q of Paley's constructions for ``order``, or 0."""
    if order % 4 == 0 and _is_prime(order - 1):
        return order - 1  # ≡ 3 mod 4
    half = order // 2 - 1
    return half if order % 4 == 0 and half % 4 == 1 and _is_prime(half) else 0


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def _dense(size: int, seed: int, keeps_ones: bool) -> Tensor:
    """A random orthogonal matrix for widths without a useful Hadamard block, by QR of normal numbers."""
    generator = torch.Generator().manual_seed(seed)

    def basis() -> Tensor:
        normal = torch.randn(size, size, generator=generator, dtype=torch.float64)
        if keeps_ones:
            normal[:, 0] = 1
        orthogonal, triangle = torch.linalg.qr(normal)
        signs = torch.where(triangle.diagonal() < 0, -1.0, 1.0).to(torch.float64)
        positive: Tensor = orthogonal * signs
        return positive  # the first column is ones / √size where it is to be kept

    return torch.matmul(basis(), basis().T) if keeps_ones else basis()
