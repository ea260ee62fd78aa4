"""Exceptions of the project, all derived from ``RmqError``."""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# In URIs: the password before the @, and values of query parameters with secret names.
_SECRETS: Final = re.compile(
    r"(?<=://)([^/?#\s:@]*:)[^/?#\s@]+(?=@)|([?&][\w.-]*(?:secret|password|token|key)[\w.-]*=)[^&/#\s]+", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """Replace secrets in a text's URIs by ``***``: ``s3://KEY:***@bucket/store``."""
    return _SECRETS.sub(lambda match: f"{match.group(1) or match.group(2)}***", text) if "://" in text else text


_HARMLESS: Final = "\u200c\u200d"  # joiners of Persian and of emoji


def printable(text: str) -> str:
    r"""Make text of a store, a server or a path safe for a terminal and for a line of a log.

    Control characters, ends of lines and of paragraphs, marks that turn the direction of writing, and lone surrogates
    become escapes: ``\x1b``, ``\n``, ``\u202e``.
    """
    return text if text.isprintable() else "".join(map(_printable_character, text))


def _printable_character(character: str) -> str:
    if character.isprintable() or character in _HARMLESS or unicodedata.category(character) == "Zs":
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def one_line(text: str) -> str:
    """Make one printable line of a text; whitespace becomes single blanks."""
    return printable(" ".join(text.split()))


class RmqError(Exception):
    """Base of every error that the project raises on purpose: one clear line without secrets of URIs."""

    def __str__(self) -> str:
        return without_secrets(super().__str__())


@dataclass
class FormatError(RmqError):
    """Bytes that do not follow the format.

    Attributes:
        reason: what is wrong, in words.
        physical_offset: where it is, in bytes from the start of the log or file; None if unknown.
        path: the file; None for bytes in memory.
        expected: what the format demands there, if known.
        actual: what was found.
    """

    reason: str
    physical_offset: int | None = None  # of the fault, in bytes from the start of the log or file
    path: str | None = None
    expected: object = None  # value that the format demands
    actual: object = None

    def __str__(self) -> str:
        where = "" if self.path is None else f"{self.path}: "
        at = "" if self.physical_offset is None else f" at offset {self.physical_offset}"
        values = (("expected", self.expected), ("found", self.actual))
        comparison = ", ".join(f"{name} {value}" for name, value in values if value is not None)
        detail = f" ({comparison})" if comparison else ""
        return without_secrets(f"{where}{self.reason}{at}{detail}")


class TruncatedError(FormatError):
    """The bytes end too early."""


class MagicError(FormatError):
    """Not the magic number of a record."""


class LengthError(FormatError):
    """A length field out of bounds, or in disagreement with the lengths around it."""


class ChecksumError(FormatError):
    """A CRC that does not match its bytes."""


class DecodeError(FormatError):
    """Text, JSON or compressed bytes that do not decode."""


class StoreError(RmqError):
    """A store or file that is unusable for the request."""


class StoreNotFoundError(StoreError):
    """No such store, directory or file."""


class StoreLockedError(StoreError):
    """A running broker has the store's lock."""


class StoreLayoutError(StoreError):
    """A layout that rmq does not read, or not write; see ``rmq_formats.storage.layout_refusals``."""


class SpillError(StoreError):
    """An unreadable intermediate file of a job; the store may be sound."""


class StoreSizeError(StoreError):
    """File sizes that do not fit the store's layout, or each other."""


class ClusterError(RmqError):
    """A running cluster that cannot be reached, or that refuses a request."""


class UnreachableError(ClusterError):
    """A server of a cluster does not respond."""


class NoTopicError(ClusterError):
    """A topic without a route at the name servers."""


class OptionError(RmqError):
    """An option or argument that is unknown or has an unusable value."""


class NotAcceptedError(RmqError):
    """A change of queues that removes messages or lowers an end, without its acceptance.

    Attributes:
        names: of the queues, as ``--accept`` takes them.
    """

    def __init__(self, harm: str, names: tuple[str, ...]) -> None:
        super().__init__(harm)
        self.names = names

    def __str__(self) -> str:
        return f"{super().__str__()}. Nothing was changed. Look with --plan, and accept with {self._options()}"

    def with_command(self, arguments: Sequence[str]) -> str:
        """Return the error's line with the command that accepts the harm."""
        command = f"{shlex.join(arguments)} {self._options()}"
        return without_secrets(f"{super().__str__()}. Nothing was changed. Look with --plan; to accept, run: {command}")

    def _options(self) -> str:
        return " ".join(f"--accept {shlex.quote(name)}" for name in self.names)


@contextmanager
def os_errors_as_store_errors(place: str | Path) -> Iterator[None]:
    """Re-raise errors of the operating system, such as a full disk, as StoreError that names the place.

    Args:
        place: path or URI for errors that name no file.

    Raises:
        StoreError: instead of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(f"{error.filename or place}: {error.strerror or error}") from error
