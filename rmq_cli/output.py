"""Output of all commands: tables and progress bars for people, lines of JSON for programs.

Results go to stdout; progress, warnings and errors go to stderr, so that a pipe carries results only. rich is
loaded where a table or a bar is made: a command that serves makes none.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import msgspec

from rmq_formats import errors, html_text
from rmq_formats.errors import StoreError, one_line, without_secrets

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from rmq_offline.tasks.brokers_report import BrokersReport, Report
    from rmq_offline.tasks.runner import OnProgress, Progress

printable = errors.printable  # the commands' names for functions of rmq_formats
bytes_text, counted = html_text.bytes_text, html_text.counted
EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAILED, EXIT_INTERRUPTED = 0, 1, 2, 130

PROGRESS_AFTER_SECONDS: Final = 0.5  # shorter work needs no bar
BUFFER_BYTES: Final = 1 << 20
MAX_LINE_CHARACTERS: Final = 1000  # of an error: libraries may list every place that they looked at
_PIPE_WIDTH: Final = 10_000  # in a pipe no line is wrapped or cut
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HAVE_SIZES: Final = frozenset({"rmq verify", "rmq repair", "rmq rebuild", "rmq checkpoint"})

command_settings: dict[str, Any] = {}
"""A broker's settings that the running command was given: ``config`` and options of sizes."""


class _NamedStdout:
    """Stdout that names itself in write errors."""

    def __init__(self, stream: "TextIO") -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text. Raises StoreError."""
        with naming_stdout():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is buffered. Raises StoreError."""
        with naming_stdout():
            self._stream.flush()


def console() -> "Console":
    """Return the console of stdout: colour only on a terminal, lines of any length in a pipe, no control characters."""
    stream = sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _PIPE_WIDTH
    return _console_class()(
        file=cast("TextIO", _NamedStdout(stream)), width=width, highlight=False, emoji=False, markup=False
    )


@functools.cache
def _console_class() -> "type[Console]":
    from rich.console import Console  # noqa: PLC0415
    from rich.segment import Segment  # noqa: PLC0415

    class PrintableConsole(Console):
        """Console that escapes the control characters of all that it prints, but for ends of lines."""

        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)

    return PrintableConsole


@functools.cache
def _table_class() -> "type[Table]":
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    class PrintableTable(Table):
        """Table whose cells are each a line of printable text."""

        def add_row(self, *cells: Any, style: Any = None, end_section: bool = False) -> None:
            super().add_row(*map(_printable_cell, cells), style=style, end_section=end_section)

    def _printable_cell(cell: Any) -> Any:
        if isinstance(cell, str):
            return printable(cell)
        if isinstance(cell, Text) and not cell.plain.isprintable():
            return Text(printable(cell.plain), cell.style)
        return cell

    return PrintableTable


def table(*columns: str) -> "Table":
    """Build a table without frames. A column whose name begins with ``>`` is aligned to the right.

    Text that does not fit is folded, never cut: a topic's name may take a line and more.
    """
    from rich import box  # noqa: PLC0415

    new_table = _table_class()(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name in columns:
        right = name.startswith(">")
        new_table.add_column(
            printable(name.lstrip(">")), justify="right" if right else "left", overflow="fold", no_wrap=right
        )
    return new_table


def facts(*rows: "tuple[str, str | Text]") -> "Table":
    """Build a grid of names and values, one pair a line."""
    grid = _table_class().grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value)
    return grid


def json_line(value: Any) -> bytes:
    """Encode a value of dictionaries, lists, dataclasses and plain values as one line of JSON.

    A file's name that is not UTF-8 has lone surrogates, which become escapes, as in the jobs' reports.
    """
    try:
        return msgspec.json.encode(value) + b"\n"
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode() + b"\n"


def print_json(value: Any) -> None:
    """Print one line of JSON on stdout, see ``json_line``; the command goes on without a reader, to its exit code."""
    with ignoring_closed_pipe(), Lines() as lines:
        lines.write(json_line(value))


def warn(text: str) -> None:
    """Print one line on stderr; the text may have any characters."""
    line = one_line(without_secrets(text))
    if len(line) > MAX_LINE_CHARACTERS:
        line = f"{line[:MAX_LINE_CHARACTERS]} …"
    sys.stderr.write(f"rmq: {line}\n")
    sys.stderr.flush()


