"""Formatter of log lines, in which requests cannot begin a line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TypeAlias

from rmq_formats.errors import printable

_ExcInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class PrintableFormatter(logging.Formatter):
    """Formats a log record as one printable line; the lines of a traceback begin with two blanks.

    Requests, names and remarks of others are in log lines: an end of a line in them would let others write lines.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 # the base class names it
        """Format the line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802
        """Format the traceback of an exception."""
        return _indent(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """Format a stack."""
        return _indent(super().formatStack(stack_info))


def _indent(text: str) -> str:
    return "\n".join(f"  {printable(line)}" for line in text.splitlines())


@contextmanager
def log_on_stderr(name: str) -> Iterator[None]:
    """Log an export's progress to stderr, one line per batch, beside the warnings."""
    handler, log = logging.StreamHandler(), logging.getLogger("rmq_lakehouse")
    handler.setFormatter(PrintableFormatter(f"{name}: %(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
