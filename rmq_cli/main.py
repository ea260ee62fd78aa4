"""The entry point of ``rmq``: its commands, and the boundary where errors become one line and an exit code.

A command is a function in a module of its own, listed in ``COMMANDS``. It returns its exit code, or None
for 0, and raises ``RmqError``. Slow imports (numba, pyarrow) are in its body, so that
``rmq --help`` and a wrong argument are answered at once.
"""

import os
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from rmq_cli import (
    checkpoint,
    consume,
    convert,
    export,
    generate,
    message_id,
    offsets,
    output,
    produce,
    query,
    rebuild,
    repair,
    verify,
)
from rmq_cli.admin import app as admin
from rmq_cli.commands import CommandGroup, RmqCommand
from rmq_cli.doctor import command as doctor
from rmq_cli.dump import command as dump
from rmq_cli.inspect import command as inspect
from rmq_cli.packaged import JOBS, JobCommand, job_command, notebooks
from rmq_cli.servers import broker, namesrv, proxy, standalone
from rmq_formats.errors import NotAcceptedError, RmqError

COMMANDS: Final[dict[str, Callable[..., int | None]]] = {
    "inspect": inspect.inspect,
    "dump": dump.dump,
    "query": query.query,
    "decodeMessageId": message_id.decode,
    "generate": generate.generate,
    "rebuild": rebuild.rebuild,
    "verify": verify.verify,
    "repair": repair.repair,
    "convert": convert.convert,
    "offsets": offsets.offsets,
    "checkpoint": checkpoint.checkpoint,
    "export": export.export,
    **{name: job_command(name) for name in JOBS},
    "notebooks": notebooks,
    "namesrv": namesrv.namesrv,
    "produce": produce.produce,
    "consume": consume.consume,
    "broker": broker.broker,
    "standalone": standalone.standalone,
    "proxy": proxy.proxy,
    "doctor": doctor.doctor,
}

PARSE_THEMSELVES: Final = frozenset({"export", *JOBS})

# Click's UsageError and ClickException. Typer has a click of its own since 0.26, so they have no one home.
_USAGE_ERROR: type[Exception]
_CLICK_ERROR: type[Exception]
_USAGE_ERROR, _CLICK_ERROR = typer.BadParameter.__mro__[1:3]


class RmqGroup(CommandGroup):
    """The command ``rmq`` itself: runs a subcommand, and turns its errors into one line and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run the command line, and exit with the command's code."""
        _prepare_streams()
        extra["standalone_mode"] = False
        try:
            code = super().main(*args, **extra)
        except _CLICK_ERROR as error:
            output.warn(_usage_text(error))
            code = output.EXIT_FAILED
        try:
            sys.stdout.flush()
        except OSError:  # which was told already; Python would try again, and exit with 120
            output.discard_stdout()
        sys.exit(code or output.EXIT_CLEAN)

    def invoke(self, ctx: Any) -> int | None:
        """Run the command and print its error; returns the exit code."""
        try:
            code: int | None = super().invoke(ctx)
            with output.naming_stdout(), output.ignoring_closed_pipe():
                sys.stdout.flush()
            return code
        except (typer.Exit, typer.Abort, _CLICK_ERROR):
            raise
        except KeyboardInterrupt:
            output.warn("interrupted")
            return output.EXIT_INTERRUPTED
        except BrokenPipeError:
            output.discard_stdout()  # the reader has what it wanted, as head does
            return output.EXIT_CLEAN
        except NotAcceptedError as error:
            output.warn(error.with_command(["rmq", *sys.argv[1:]]))
        except RmqError as error:
            output.warn(str(error))
        except OSError as error:
            output.warn(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error))
        except Exception as error:
            if os.environ.get("RMQ_TRACEBACK"):
                raise
            output.warn(f"unexpected {type(error).__name__}: {error} (RMQ_TRACEBACK=1 shows where)")
        return output.EXIT_FAILED


def _prepare_streams() -> None:
    """Make stdout and stderr accept any text, in any encoding, even if a stream was closed."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 # it is the process's own
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _usage_text(error: Any) -> str:
    text = str(error.format_message())
    if not isinstance(error, _USAGE_ERROR):
        return text
    command = getattr(getattr(error, "ctx", None), "command_path", "rmq")
    return f"{text.rstrip('.')} (see {command} --help)"


app = typer.Typer(
    name="rmq",
    cls=RmqGroup,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes would cut long options at 80 columns
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, _command in COMMANDS.items():
    app.command(_name, cls=JobCommand if _name in PARSE_THEMSELVES else RmqCommand)(_command)
app.add_typer(admin.app, name="admin")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from rmq_formats import __version__  # noqa: PLC0415 # it loads importlib.metadata, email and more

        typer.echo(f"rmq {__version__}")
        raise typer.Exit


@app.callback()
def rmq(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Apache RocketMQ stores, broker and clients, and offline tools for store files.

    Exit codes: 0 done and clean, 1 findings or partial, 2 could not run, 130 interrupted.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process, and exit."""
    # numpy's BLAS, which nothing here uses, starts a busily waiting thread for each processor.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    app(arguments, prog_name="rmq")
