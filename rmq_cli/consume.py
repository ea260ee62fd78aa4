"""``rmq consume``: prints the messages of a topic, one a line."""

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_cli import output
from rmq_cli.access import with_access
from rmq_cli.arguments import parse_time
from rmq_cli.produce import DEFAULT_NAMESRV, Namesrv
from rmq_formats.errors import OptionError, RmqError

if TYPE_CHECKING:
    from rmq_core.client import ReceivedMessage, StartPosition
    from rmq_core.client.access import Access

_READER_GROUP: Final = "CONSOLE_CONSUMER"
_POLL_S: Final = 0.2
_BATCH: Final = 32


@dataclass(frozen=True, slots=True)
class _Subscription:
    """Topic, filter and start position of a read."""

    namesrv: str
    access: "Access"
    topic: str
    tags: str
    sql: str | None
    start: "StartPosition"
    time_ms: int | None


@with_access
def consume(
    access: "Access",
    topic: Annotated[str, typer.Option(metavar="T", help="The topic.")],
    namesrv: Namesrv = DEFAULT_NAMESRV,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="G",
            help="Consume as a member of this group, and commit what is printed. [default: read all queues, commit "
            "nothing]",
            show_default=False,
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="first|last|TIME",
            help="Where to start; for a group, where it has no offset. TIME as in query.",
        ),
    ] = "last",
    tags: Annotated[str, typer.Option(metavar="TAGS", help="Tags, separated by ||.")] = "*",
    sql: Annotated[
        str | None, typer.Option(metavar="SQL", help="An SQL92 expression over properties; the broker must allow it.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Stop when no message arrived for this long.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line; else the body.")] = False,
) -> int:
    """Print a topic's messages. Runs until Ctrl-C, --limit or --timeout."""
    position, time_ms = _start(start)
    from rmq_core.client.json_lines import line_of_message  # noqa: PLC0415 # --help does not need it
    from rmq_core.client.pull.request import subscription  # noqa: PLC0415
    from rmq_core.remoting.loop import run  # noqa: PLC0415

    subscription(topic, tags, sql=sql)  # a bad subscription fails before any request
    body_line = _printable_line if sys.stdout.isatty() else _body_line
    printing = _Printing(line_of_message if as_json else body_line, limit, timeout)
    source = _Subscription(namesrv, access, topic, tags, sql, position, time_ms)
    run(_read(printing, source) if group is None else _join(printing, source, group))
    return output.EXIT_CLEAN


def _start(text: str) -> "tuple[StartPosition, int | None]":
    from rmq_core.client import StartPosition  # noqa: PLC0415

    if text in {"first", "last"}:
        return StartPosition[text.upper()], None
    try:
        moment = parse_time(text)
    except OptionError:
        raise OptionError(f"--from {text}: first, last, or a time such as 2026-07-31T12:00:00+08:00") from None
    if isinstance(moment, datetime):
        moment = int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return StartPosition.TIMESTAMP, moment


def _body_line(message: "ReceivedMessage") -> bytes:
    return message.body + b"\n"


def _printable_line(message: "ReceivedMessage") -> bytes:
    """Return a body for a terminal: one line, without control characters."""
    text = message.body.decode("utf-8", "backslashreplace")
    return output.printable(text.expandtabs()).encode() + b"\n"


class _Printing:
    """Printer of messages that ends at the limit, at the timeout or at a signal."""

    def __init__(self, line: "Callable[[ReceivedMessage], bytes]", limit: int | None, timeout_s: float | None) -> None:
        self.left = limit
        self._line = line
        self._timeout_s = timeout_s
        self._last_s = time.monotonic()
        self._is_interrupted = False
        self._error: Exception | None = None

    @property
    def is_done(self) -> bool:
        if self._error is not None:
            raise self._error
        return self._is_interrupted or self.left == 0 or self.is_late

    @property
    def is_late(self) -> bool:
        return self._timeout_s is not None and time.monotonic() - self._last_s > self._timeout_s

    def end_on_signals(self) -> None:
        """Stop on SIGINT and SIGTERM in order, so that printed messages are committed."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        self._is_interrupted = True

    def write(self, messages: "list[ReceivedMessage]") -> None:
        """Print messages, at most as many as are left."""
        if not messages:
            return
        self._last_s = time.monotonic()
        with output.Lines() as lines:
            for message in messages:
                lines.write(self._line(message))
        if self.left is not None:
            self.left -= len(messages)

    async def write_or_stop(self, messages: "list[ReceivedMessage]") -> None:
        """Print messages; those that cannot be printed, or exceed the limit, are not acknowledged."""
        if self.left != 0 and self._error is None:
            try:
                self.write(messages)
                return
            except (OSError, RmqError) as error:
                self._error = error
        await asyncio.Event().wait()


async def _read(printing: _Printing, source: _Subscription) -> None:
    """Read all queues of the topic."""
    from rmq_core.client import PullConsumer, PullOptions, StartPosition  # noqa: PLC0415

    printing.end_on_signals()
    options = PullOptions(auto_commit=False, start=source.start, tls=source.access.tls)
    async with PullConsumer(source.namesrv, _READER_GROUP, options, credentials=source.access.credentials) as consumer:
        consumer.assign(await consumer.queues(source.topic), source.tags, sql=source.sql)
        if source.start is StartPosition.FIRST:
            await consumer.seek_to_begin()
        elif source.time_ms is None:
            await consumer.seek_to_end()
        else:
            await consumer.seek_to_time(source.time_ms)
        while not printing.is_done:
            printing.write(await consumer.poll(_POLL_S, min(_BATCH, printing.left or _BATCH)))
        if printing.is_late:  # a broker that does not answer may have more messages
            for queue in consumer.assignment:
                await consumer.offsets.max(queue)


async def _join(printing: _Printing, source: _Subscription, group: str) -> None:
    """Consume as a member of a group."""
    from rmq_core.client import PullConsumer, PullOptions, PushConsumer, PushOptions  # noqa: PLC0415

    printing.end_on_signals()
    credentials = source.access.credentials
    options = PushOptions(
        start=source.start,
        start_timestamp_ms=source.time_ms,
        concurrency=1,
        consume_batch_size=1 if printing.left is not None else _BATCH,
        close_timeout_s=0.0,
        tls=source.access.tls,
    )
    consumer = PushConsumer(source.namesrv, group, printing.write_or_stop, options, credentials=credentials)
    consumer.subscribe(source.topic, source.tags, sql=source.sql)
    reading = PullOptions(auto_commit=False, tls=source.access.tls)
    async with PullConsumer(source.namesrv, _READER_GROUP, reading, credentials=credentials) as reader:
        await reader.queues(source.topic)  # a member of a group would wait for a topic that nobody knows
    async with consumer:
        while not printing.is_done:
            await asyncio.sleep(_POLL_S)
