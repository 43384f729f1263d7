"""Seeds: what torch's generators take."""

from __future__ import annotations

from goldstick.errors import RecipeError

LEAST, MOST = -(1 << 63), (1 << 64) - 1


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse a seed of more than 64 bits.

    Raises:
        RecipeError: It is one; the message says the option's name.
    """
    if not LEAST <= seed <= MOST:
        raise RecipeError(f"{name} is a whole number of 64 bits, not {seed}.")
