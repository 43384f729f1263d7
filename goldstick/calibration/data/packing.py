"""From token sequences to samples: one stream cut into windows, or a padded row for each sequence."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from goldstick.calibration.data.samples import CalibrationData
from goldstick.errors import ShortageError


def pack(
    sequences: Iterable[Sequence[int]],
    *,
    dataset: str,
    samples: int,
    seq_len: int,
    seed: int,
    allow_short: bool = False,
    unknown_id: int | None = None,
) -> CalibrationData:
    """Join sequences to one stream, cut it into windows of ``seq_len`` tokens, and draw ``samples`` of them.

    Args:
        sequences: Token ids of each row; blank rows have none.
        dataset: What errors and the report call the data.
        samples: How many windows are drawn, none twice, in the order of the stream.
        seq_len: Tokens of a window.
        seed: Decides which are drawn.
        allow_short: Take what there is where there are fewer.
        unknown_id: The tokenizer's token for what it does not know.

    Raises:
        ShortageError: There are fewer windows than asked for, or none at all.
    """
    stream, blank = array("q"), 0
    for sequence in sequences:
        stream.extend(sequence)
        blank += not sequence
    available = len(stream) // seq_len
    shorter = len(stream) // samples
    remedies = (*((f"{{seq_len:{shorter}}}",) if shorter > 1 else ()), "more text")
    require_enough(available, dataset, samples, f"windows of {seq_len} tokens", remedies, allow_short)
    windows = torch.frombuffer(stream, dtype=torch.int64, count=available * seq_len).view(available, seq_len)
    return CalibrationData(
        ids=windows[drawn_samples(available, samples, seed)],
        dataset=dataset,
        available=available,
        asked=samples,
        blank_rows=blank,
        unknown_id=unknown_id,
    )


def pad_rows(
    sequences: Iterable[Sequence[int]],
    *,
    dataset: str,
    samples: int,
    seq_len: int,
    seed: int,
    allow_short: bool = False,
    unknown_id: int | None = None,
    padding_id: int = 0,
) -> CalibrationData:
    """Draw ``samples`` of the sequences; cut each at ``seq_len`` tokens, or pad it, on the right and masked.

    Args:
        sequences: Token ids of each row; those without a token are never drawn.
        dataset: What errors and the report call the data.
        samples: How many are drawn, none twice, in their order.
        seq_len: The most tokens of a sample.
        seed: Decides which are drawn.
        allow_short: Take what there is where there are fewer.
        unknown_id: The tokenizer's token for what it does not know.
        padding_id: What stands where there is no token.

    Raises:
        ShortageError: There are fewer rows than asked for, or none at all.
    """
    rows = list(sequences)
    written = [sequence for sequence in rows if sequence]
    require_enough(len(written), dataset, samples, "rows with tokens", ("more rows",), allow_short)
    drawn = [written[number] for number in drawn_samples(len(written), samples, seed).tolist()]
    ids = torch.full((len(drawn), seq_len), padding_id, dtype=torch.int64)
    mask = torch.zeros((len(drawn), seq_len), dtype=torch.bool)
    for row, sequence in enumerate(drawn):
        kept = torch.tensor(list(sequence[:seq_len]), dtype=torch.int64)
        ids[row, : len(kept)] = kept
        mask[row, : len(kept)] = True
    return CalibrationData(
        ids=ids,
        mask=mask,
        dataset=dataset,
        available=len(written),
        asked=samples,
        blank_rows=len(rows) - len(written),
        cut_rows=sum(len(sequence) > seq_len for sequence in drawn),
        unknown_id=unknown_id,
    )


def drawn_samples(available: int, samples: int, seed: int) -> Tensor:
    """Which of the samples there are a seed draws, none twice, in their order: int64 [at most samples]."""
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return order[:samples].sort().values


def require_enough(
    available: int, dataset: str, samples: int, of_what: str, remedies: Sequence[str], allow_short: bool
) -> None:
    """Refuse data of too few samples, with what would help.

    Raises:
        ShortageError: There are fewer than asked for, or none at all.
    """
    if available >= samples or (allow_short and available):
        return
    ways = [f"{{samples:{available}}}", *remedies, "{allow_short:True}"] if available else remedies
    asked = f"{samples} {'is' if samples == 1 else 'are'} asked for"
    raise ShortageError(f"{dataset} gives {available} {of_what}, and {asked}", available, ways)
