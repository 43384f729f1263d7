"""``goldstick evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from goldstick.cli.console import console, finite_or_none, print_json, progress_bar, split_names
from goldstick.cli.examples_option import EXAMPLES, asked_examples, echo_examples
from goldstick.cli.processors import INPUT_BITS, THREADS, echo_input_bits, use_processors
from goldstick.cli.several import prints
from goldstick.cli.streams import showing


@click.command()
@click.argument("model")
@click.option(
    "--tasks",
    required=True,
    callback=split_names,
    metavar="TASKS",
    help="Such as wikitext2,boolq or lm_eval:TASK; text:FILE, qa:FILE.jsonl or choice:FILE.jsonl for your own data; "
    "FILE.py for a task of your own.",
)
@click.option("--baseline", metavar="MODEL", help="A model to compare with, usually the float one.")
@click.option(
    "--max-loss",
    type=click.FloatRange(min=0),
    callback=finite_or_none,
    metavar="NUMBER",
    help="With --baseline: what may be lost, so many percent, or points of a score.  [default: 1]",
)
@click.option("--data-dir", metavar="DIR", help="Where the tasks' data lie; 'reference' for the bundled data.")
@click.option("--limit", type=click.IntRange(1), help="At most so many items of each task.")
@click.option(
    "--report", "report_dir", type=click.Path(path_type=Path), help="Write report.json and report.html there."
)
@click.option(
    "--items",
    "items_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write what every single item gave, a line of JSON each.",
)
@EXAMPLES
@click.option("--overwrite", is_flag=True, help="Replace FILE, and report.json and report.html there.")
@click.option("--cache/--no-cache", default=True, show_default=True, help="Use and keep results of earlier runs.")
@click.option("--threads", type=THREADS, help="CPU threads.")
@INPUT_BITS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    model: str,
    tasks: tuple[str, ...],
    baseline: str | None,
    max_loss: float | None,
    data_dir: str | None,
    limit: int | None,
    report_dir: Path | None,
    items_file: Path | None,
    examples: int | None,
    prompts: tuple[str, ...],
    overwrite: bool,
    cache: bool,
    threads: int | None,
    input_bits: str,
    as_json: bool,
) -> None:
    """Measure MODEL, float, compressed or a GGUF file, on evaluation tasks.

    With --baseline every metric is compared over the same items and judged in words; on tasks of running text, what
    both models predict is compared token by token (both are then in memory). --json gives metrics, intervals and
    comparisons; what single items gave goes into the file of --items, and into the report.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    use_processors(threads, input_bits)
    from goldstick import api
    from goldstick.checkpoint.staging import refuse_checkpoint
    from goldstick.core.json_files import check_writable, dump_json, write_atomically
    from goldstick.core.ranks import Ranks
    from goldstick.evaluation.compare import compare
    from goldstick.evaluation.items import item_lines, without_items
    from goldstick.evaluation.threshold import DEFAULT_LOSS, judge, overall, summary
    from goldstick.jobs.evaluate.about import about_model
    from goldstick.jobs.evaluate.cache import cache_directory
    from goldstick.jobs.evaluate.divergence import compare_predictions
    from goldstick.jobs.evaluate.examples import compare_examples
    from goldstick.jobs.load.find_model import REFERENCE, check_model, data_directory, find_model
    from goldstick.report.divergence_view import divergence_words
    from goldstick.report.file_names import FILE_NAME as REPORT_NAME
    from goldstick.report.file_names import PAGE_NAME
    from goldstick.report.page import write_page
    from goldstick.report.terminal import print_comparison, print_evaluation

    if max_loss is not None and baseline is None:
        raise click.UsageError("--max-loss is against a model to compare with; say --baseline, too.")
    asked = asked_examples(examples, prompts)
    chosen = examples is not None or bool(prompts)
    if chosen and baseline is None:
        raise click.UsageError("--examples and --prompt show two models side by side; say --baseline, too.")
    if not (chosen or as_json or report_dir):
        asked = 0  # nobody would see them
    allowed = DEFAULT_LOSS if max_loss is None else max_loss
    if not prints():
        report_dir = items_file = None
    if data_dir is None and REFERENCE in (model, baseline):
        data_dir = REFERENCE
    if report_dir is not None:
        check_writable(report_dir, directory=True)
        refuse_checkpoint(report_dir)
        if report_dir.is_dir():
            for file in (REPORT_NAME, PAGE_NAME):
                check_writable(report_dir / file, overwrite=overwrite)
    if items_file is not None:
        check_writable(items_file, overwrite=overwrite)
    kept = cache_directory() if cache else None
    with progress_bar(not as_json) as progress:

        def measure(name: str) -> dict[str, Any]:
            found = api.evaluate(name, tasks, data_dir=data_dir, limit=limit, cache=kept, progress=progress)
            return {"model": about_model(name, find_model(name)), **found.to_dict()}

        for name in (model, baseline):
            if name is not None:
                check_model(name)
        found = measure(model)
        result = found
        before = None if baseline is None else measure(baseline)
        if baseline is not None and before is not None:
            result = {**found, "baseline": before, "max_loss": allowed}
            if _tokenizers(found) == _tokenizers(before):
                result["divergence"] = compare_predictions(
                    find_model(baseline),
                    find_model(model),
                    tasks,
                    data_dir=data_directory(data_dir, model),
                    limit=limit,
                    progress=progress,
                    ranks=Ranks.joined(),
                )
            if prints():
                shown = compare_examples(
                    find_model(baseline), find_model(model), tasks, asked,
                    data_dir=data_directory(data_dir, model), limit=limit, progress=progress,
                )  # fmt: skip
                result |= {"examples": shown} if shown else {}
    if not prints():
        return
    rows = compare(found, before) if before is not None else []
    judged = judge(rows, allowed)
    with showing(report_dir, items_file):
        if as_json:
            compared: dict[str, Any] = {} if before is None else {"comparison": [row.to_dict() for row in rows]}
            compared |= {} if not judged else {"verdict": overall(judged), "judged": [one.to_dict() for one in judged]}
            print_json(without_items(result) | compared)
        elif before is not None:
            print_comparison(console(), rows)
            for line in divergence_words(result):
                click.echo(line)
            if result.get("examples"):
                echo_examples(result["examples"], whole=chosen)
            for one in judged:
                click.echo(f"{one.task}, {one.metric}: {one.words}")
            if judged:
                click.echo(f"verdict: {overall(judged)}: {summary(judged)}")
        else:
            print_evaluation(console(), found)
        if not as_json:
            echo_input_bits()
    if items_file is not None:
        lines = [*item_lines(found, model=model), *(item_lines(before, model=baseline) if before is not None else ())]
        write_atomically(items_file, "".join(f"{line}\n" for line in lines).encode(), replace=overwrite)
    if report_dir is not None:
        report_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(report_dir / REPORT_NAME, dump_json(result).encode(), replace=overwrite)
        write_page(report_dir, replace=overwrite)


def _tokenizers(found: dict[str, Any]) -> set[str]:
    return {task["tokenizer"] for task in found["tasks"].values()}
