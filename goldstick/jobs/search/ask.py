"""Ask: from what a user says to the recipe that a search finds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from goldstick.checkpoint.gguf.directory import checkpoint_directory
from goldstick.core.json_files import dump_json
from goldstick.core.progress import Progress, quiet
from goldstick.core.ranks import Ranks
from goldstick.core.torch_modes import as_written
from goldstick.errors import GoldstickError, OutputError, UsageError
from goldstick.jobs.load.find_model import REFERENCE, check_model, data_directory, find_model
from goldstick.jobs.search.find import search_recipe
from goldstick.jobs.search.journal import states_of
from goldstick.jobs.search.layers import Method
from goldstick.jobs.search.rows import digest_of_texts
from goldstick.jobs.search.runtimes import RuntimeName
from goldstick.jobs.search.target import Target
from goldstick.kernels.input_bits import refuse_fewer_bits
from goldstick.recipes.calibration import Calibration
from goldstick.recipes.effort import Effort
from goldstick.recipes.recipe import Recipe
from goldstick.report.report import Report

#: The part of a record that tells searches of one request from others.
REQUEST = "request"


@as_written()
def search(
    model: str | Path,
    *,
    size: int | None = None,
    bits: float | None = None,
    share: float | None = None,
    max_loss: float | None = None,
    metric: Literal["perplexity", "kl"] = "perplexity",
    runtime: RuntimeName = "goldstick",
    tensor_parallel: int = 1,
    schemes: Sequence[str] = (),
    exclude: Sequence[str] = (),
    method: Method = "gptq",
    effort: Effort = "default",
    prune: bool = False,
    dataset: str | None = None,
    samples: int = 8,
    seq_len: int = 256,
    seed: int = 0,
    held_out: str | None = None,
    held_out_rows: int = 32,
    calibration: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    beside: Sequence[str | Path] = (),
    journal: str | Path | None = None,
    finished: str | Path | None = None,
    progress: Progress = quiet,
) -> Recipe:
    """Find which layer becomes what, so that a size loses least, or a loss is kept in the fewest bytes.

    Several processes that torchrun started measure together, and find what one finds (docs/scale.md).

    ``goldstick.quantize(model, recipe, output=…)`` carries the recipe out, and its report holds what was found. One of
    ``size``, ``bits``, ``share`` and ``max_loss`` is given.

    Args:
        model: A float causal language model: a directory, a hub id or ``reference``. Of one of
            more than 1 GB in float32, one block is in memory at a time.
        size: Bytes of the weight files, at most.
        bits: Bits of those files for each weight of the model, at most.
        share: Part of the bytes of the source's tensors, at most, such as 0.6.
        max_loss: The smallest model that loses no more, with 95 % confidence, on rows that were not searched on.
        metric: What ``max_loss`` is of: the part by which ``perplexity`` grows, or ``kl`` per token in nats.
        runtime: What the result is for: ``goldstick``, ``transformers``, ``vllm``, ``sglang`` or ``llama.cpp``. It
            decides the format and what layers may become.
        tensor_parallel: Over how many devices ``vllm`` or ``sglang`` is to split the layers: a layer becomes only what
            can be split so.
        schemes: What to choose among, instead of all that the runtime runs.
        exclude: Patterns of layers that stay float.
        method: How layers are rounded.
        effort: ``fast`` takes gradients alone, ``default`` measures what is near the decision, ``best`` all.
        prune: Whether layers may lose channels, too, each its own number, where that loses less than fewer bits for
            all of them: with a size, for the runtime ``goldstick``. The model is in memory as a whole then.
        dataset: The text; WikiText-2 where ``None``, for ``reference`` what comes with it.
        samples: Rows to search on.
        seq_len: Tokens of a row.
        seed: Of the rows and the labels.
        held_out: The text of the rows that judge; other rows of ``dataset`` where ``None``.
        held_out_rows: How many these are.
        calibration: Settings of the recipe's calibration data, as in a recipe; by default those of recipes.
        data_dir: Where sets known by name lie.
        beside: Other checkpoints of the model, whoever made them, to be judged on the same held-out rows.
        journal: A file that lets a search that was stopped go on; whoever names it removes it in the end.
        finished: Where a checkpoint made of this very search may lie; the recipe in its report is given then.
        progress: Called with (description, done, total).

    Returns:
        The recipe. Its ``search`` is the record of what was measured, as plain data.

    Raises:
        UsageError: An argument says what cannot be; not one thing is asked for, or nothing so small, or of so little
            loss, can be made; or no rules of how the runtime splits layers are known.
        RecipeError: A scheme is unknown, or fits no layer; a setting of the calibration is wrong.
        DataError: The text is missing, malformed or too short.
        OutputError: ``finished`` is something else: of another search, or of this one with other texts.
        SourceError: The model cannot be read.
    """
    refuse_fewer_bits()
    target = Target(size=size, bits=bits, share=share, max_loss=max_loss, metric=metric)
    text = dataset or (REFERENCE if str(model) == REFERENCE else Calibration().dataset)
    _refuse_senseless(
        seq_len=seq_len, held_out_rows=held_out_rows, method=method, effort=effort, schemes=schemes, exclude=exclude,
        beside=beside,
    )  # fmt: skip
    settings = {"dataset": text} | ({"allow_short": True} if text == REFERENCE else {}) | dict(calibration or {})
    options: dict[str, Any] = {
        "runtime": runtime, "tensor_parallel": tensor_parallel, "schemes": tuple(schemes), "exclude": tuple(exclude),
        "method": method, "effort": effort, "prune": prune,
        "text": _checked(
            {"dataset": text, "samples": samples, "seq_len": seq_len, "seed": seed}
            | {"text_field": settings.get("text_field")}
        ),
        "calibration": _checked(settings), "held_out": held_out, "held_out_rows": held_out_rows,
    }  # fmt: skip
    for other in beside:
        check_model(str(other))
    with checkpoint_directory(find_model(model)) as directory:
        ranks = Ranks.joined()
        request = ranks.of(
            hashlib.sha256(
                dump_json({"source": states_of(directory), "asked": repr(target), "options": repr(options)}).encode()
            ).hexdigest()
        )
        home = data_directory(data_dir, model)
        if finished is not None and Path(finished).exists():
            calibrated = options["calibration"] if method != "rtn" or prune else None
            texts = digest_of_texts(options["text"], held_out, calibrated, home)
            return ranks.of(_made_of(Path(finished), request, texts))
        found = search_recipe(
            directory, target, data_dir=home, progress=progress, ranks=ranks,
            journal=None if journal is None else Path(journal), beside=[str(other) for other in beside], **options,
        )  # fmt: skip
    return found.recipe.found_by(found.record | {"model": str(model), REQUEST: request})


def _refuse_senseless(
    *, seq_len: int, held_out_rows: int, method: str, effort: str, schemes: object, exclude: object, beside: object
) -> None:
    """Refuse what types alone keep out of a search; UsageError, which says what there is."""
    for name, value, known in (("method", method, get_args(Method)), ("effort", effort, get_args(Effort))):
        if value not in known:
            raise UsageError(f"{name} is one of {', '.join(known)}, not {value!r}.")
    for name, names in (("schemes", schemes), ("exclude", exclude), ("beside", beside)):
        if isinstance(names, str | Path):
            raise UsageError(f"{name} is a list, such as [{str(names)!r}], not {names!r}.")
    for name, number in (("seq_len", seq_len), ("held_out_rows", held_out_rows)):
        if number < 2:
            raise UsageError(f"{name} is at least 2, not {number}: one token predicts none, one row has no spread.")


def _checked(settings: Mapping[str, Any]) -> Calibration:
    """Settings of data, checked as those of a recipe are."""
    return Recipe.load({"stages": ["rtn"], "calibration": dict(settings)}).calibration


def _made_of(directory: Path, request: str, texts: str) -> Recipe:
    """The recipe of a checkpoint that was made of a search for ``request`` on these texts.

    Raises:
        OutputError: It was not.
    """
    remedy = "Choose another -o, or give --overwrite."
    try:
        report = Report.read(directory)
    except GoldstickError as error:  # no checkpoint of goldstick, or no whole one
        raise OutputError(f"The output {directory} exists already. {remedy}") from error
    search = report.search
    for name, here in ((REQUEST, request), ("texts", texts)):
        if search.get(name) != here:
            what = "by another search, or of another source" if name == REQUEST else "of a search on other texts"
            raise OutputError(f"The output {directory} exists already and was made {what}. {remedy}")
    return Recipe.load(report.recipe).found_by(search)
