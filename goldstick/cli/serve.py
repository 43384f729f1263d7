"""``goldstick serve``."""

from __future__ import annotations

from pathlib import Path

import click

from goldstick.cli.processors import INPUT_BITS, THREADS, use_processors
from goldstick.cli.writing import CHAT_TEMPLATE, OPTIMIZE, open_to_write


@click.command()
@click.argument("model")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes any free one.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which this machine may be asked, such as a proxy's; localhost and addresses always may.",
)
@click.option("--name", metavar="NAME", help="What the model is called in requests; by default its directory's name.")
@click.option("--running", type=click.IntRange(1), default=8, show_default=True, help="Answers written at a time.")
@click.option("--waiting", type=click.IntRange(0), default=128, show_default=True, help="Answers that may wait.")
@click.option("--max-context", type=click.IntRange(2), help="Tokens of a prompt and its answer, if not the model's.")
@click.option("--max-seconds", type=click.FloatRange(1), default=600, show_default=True, help="Seconds of an answer.")
@click.option("--max-request", type=click.IntRange(1), default=4, show_default=True, help="MiB of a request.")
@click.option(
    "--prefix-memory",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="MiB kept of prompts that were read.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=5,
    show_default=True,
    help="Seconds that answers get when it is stopped.",
)
@CHAT_TEMPLATE
@OPTIMIZE
@click.option("--threads", type=THREADS, help="CPU threads.")
@INPUT_BITS
def serve(
    model: str,
    host: str,
    port: int,
    hosts: tuple[str, ...],
    name: str | None,
    running: int,
    waiting: int,
    max_context: int | None,
    max_seconds: float,
    max_request: int,
    prefix_memory: int,
    grace: float,
    chat_template: Path | None,
    optimize: bool,
    threads: int | None,
    input_bits: str,
) -> None:
    """Serve MODEL, float, compressed or a GGUF file, over OpenAI's interface.

    Clients of OpenAI's interface find it at http://127.0.0.1:8000/v1. It answers until it gets SIGINT (Ctrl-C) or
    SIGTERM, and gives answers that are being written some seconds to end. Nobody is asked who they are: listen at other
    addresses than this machine's own only where everyone may use the model.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.errors import UsageError

    try:
        from goldstick.jobs.serve.server import listening_socket
        from goldstick.jobs.serve.server import serve as serve_model
    except ModuleNotFoundError as error:
        raise UsageError(
            f"serve needs the package {error.name!r}, which is not installed: pip install 'goldstick[serve]'."
        ) from error
    from goldstick.jobs.load.find_model import find_model
    from goldstick.jobs.serve.engine import Engine
    from goldstick.jobs.serve.limits import Limits
    from goldstick.jobs.serve.prompts import Prompts, read_template

    use_processors(threads, input_bits)
    template = read_template(chat_template)
    limits = Limits(
        running=running,
        waiting=waiting,
        context=max_context or 0,
        seconds=max_seconds,
        body_bytes=max_request * 2**20,
        prefix_bytes=prefix_memory * 2**20,
        grace_seconds=grace,
    )
    directory = find_model(model)
    with listening_socket(host, port) as listener:
        language_model = open_to_write(directory, optimize=optimize)
        if max_context is not None and max_context > language_model.context_length:
            click.echo(f"note: the context stays at the model's {language_model.context_length:,} tokens", err=True)
        name = name or directory.resolve().name
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/v1"
        with (
            Engine(language_model, limits) as engine,
            Prompts(language_model, engine.tokenizer_lock, template) as prompts,
        ):
            serve_model(
                engine,
                prompts,
                name,
                listener,
                hosts,
                lambda: click.echo(f"{name} is served at {address}; Ctrl-C stops it"),
            )
    click.echo("stopped")
