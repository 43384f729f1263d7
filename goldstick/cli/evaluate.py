"""``goldstick evaluate`` and ``goldstick generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from goldstick.cli.console import console, print_json, progress_bar, split_names


@click.command()
@click.argument("model")
@click.option("--tasks", required=True, callback=split_names, metavar="TASKS", help="Such as wikitext2,boolq.")
@click.option("--baseline", metavar="MODEL", help="A model to compare with, usually the float one.")
@click.option("--data-dir", metavar="DIR", help="Where the tasks' data lie; 'reference' for the bundled data.")
@click.option("--limit", type=click.IntRange(1), help="At most so many items of each task.")
@click.option(
    "--report", "report_dir", type=click.Path(path_type=Path), help="Write report.json and report.html there."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    model: str,
    tasks: tuple[str, ...],
    baseline: str | None,
    data_dir: str | None,
    limit: int | None,
    report_dir: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure MODEL, float or compressed, on evaluation tasks."""
    from goldstick.formats.transformers_names import quiet_libraries

    quiet_libraries()
    if threads:
        import torch

        torch.set_num_threads(threads)
    from goldstick import api
    from goldstick.evaluation.compare import compare
    from goldstick.pipeline.models import REFERENCE
    from goldstick.report.page import write_page
    from goldstick.report.storage import dump_json, write_atomically
    from goldstick.report.terminal import print_comparison, print_evaluation

    if data_dir is None and REFERENCE in (model, baseline):
        data_dir = REFERENCE
    with progress_bar(not as_json) as progress:
        found = api.evaluate(model, tasks, data_dir=data_dir, limit=limit, progress=progress).to_dict()
        before = None
        if baseline is not None:
            before = api.evaluate(baseline, tasks, data_dir=data_dir, limit=limit, progress=progress).to_dict()
    result: dict[str, Any] = found if before is None else {**found, "baseline": before}
    if report_dir is not None:
        report_dir.mkdir(parents=True, exist_ok=True)
        write_atomically(report_dir / "report.json", dump_json(result).encode())
        write_page(report_dir)
    if as_json:
        print_json(result)
    elif before is not None:
        print_comparison(console(), compare(found, before))
    else:
        print_evaluation(console(), found)


@click.command()
@click.argument("model")
@click.option("--prompt", required=True, metavar="TEXT", help="The text to go on from.")
@click.option("--max-new-tokens", type=click.IntRange(1), default=64, show_default=True)
def generate(model: str, prompt: str, max_new_tokens: int) -> None:
    """Let MODEL, float or compressed, go on from a prompt (greedily)."""
    from goldstick.formats.transformers_names import quiet_libraries

    quiet_libraries()
    from goldstick.evaluation.language_model import LanguageModel
    from goldstick.pipeline.load import load
    from goldstick.pipeline.models import find_model

    directory = find_model(model)
    language_model = LanguageModel.from_directory(load(directory), directory)
    (text,) = language_model.generate_greedy([prompt], max_new_tokens, stop=())
    click.echo(prompt + text)
