"""A tokenizer that does something for which one side has no word."""

from __future__ import annotations


class UnfitTokenizerError(ValueError):
    """What a tokenizer does that the other side does not; whoever knows the file says where and gives the remedy."""
