"""Amounts of memory, as users write them."""

from __future__ import annotations

import re

import click


def memory_size(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """``8GB``, ``500 MB``, ``4GiB`` or a plain number, in bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d{1,15}(?:\.\d+)?) *([KMGT]?)(I?)B?", value.strip(), re.IGNORECASE)
    if match is None:
        raise click.BadParameter(f"{value!r} is no number of bytes; write 8GB, 500MB or 4GiB")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** " KMGT".index(match[2].upper() or " "))
