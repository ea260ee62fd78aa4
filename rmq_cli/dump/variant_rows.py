"""Rows of what other layouts have for queues and files: units in RocksDB, DLedger's own index; for ``rmq dump``.

Times are milliseconds, as everywhere in ``--json``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from rmq_cli.dump.rows import ReportFault
from rmq_cli.store_path import ClassifiedPath, entry_index_files
from rmq_formats.codecs.variants.dledger import ENTRY_HEAD_BYTES, ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.errors import FormatError
from rmq_formats.read.variants.rocksdb_queues import opened_queues
from rmq_formats.storage.segments import opened, read_range

_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class StoredUnitRow:
    """One unit of a ConsumeQueue in RocksDB."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
    store_timestamp: int


@dataclass(frozen=True, slots=True)
class EntryIndexRow:
    """One unit of a DLedger CommitLog's index; the physical offset is that of the entry's record."""

    index: int
    term: int
    pos: int
    size: int
    physical_offset: int


def stored_units(
    place: ClassifiedPath, topic: str | None, begin: int, report_fault: ReportFault
) -> Iterator[StoredUnitRow]:
    """Yield the units of a ConsumeQueue in RocksDB, each queue from a queue offset on.

    Args:
        report_fault: takes the line for damage, after which nothing is read.
    """
    try:
        with opened_queues(place.storage, place.path) as database:
            for name, queue_id in database.queues(topic):
                for offsets, units in database.units(name, queue_id, begin):
                    for offset, row in zip(offsets.tolist(), units.tolist(), strict=True):
                        yield StoredUnitRow(name, queue_id, offset, *row)
    except FormatError as error:
        report_fault(str(error))


def entry_index(
    place: ClassifiedPath, _topic: str | None, begin: int, report_fault: ReportFault
) -> Iterator[EntryIndexRow]:
    """Yield the units of a DLedger CommitLog's index, from an entry's index on; see ``stored_units``."""
    for segment in entry_index_files(place):
        first = segment.start_offset // INDEX_UNIT_BYTES
        with opened(place.storage, segment.path) as file:
            count = -(-file.data_end() // INDEX_UNIT_BYTES)
            for number in range(max(0, begin - first), count, _ROWS_AT_ONCE):
                rows = min(_ROWS_AT_ONCE, count - number)
                data = read_range(file, number * INDEX_UNIT_BYTES, rows * INDEX_UNIT_BYTES)
                padded = data + bytes(-len(data) % INDEX_UNIT_BYTES)
                units = np.frombuffer(padded, dtype=INDEX_UNIT_DTYPE).tolist()
                for at, (magic, pos, size, index, term) in enumerate(units, first + number):
                    if magic != ENTRY_MAGIC or index != at:
                        report_fault(f"{segment.path}: no unit of entry {at}")
                    else:
                        yield EntryIndexRow(index, term, pos, size, pos + ENTRY_HEAD_BYTES)
