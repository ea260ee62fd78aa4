"""Codec of a DLedger CommitLog: entry headers, index units, and the text files ``checkpoint`` and ``currterm``.

::

    entry   0     4    8     16   24  32      36        40       44         48
            magic size index term pos channel chain_crc body_crc body_bytes body: one CommitLog record
    index   0     4   12   16    24
            magic pos size index term

Size is 48 + the body's; pos is where the entry stands in the log; DLedger never computes the two CRCs. What is left of
a file is filled from a word -1 on, with the number of bytes left in the next word. Source: ``DLedgerEntryCoder``,
``MmapFileList``, ``DLedgerMmapFileStore``, of the DLedger 0.3.1.2 that a broker 5.3.3 has. docs/formats/dledger.md
"""

from dataclasses import astuple, dataclass
from struct import Struct
from typing import Final

import numpy as np

from rmq_formats.errors import DecodeError

ENTRY_MAGIC: Final = 1
ENTRY_HEAD_BYTES: Final = 48
FILE_END_MAGIC: Final = -1
FILE_END_BYTES: Final = 8  # each file has room for them
INDEX_UNIT_BYTES: Final = 32
INDEX_FILE_BYTES: Final = 5 * 1024 * 1024 * INDEX_UNIT_BYTES  # no setting of a broker changes it

ENTRY_SIZE_AT: Final = 4
ENTRY_INDEX_AT: Final = 8
ENTRY_TERM_AT: Final = 16
ENTRY_POS_AT: Final = 24
ENTRY_CHANNEL_AT: Final = 32
ENTRY_CHAIN_CRC_AT: Final = 36
ENTRY_BODY_CRC_AT: Final = 40
ENTRY_BODY_BYTES_AT: Final = 44

_HEAD: Final = Struct(">iiqqqiiii")
INDEX_UNIT_DTYPE: Final = np.dtype(
    [("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")]
)
UNIT_POS_AT: Final = 4
UNIT_SIZE_AT: Final = 12
UNIT_INDEX_AT: Final = 16
UNIT_TERM_AT: Final = 24
assert _HEAD.size == ENTRY_HEAD_BYTES
assert INDEX_UNIT_DTYPE.itemsize == INDEX_UNIT_BYTES


@dataclass(frozen=True, slots=True)
class EntryHead:
    """The header of an entry.

    Attributes:
        size: of the entry with this header, in bytes.
        index: of the entry, from 0 on.
        term: in which a leader appended it.
        pos: its place in the log, in bytes: the record behind it has the physical offset pos + 48.
        channel, chain_crc, body_crc: 0.
    """

    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_bytes: int

    @classmethod
    def decode(cls, buffer: bytes | memoryview, at: int = 0) -> "EntryHead":
        """Decode a header; there must be 48 bytes."""
        return cls(*_HEAD.unpack_from(buffer, at))

    def encode(self) -> bytes:
        """Encode the 48 bytes."""
        return _HEAD.pack(*astuple(self))


def begins_with_entry(head: bytes) -> bool:
    """Return whether a file begins with an entry: a header of 48 bytes before each record."""
    if len(head) < ENTRY_HEAD_BYTES:
        return False
    entry = EntryHead.decode(head)
    is_sized = entry.size == ENTRY_HEAD_BYTES + entry.body_bytes and entry.body_bytes > 0
    return entry.magic == ENTRY_MAGIC and is_sized and entry.index >= 0 and entry.term >= 0 and entry.channel == 0


def begins_with_index(head: bytes) -> bool:
    """Return whether a file begins with index units, one for each entry."""
    if len(head) < 2 * INDEX_UNIT_BYTES:
        return False
    first, after = np.frombuffer(head, dtype=INDEX_UNIT_DTYPE, count=2)
    is_unit = first["magic"] == ENTRY_MAGIC and min(first["pos"], first["index"]) >= 0
    if not is_unit or first["size"] <= ENTRY_HEAD_BYTES:
        return False
    follows = after["pos"] >= first["pos"] + first["size"] and after["index"] == first["index"] + 1
    return not any(after.tolist()) or bool(after["magic"] == ENTRY_MAGIC and follows)


def properties(text: str) -> dict[str, str]:
    """Read ``checkpoint`` or ``currterm``: lines ``name=value``. Raises DecodeError for a line of another form."""
    settings = {}
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        if not separator:
            raise DecodeError(f"no line of a properties file: {line!r}")
        settings[name.strip()] = value.strip()
    return settings