class Lines:
    """Writes lines to stdout in large pieces; leaving the context manager writes the rest.

    Raises BrokenPipeError if the reader has closed the pipe, and StoreError for another failure, such as a full disk.
    """

    def __init__(self) -> None:
        self._stream = sys.stdout.buffer
        self._pieces: list[bytes] = []
        self._held_bytes = 0

    def write(self, lines: bytes | memoryview) -> None:
        """Add one or several lines, with their ends. A memoryview's bytes are written or copied before this returns."""
        if len(lines) >= BUFFER_BYTES:
            self.flush()
            self._write(lines)
            return
        self._pieces.append(bytes(lines))
        self._held_bytes += len(lines)
        if self._held_bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write all buffered lines."""
        pieces, self._pieces, self._held_bytes = self._pieces, [], 0
        self._write(b"".join(pieces))

    def _write(self, data: bytes | memoryview) -> None:
        with naming_stdout():
            self._stream.write(data)
            self._stream.flush()

    def __enter__(self) -> "Lines":
        sys.stdout.flush()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or (issubclass(kind, Exception) and not issubclass(kind, BrokenPipeError)):
            self.flush()


@contextmanager
def naming_stdout() -> Iterator[None]:
    """Name stdout in an error of writing to it: the operating system does not. Raises StoreError."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StoreError(f"standard output: {error.strerror}") from error


def discard_stdout() -> None:
    """Write what is buffered for stdout, and what follows, nowhere: at exit Python would try again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def ignoring_closed_pipe() -> Iterator[None]:
    """Discard the output of the ``with`` block if the reader has closed the pipe."""
    try:
        yield
    except BrokenPipeError:
        discard_stdout()


Advance = Callable[[int], None]


@contextmanager
def progress(title: str, total: int, *, in_bytes: bool = True) -> Iterator[Advance]:
    """Show a progress bar on stderr while long work runs, if stderr is a terminal; yield its update function."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import progress as bars  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    amount = bars.DownloadColumn(binary_units=True) if in_bytes else bars.MofNCompleteColumn()
    bar = bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        amount,
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=total)
    begin = time.monotonic()

    def advance(done: int) -> None:
        if not bar.live.is_started and time.monotonic() - begin > PROGRESS_AFTER_SECONDS:
            bar.start()
        bar.update(task, completed=done)

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def progress_by_phase(titles: Mapping[str, str]) -> "Iterator[OnProgress]":
    """Show a progress bar for each phase of the work in turn; the phase ``scan`` counts in bytes."""
    with ExitStack() as bars:
        phase = ""
        advance: Advance = lambda _: None  # noqa: E731

        def on_progress(at: "Progress") -> None:
            nonlocal phase, advance
            if at.phase != phase:
                bars.close()
                phase = at.phase
                advance = bars.enter_context(progress(titles[phase], at.total, in_bytes=phase == "scan"))
            advance(at.done)

        yield on_progress


def show_by_broker(report: "BrokersReport[Report]", show: "Callable[[Report, Console], None]") -> None:
    """Print the report of each broker's store under its name, then the reasons of stores without a report."""
    from rich.text import Text  # noqa: PLC0415

    for store, store_report in report.reports:
        console().print(Text(printable(str(store.broker)), style="bold"))
        show(store_report, console())
    for store, reason in report.failed:
        console().print(f"{printable(str(store.broker))}: {printable(reason)}", style="red", markup=False)


def print_unlisted(console: "Console", count: int, listed: int, elsewhere: str) -> None:
    """Print the number of rows that a table left out, and the option that lists them; nothing without such rows."""
    if count > listed:
        console.print(f"… {count - listed:,} more; {elsewhere}")


def print_next(console: "Console", command: str, store: str, *options: str) -> None:
    """Print the next command on one line, to be copied, with the broker settings of the running command."""
    from rich.text import Text  # noqa: PLC0415

    text = " ".join([command, quote(printable(store)), *options, *_repeated_settings(command, options)])
    console.print(Text("next: ", style="dim").append(text, style="none"), soft_wrap=True)


def _repeated_settings(command: str, options: Sequence[str]) -> Iterator[str]:
    """Yield those broker settings of the running command that another command has, too."""
    if not command.startswith("rmq ") or "--what config" in options:
        return
    for name, value in command_settings.items():
        if name == "config" and not any("-c " in option for option in options):
            yield f"-c {quote(printable(str(value)))}"
        elif name != "config" and command in _HAVE_SIZES:
            yield f"--{name.replace('_', '-')} {quote(printable(str(value)))}"


def time_text(time_ms: int | None) -> str:
    """Format a time: ``2026-11-21T11:05:17.922Z``; the milliseconds themselves where no calendar has them."""
    if time_ms is None:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03d}Z"


def second_text(time_ms: int) -> str:
    """Format a time as ``time_text`` without the fraction, for times with a resolution of one second."""
    text = time_text(time_ms)
    return f"{text[:-5]}Z" if text.endswith("Z") else text
