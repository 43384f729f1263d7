"""``goldstick chat``."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from goldstick.cli.processors import INPUT_BITS, THREADS, use_processors
from goldstick.cli.writing import (
    CHAT_TEMPLATE,
    OPTIMIZE,
    open_to_write,
    require_text,
    sampling_options,
    standard_input,
)
from goldstick.errors import GoldstickError

if TYPE_CHECKING:
    from goldstick.jobs.serve.conversation import Conversation

_HELP = "/reset forgets what was said, /quit ends (so does Ctrl-D), Ctrl-C stops an answer."


@click.command()
@click.argument("model")
@click.option("--system", metavar="TEXT", help="What the system says first.")
@CHAT_TEMPLATE
@click.option("--max-new-tokens", type=click.IntRange(1), default=512, show_default=True, help="Of an answer.")
@sampling_options(0.7, None)
@OPTIMIZE
@click.option("--threads", type=THREADS, help="CPU threads.")
@INPUT_BITS
def chat(
    model: str,
    system: str | None,
    chat_template: Path | None,
    max_new_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    optimize: bool,
    threads: int | None,
    input_bits: str,
) -> None:
    """Talk to MODEL, float, compressed or a GGUF file, in the terminal.

    /reset forgets what was said, /quit ends (so does Ctrl-D), Ctrl-C stops an answer. Where standard input is no
    terminal, each of its lines is said, and the answers are printed.
    """
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.evaluation.sampling import Sampling
    from goldstick.jobs.load.find_model import find_model
    from goldstick.jobs.serve.conversation import Conversation, Manner
    from goldstick.jobs.serve.engine import Engine
    from goldstick.jobs.serve.prompts import Prompts, read_template

    Sampling(temperature=temperature, top_p=top_p, seed=seed or 0)  # refused before a model is loaded
    template = read_template(chat_template)
    use_processors(threads, input_bits)
    language_model = open_to_write(find_model(model), optimize=optimize)
    manner = Manner(max_tokens=max_new_tokens, temperature=temperature, top_p=top_p, seed=seed, system=system)
    with Engine(language_model) as engine, Prompts(language_model, engine.tokenizer_lock, template) as prompts:
        prompts.of_messages([{"role": "user", "content": ""}])  # a model that has no template is refused at once
        _talk(Conversation(engine, prompts, manner))


def _talk(conversation: Conversation) -> None:
    asked = sys.stdin is not None and sys.stdin.isatty()
    if asked:
        click.echo(_HELP)
    for line in _lines(asked):
        text = line.strip()
        if text == "/quit":
            return
        if text == "/reset":
            conversation.reset()
            click.echo("(forgotten)", err=True)
        elif text.startswith("/"):
            click.echo(f"There is no {text.split()[0][:40]}. {_HELP}", err=True)
        elif text:
            try:
                _answer(conversation, text)
            except GoldstickError as error:
                if not asked:
                    raise
                click.echo(f"Error: {error}", err=True)


def _lines(asked: bool) -> Iterator[str]:
    """What is said, line by line."""
    if not asked:
        yield from (require_text(line, "standard input") for line in standard_input())
        return
    import readline  # noqa: F401  # the line that is typed can be edited, and earlier ones come back

    while True:
        try:
            line = input("> ")
        except EOFError:
            click.echo()
            return
        try:
            yield require_text(line, "what was typed")
        except click.BadParameter as error:
            click.echo(f"Error: {error.format_message()}", err=True)


def _answer(conversation: Conversation, text: str) -> None:
    """Show an answer as it is written; Ctrl-C ends it and nothing else."""
    answer = conversation.answer(text)
    before = conversation.left_out
    try:
        with _interruptible():
            for part in answer:
                click.echo(_harmless(part.text), nl=False)
                sys.stdout.flush()
                if conversation.left_out > before:
                    before = conversation.left_out
                    click.echo(f"(the first {before} messages no longer fit)", err=True)
        click.echo()
    except KeyboardInterrupt:
        click.echo(" (stopped)")
    finally:
        answer.close()


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let every Ctrl-C raise, which ends a command else, and twice in a row not at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _harmless(text: str) -> str:
    """A model's text without the signs that move a terminal's cursor."""
    shown = (sign if sign.isprintable() or sign in "\n\t" else " " if sign.isspace() else "\ufffd" for sign in text)
    return "".join(shown)
