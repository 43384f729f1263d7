"""``goldstick bench``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from goldstick.cli.console import finite, print_json
from goldstick.cli.inputs_option import INPUTS
from goldstick.cli.processors import THREADS, use_processors


@click.command()
@click.argument("what")
@click.option("--tokens", type=click.IntRange(1, 1 << 20), multiple=True, default=(1, 4, 64), show_default=True)
@click.option("--shape", metavar="OUTxIN", help="Of the layers of 'kernels' [default: 4096x4096]; of 'decode' the "
              "MLP's first layer, inner and hidden width [default: 5632x2048].")  # fmt: skip
@click.option(
    "--blocks", type=click.IntRange(1, 1000), default=4, show_default=True, help="Of the networks of 'decode'."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    callback=finite,
    default=1.0,
    show_default=True,
    help="For each line.",
)
@click.option("--threads", type=THREADS, help="How many to use; as many as torch has by default.")
@click.option("--as-loaded", is_flag=True, help="Time layers with weights as they are loaded, not as optimized models "
              "have them.")  # fmt: skip
@click.option("--baseline", metavar="MODEL", help="The float model that the checkpoint was made of, to time beside "
              "it.")  # fmt: skip
@INPUTS
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    what: str,
    tokens: tuple[int, ...],
    shape: str | None,
    blocks: int,
    seconds: float,
    threads: int | None,
    as_loaded: bool,
    baseline: str | None,
    inputs: Path | None,
    as_json: bool,
) -> None:
    """Time quantized layers and networks beside float ones: of WHAT, a checkpoint, 'kernels' or 'decode'.

    'kernels' are random layers; 'decode' are random Llamas, decoding one token at a time. Of a checkpoint every kind of
    linear layer is timed, and decoding, as loaded and optimized, if it is a causal language model. These run in turn
    with float ones and a plain loop over memory, on weights that no cache holds. Of other models, and where --inputs
    or --baseline is given, a whole forward pass is timed. What is no faster than float is called so.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.hf.example_inputs import read_inputs
    from goldstick.jobs.bench.bench import LayerTime, bench_checkpoint, bench_kernels
    from goldstick.jobs.bench.decode import NetworkTime, bench_decode
    from goldstick.jobs.bench.forward import ForwardTime, bench_forward
    from goldstick.jobs.bench.stopwatch import clock_in_words
    from goldstick.jobs.load.find_model import find_model

    if what in ("kernels", "decode") and (baseline is not None or inputs is not None):
        raise click.UsageError(f"--baseline and --inputs belong to a checkpoint; {what!r} are random weights")
    use_processors(threads)
    times: list[LayerTime] = []
    networks: list[NetworkTime] = []
    forwards: list[ForwardTime] = []
    decoding = None
    if what == "kernels":
        rows, columns = _sizes(shape or "4096x4096")
        _refuse_too_large(rows * columns + max(tokens) * (rows + columns))
        times = bench_kernels(rows, columns, tokens, seconds, interleave=not as_loaded)
    elif what == "decode":
        inner, hidden = _sizes(shape or "5632x2048")
        _refuse_too_large(blocks * hidden * (4 * hidden + 3 * inner))
        networks = bench_decode(hidden, inner, blocks, seconds)
    else:
        directory = Path(find_model(what))
        given = None if inputs is None else read_inputs(inputs)
        times, decoding = bench_checkpoint(directory, tokens, seconds, interleave=not as_loaded)
        if decoding is None or given is not None or baseline is not None:
            float_model = None if baseline is None else Path(find_model(baseline))
            forwards = bench_forward(directory, seconds, inputs=given, baseline=float_model)
    if as_json:
        found: dict[str, object] = {"layers": [layer.to_dict() for layer in times]}
        found["networks"] = [network.to_dict() for network in networks]
        found["forward"] = [forward.to_dict() for forward in forwards]
        print_json(found | {"decode": decoding and vars(decoding)})
        return
    click.echo(f"{clock_in_words()}; medians of turns with float ones and a plain loop over memory")
    for layer in times:
        rows, columns = layer.shape
        click.echo(
            f"{layer.scheme:20} [{rows} × {columns}] {layer.tokens:4} tokens  {layer.ms:9.3f} ms "
            f"{layer.weight_gb_s:6.1f} GB/s, {layer.of_read:4.0%} of a plain read  {layer.times_float:6.2f} × float "
            f"({layer.verdict}; {layer.backend})"
        )
    for network in networks:
        click.echo(
            f"{network.network:20} {network.tokens_s:8.1f} tokens/s {network.weight_gb_s:6.1f} GB/s of weights, "
            f"{network.of_read:4.0%} of a plain read  {network.times_float:6.2f} × float ({network.verdict})"
        )
    for forward in forwards:
        beside = "" if forward.verdict is None else f"  {forward.times_float:6.2f} × float ({forward.verdict})"
        click.echo(f"forward pass, {forward.network:10} {forward.ms:9.3f} ms{beside}")
    if decoding is not None:
        click.echo(
            f"decoding: {decoding.plain:.1f} tokens/s as loaded, {decoding.optimized:.1f} optimized "
            f"({decoding.times_plain:.2f} ×)"
        )


def _sizes(shape: str) -> tuple[int, int]:
    from goldstick.errors import UsageError

    found = re.fullmatch("0*([1-9][0-9]{0,8})x0*([1-9][0-9]{0,8})", shape)
    if found is None:
        raise UsageError(f"--shape is rows and columns such as 4096x4096, not {shape[:40]!r}.")
    return int(found[1]), int(found[2])


def _refuse_too_large(elements: int) -> None:
    """Refuse what memory cannot hold: a float and a quantized weight for each element, with room to make them."""
    from goldstick.calibration.memory_budget import default_budget
    from goldstick.errors import UsageError
    from goldstick.report.words import format_bytes

    needed, budget = 12 * elements, default_budget()
    if needed > budget:
        raise UsageError(
            f"That takes about {format_bytes(needed)} of memory, and {format_bytes(budget)} can be had. Give a smaller "
            "--shape, or fewer --tokens or --blocks."
        )
