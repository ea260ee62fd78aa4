"""Exceptions of the project, all derived from ``RmqError``.

::

    RmqError                      everything raised on purpose; its text is one clear line
    ├── FormatError               bytes that are not what the format says
    │   ├── TruncatedError        the bytes end too early
    │   ├── MagicError            not a record's magic number
    │   ├── LengthError           a length field outside its bounds, or that disagrees with another
    │   ├── ChecksumError         a CRC that does not match
    │   └── DecodeError           text, JSON or compressed bytes that do not decode
    ├── StoreError                a store or file that cannot be used as asked
    │   ├── StoreNotFoundError    no such directory or file
    │   ├── StoreLockedError      a running broker holds the store's lock
    │   ├── StoreLayoutError      a layout of a store that rmq would get wrong
    │   ├── SpillError            an unreadable intermediate file of a job
    │   └── StoreSizeError        file sizes that do not fit the layout or each other
    ├── ClusterError              a running cluster that cannot be reached, or that refuses
    ├── NotAcceptedError          a change that takes messages from consumers, and that nobody has accepted
    └── OptionError               an option or argument that is unknown or has a bad value
"""

import re
import shlex
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# In URIs: what follows the user's name before the @, and values of queries whose names say that they are secret.
_SECRETS: Final = re.compile(
    r"(?<=://)([^/?#\s:@]*:)[^/?#\s@]+(?=@)|([?&][\w.-]*(?:secret|password|token|key)[\w.-]*=)[^&/#\s]+", re.IGNORECASE
)


def without_secrets(text: str) -> str:
    """Put ``***`` in the place of secrets in a text's URIs, so that it may be shown: ``s3://KEY:***@bucket/store``."""
    return _SECRETS.sub(lambda found: f"{found.group(1) or found.group(2)}***", text) if "://" in text else text


_HARMLESS: Final = "\u200c\u200d"  # joiners of Persian and of emoji
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""Make text of a store, a server or a path safe for a terminal and for a line of a log.

    Control characters, ends of lines and of paragraphs, marks that turn the direction of writing, and lone surrogates
    become escapes: ``\x1b``, ``\n``, ``\u202e``.
    """
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() or _is_harmless(character) else _escape(character) for character in text
    )


def _is_harmless(character: str) -> bool:
    return character in _HARMLESS or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    code = ord(character)
    escape = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return _SHORT.get(character, escape)


def one_line(text: str) -> str:
    """Make one printable line of a text: runs of blanks and ends of lines become a blank."""
    return printable(" ".join(text.split()))


class RmqError(Exception):
    """Base of every error that the project raises on purpose. Its text has no secrets of URIs."""

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
    physical_offset: int | None = None
    path: str | None = None
    expected: object = None
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
        """Return the error's line with the command that accepts the harm: the one that was run, and the names."""
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
