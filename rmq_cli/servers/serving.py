"""Helpers of the server commands: listen addresses, log lines on stderr as text or JSON, and the run until a signal."""

import asyncio
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from rmq_formats.errors import OptionError
from rmq_offline.tasks.log_format import PrintableFormatter

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Parse host and port of an option's ``HOST:PORT``. Raises OptionError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise OptionError(f"{option}: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_flags(option: str, text: str | None) -> dict[str, object]:
    """Return the option as settings of a server; empty if the option is absent."""
    if text is None:
        return {}
    host, port = parse_address(option, text)
    return {"bind_address": host, "listen_port": port}


def log_ignored_keys(log: logging.Logger, file: Path | None, keys: list[str]) -> None:
    """Log the keys of a settings file that have no effect, if there are any."""
    if keys:
        log.info("%(file)s: these keys have no effect here: %(keys)s", {"file": file, "keys": ", ".join(keys)})


async def serve_until_stopped(
    server: AbstractAsyncContextManager[object], started: Callable[[], None] = lambda: None
) -> None:
    """Run a server until SIGINT, SIGTERM or SIGHUP, which a closing terminal sends; call ``started`` once it runs."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # which nohup sets
            loop.add_signal_handler(number, stop.set)
    async with server:
        started()
        await stop.wait()


class LogFormat(StrEnum):
    """The format of a log line."""

    TEXT = "text"
    JSON = "json"


LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Text for people, or one JSON object a line.")]


class JsonFormatter(logging.Formatter):
    """Formats a log record as a JSON object: ``ts`` (UTC, ms), ``level``, ``logger``, ``message``, its arguments.

    ``log.info("broker %(broker)s listens", {"broker": name})`` has the field ``broker``. An exception is
    ``exception``, with its stack.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a log record."""
        named = record.args if isinstance(record.args, Mapping) else {}
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "ts": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= {name: _plain(value) for name, value in named.items() if name not in line}
        return msgspec.json.encode(line).decode()


def _plain(value: object) -> object:
    """Return a value that JSON has a form for; anything else, an error or a path, becomes its text."""
    return value if value is None or isinstance(value, str | int | float) else str(value)


def log_to_stderr(log_format: LogFormat) -> None:
    """Set up logging to stderr, one line a record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else PrintableFormatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
