"""``goldstick generate``."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from goldstick.cli.processors import INPUT_BITS, THREADS, use_processors
from goldstick.cli.streams import says_utf8
from goldstick.cli.writing import (
    CHAT_TEMPLATE,
    OPTIMIZE,
    open_to_write,
    require_text,
    sampling_options,
    standard_input,
)

_NEW_TOKENS = 64
_STDIN = "-"


@click.command()
@click.argument("model")
@click.option(
    "--prompt",
    "texts",
    multiple=True,
    metavar="TEXT",
    help="The text to go on from, several times for several; '-', or none, is read from standard input.",
)
@click.option(
    "--prompts",
    "file",
    type=click.File(encoding="utf-8", errors="surrogateescape"),
    metavar="FILE",
    help="A file with a prompt on each line; '-' is standard input.",
)
@click.option("--chat", is_flag=True, help="Prompts are what a user says, written by the chat template.")
@click.option("--system", metavar="TEXT", help="What the system says before, with --chat.")
@CHAT_TEMPLATE
@click.option("--max-new-tokens", type=click.IntRange(1), help=f"{_NEW_TOKENS}, or half of a shorter context.")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text. May be given several times.")
@sampling_options(0.0, 0)
@OPTIMIZE
@click.option("--threads", type=THREADS, help="CPU threads.")
@INPUT_BITS
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each prompt, one a line.")
def generate(
    model: str,
    texts: tuple[str, ...],
    file: Iterable[str] | None,
    chat: bool,
    system: str | None,
    chat_template: Path | None,
    max_new_tokens: int | None,
    stop: tuple[str, ...],
    temperature: float,
    top_p: float,
    seed: int,
    optimize: bool,
    threads: int | None,
    input_bits: str,
    as_json: bool,
) -> None:
    """Let MODEL, float, compressed or a GGUF file, go on from prompts (greedily, or sampled).

    What is printed is the prompt and what follows; with --chat the answer alone. Several prompts are worked on at a
    time, and each becomes what it becomes alone; between two of them an empty line is printed.
    """
    if "" in stop:
        raise click.BadParameter("an empty text would end every answer at once; leave it out", param_hint="--stop")
    prompts = _prompts(texts, file)
    for option, value in (("--system", system), ("--chat-template", chat_template)):
        if value is not None and not chat:
            raise click.UsageError(f"{option} is for --chat")
    from goldstick.hf.names import quiet_libraries

    quiet_libraries()
    from goldstick.evaluation.sampling import Sampling
    from goldstick.jobs.load.find_model import find_model
    from goldstick.jobs.serve.engine import Engine
    from goldstick.jobs.serve.prompts import Prompts, read_template
    from goldstick.jobs.serve.sequence import Question

    sampling = Sampling(temperature=temperature, top_p=top_p, seed=seed)
    template = read_template(chat_template)
    use_processors(threads, input_bits)
    language_model = open_to_write(find_model(model), optimize=optimize)
    if max_new_tokens is None:
        max_new_tokens = min(_NEW_TOKENS, max(1, language_model.context_length // 2))
    room = language_model.room_for(max_new_tokens)
    with Engine(language_model) as engine, Prompts(language_model, engine.tokenizer_lock, template) as words:
        before = [] if system is None else [{"role": "system", "content": system}]
        if chat:
            ids = [words.of_messages([*before, {"role": "user", "content": one}]) for one in prompts]
        else:
            ids = [_end_of(words.of_text(one), room) for one in prompts]
        questions = [
            Question(prompt=tuple(one), max_tokens=max_new_tokens, sampling=sampling, stop=stop) for one in ids
        ]
        if len(prompts) == 1 and not as_json:
            click.echo("" if chat else prompts[0], nl=False)
            for part in engine.stream(questions[0]):
                click.echo(part.text, nl=False)
            click.echo()
            return
        for number, (prompt, parts) in enumerate(zip(prompts, engine.parts(questions), strict=True)):
            text = "".join(part.text for part in parts)
            if as_json:
                row = {"prompt": prompt, "text": text, "ending": parts[-1].ending}
                click.echo(json.dumps(row, ensure_ascii=not says_utf8()))
            else:
                click.echo(("\n" if number else "") + ("" if chat else prompt) + text)


def _end_of(prompt: list[int], room: int) -> list[int]:
    """The last tokens of a prompt, as many as there is room for; that there are more is said."""
    if len(prompt) > room:
        click.echo(f"note: a prompt has {len(prompt)} tokens, and the context room for its last {room} alone", err=True)
    return prompt[-room:]


def _prompts(texts: tuple[str, ...], file: Iterable[str] | None) -> list[str]:
    """What was given on the command line, in a file, or on standard input."""
    found = [require_text(_typed() if text == _STDIN else text, "--prompt") for text in texts]
    if file is not None:
        found += [require_text(line.rstrip("\r\n"), "--prompts") for line in file]
        if not found:
            raise click.BadParameter("it holds no line", param_hint="--prompts")
    if not found:
        if sys.stdin is None or sys.stdin.isatty():
            raise click.UsageError("give --prompt TEXT, or a prompt on standard input")
        found = [require_text(_typed(), "standard input")]
    return found


def _typed() -> str:
    """All of standard input but the end of its last line."""
    return standard_input().read().removesuffix("\n")
