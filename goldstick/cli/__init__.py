"""The command line. Commands import what they need when they run, so that ``--help`` answers at once."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from typing import Any, NoReturn

import click

from goldstick.cli.bench import bench
from goldstick.cli.chat import chat
from goldstick.cli.compare import compare
from goldstick.cli.doctor import doctor
from goldstick.cli.environment import check_environment
from goldstick.cli.evaluate import evaluate
from goldstick.cli.export import export
from goldstick.cli.generate import generate
from goldstick.cli.importance import importance
from goldstick.cli.inspect import inspect, report, verify
from goldstick.cli.option_names import options_of
from goldstick.cli.plan import plan
from goldstick.cli.quantize import quantize
from goldstick.cli.recipes import recipes
from goldstick.cli.search import search
from goldstick.cli.sensitivity import sensitivity
from goldstick.cli.serve import serve
from goldstick.cli.several import refuse_copies
from goldstick.cli.signals import orderly_signals
from goldstick.cli.streams import prepare_streams
from goldstick.core.collector import end_without_collection
from goldstick.core.notices import GoldstickWarning
from goldstick.errors import GoldstickError, OutputError, RankError, ShortageError, SourceError

_FORMAT = warnings.formatwarning
_ENDED_BY_A_SIGNAL = (128 + signal.SIGTERM, 128 + signal.SIGHUP)
#: What a shell makes of a program that is ended by SIGPIPE.
_NOBODY_READS = 128 + signal.SIGPIPE


class _Group(click.Group):
    """A group whose errors are one readable paragraph, and a traceback only with ``--debug``."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        prepare_streams()
        kwargs.setdefault("obj", not args and "args" not in kwargs)  # whether a shell runs it
        if kwargs["obj"]:
            end_without_collection()
        with orderly_signals():
            try:
                return super().main(*args, **kwargs)
            except OutputError as error:  # of standard output, while help or a usage error is shown
                _leave_with(error)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except GoldstickError as error:
            if ctx.params.get("debug"):
                raise
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            if isinstance(error, ShortageError) and command is not None:
                error = _with_notes(error.named(options_of(command)), _notes(error))
            _leave_with(error)
        except (KeyboardInterrupt, click.Abort) as error:
            click.echo("Interrupted; " + (" ".join(_notes(error)) or "nothing new was left behind."), err=True)
            sys.exit(130)
        except SystemExit as error:
            if error.code in _ENDED_BY_A_SIGNAL:
                click.echo("Terminated; " + (" ".join(_notes(error)) or "nothing new was left behind."), err=True)
            raise
        except (click.ClickException, click.exceptions.Exit):
            raise
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            if isinstance(error, OSError) and error.strerror is not None:
                file = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
                _leave_with(SourceError(f"{file}{error.strerror}. If something was changed during the run, run again."))
            click.echo(
                _printable(
                    "Error: goldstick met something it did not expect: "
                    + _sentences(
                        f"{type(error).__name__}: {error}".strip(),
                        *_notes(error),
                        "Run again with 'goldstick --debug …' for the traceback, and please report it.",
                    )
                ),
                err=True,
            )
            sys.exit(1)


def _leave_with(error: GoldstickError) -> NoReturn:
    if isinstance(error.__cause__, BrokenPipeError):  # of standard output: whoever read it has seen enough
        sys.exit(_NOBODY_READS)
    number = _joined_rank()
    if isinstance(error, RankError) and number:
        sys.exit(error.exit_code)  # what is to be said, the first says
    place = f" on rank {number}" if number else ""
    click.echo(_printable(f"Error{place}: {_sentences(str(error), *_notes(error))}"), err=True)
    sys.exit(error.exit_code)


def _sentences(*parts: str) -> str:
    """Texts one behind the other, each but the last with an end."""
    *most, last = parts
    return " ".join([*(part if part[-1:] in ".!?:" else f"{part}." for part in most), last])


def _joined_rank() -> int:
    """The rank of this process among those it has joined; 0 where it is alone, whatever its variables say."""
    distributed: Any = sys.modules.get("torch.distributed")
    return distributed.get_rank() if distributed is not None and distributed.is_initialized() else 0


def _as_a_note(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Goldstick's own warning in a line, and others as Python shows them."""
    if issubclass(category, GoldstickWarning):
        return f"note: {message}\n"
    return _FORMAT(message, category, filename, lineno, line)


def _printable(text: str) -> str:
    """Text of which a stranger's names are a part, without the signs that move a terminal's cursor."""
    return "".join(sign if sign.isprintable() else " " if sign.isspace() else repr(sign)[1:-1] for sign in text)


def _with_notes(error: GoldstickError, notes: list[str]) -> GoldstickError:
    for note in notes:
        error.add_note(note)
    return error


def _notes(error: BaseException) -> list[str]:
    """What was said of an error on its way up."""
    return getattr(error, "__notes__", [])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="goldstick")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.pass_context
def main(context: click.Context, debug: bool) -> None:
    """Compress PyTorch models after training, and prove the result.

    MODEL is a local directory in the hub's layout, a hub id (owner/name), or 'reference', the small model that comes
    with goldstick. Exit codes: 0 done, 2 usage or recipe error, 1 any other failure; 130 interrupted, 143 terminated,
    129 the terminal was closed, 141 nobody reads what is printed.

    Shell completion: eval "$(_GOLDSTICK_COMPLETE=bash_source goldstick)" (or zsh_source, fish_source).
    """
    check_environment()
    refuse_copies(context.invoked_subcommand)
    warnings.formatwarning = _as_a_note
    # Threads that spin while they wait cost whole time slices where the cores are shared.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


for command in (
    quantize, plan, export, evaluate, compare, sensitivity, search, importance, inspect, verify, doctor, report,
    generate, chat, serve, bench, recipes,
):  # fmt: skip
    main.add_command(command)
