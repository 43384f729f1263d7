"""Weights to round: ordinary, with outliers, tiny, large, mostly zeros, constant, of one sign, of far apart sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Weights = Callable[[np.random.Generator, int, int], np.ndarray]


def _steps(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return np.repeat(rng.standard_normal((rows, -(-columns // 64))), 64, axis=1)[:, :columns]


KINDS: dict[str, Weights] = {
    "normal": lambda rng, rows, columns: 0.02 * rng.standard_normal((rows, columns)),
    "heavy": lambda rng, rows, columns: 0.02 * rng.standard_t(2, (rows, columns)),
    "tiny": lambda rng, rows, columns: 2e-7 * rng.standard_normal((rows, columns)),
    "sparse": lambda rng, rows, columns: rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.1),
    "constant": _steps,
    "negative": lambda rng, rows, columns: -np.abs(rng.standard_normal((rows, columns))),
    "scattered": lambda rng, rows, columns: (
        1e-4 * rng.standard_normal((rows, columns)) * np.exp(3 * rng.normal(size=columns))
    ),
    "zeros": lambda rng, rows, columns: np.zeros((rows, columns)),
    "large": lambda rng, rows, columns: 2000 * rng.standard_normal((rows, columns)),
}


def rows_of(kind: str, seed: int, rows: int, columns: int) -> np.ndarray:
    """Float32 [rows, columns] of a kind."""
    return KINDS[kind](np.random.default_rng(seed), rows, columns).astype(np.float32)


def importance_of(seed: int, columns: int) -> np.ndarray:
    """An importance of each column, float32 [columns], one of which is 0."""
    found = np.random.default_rng(seed).chisquare(1, columns).astype(np.float32)
    found[columns // 3] = 0
    return found
