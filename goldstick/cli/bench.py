"""``goldstick bench``."""

from __future__ import annotations

from pathlib import Path

import click

from goldstick.cli.console import print_json


@click.command()
@click.argument("what")
@click.option("--tokens", type=click.IntRange(1), multiple=True, default=(1, 4, 64), show_default=True)
@click.option("--shape", default="4096x4096", show_default=True, metavar="OUTxIN", help="Of the layers of 'kernels'.")
@click.option("--seconds", type=float, default=1.0, show_default=True, help="For each line.")
@click.option("--threads", type=click.IntRange(1), help="How many to use; as many as torch has by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(what: str, tokens: tuple[int, ...], shape: str, seconds: float, threads: int | None, as_json: bool) -> None:
    """Time quantized layers beside float ones: of WHAT, a checkpoint, or of 'kernels', random ones.

    Of a causal language model, decoding is timed too, as loaded and optimized. Every layer runs in turn with a float
    layer of its shape and a plain loop over memory, on weights that no cache holds. What is no faster than float is
    called so.
    """
    from goldstick.formats.transformers_names import quiet_libraries

    quiet_libraries()
    import torch

    from goldstick.errors import UsageError
    from goldstick.pipeline.bench import bench_checkpoint, bench_kernels
    from goldstick.pipeline.models import find_model

    if threads is not None:
        torch.set_num_threads(threads)
    decoding = None
    if what == "kernels":
        sizes = shape.split("x")
        if len(sizes) != 2 or not all(size.isdigit() and int(size) for size in sizes):
            raise UsageError(f"--shape is rows and columns such as 4096x4096, not {shape!r}.")
        times = bench_kernels(int(sizes[0]), int(sizes[1]), tokens, seconds)
    else:
        times, decoding = bench_checkpoint(Path(find_model(what)), tokens, seconds)
    if as_json:
        print_json({"layers": [found.to_dict() for found in times], "decode": decoding and vars(decoding)})
        return
    used = torch.get_num_threads()
    clock = "1 thread, its processor time" if used == 1 else f"{used} threads"
    click.echo(f"{clock}; medians of calls in turn with float layers and a plain loop over memory")
    for found in times:
        rows, columns = found.shape
        click.echo(
            f"{found.scheme:20} [{rows} × {columns}] {found.tokens:4} tokens  {found.ms:9.3f} ms "
            f"{found.weight_gb_s:6.1f} GB/s, {found.of_read:4.0%} of a plain read  {found.times_float:6.2f} × float "
            f"({found.verdict}; {found.backend})"
        )
    if decoding is not None:
        click.echo(
            f"decoding: {decoding.plain:.1f} tokens/s as loaded, {decoding.optimized:.1f} optimized "
            f"({decoding.times_plain:.2f} ×)"
        )
