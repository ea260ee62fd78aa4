"""Logging of the server commands to stderr: one line a record, as text or as JSON."""

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import msgspec
import typer

from rmq_formats.tasks.log_format import PrintableFormatter

_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


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
