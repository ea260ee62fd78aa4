"""Rows of queues, Index and DLedger's own index: their units and entries, for ``rmq dump``.

Each row has the columns of the Spark source of the same name, if there is one; times are milliseconds, as
everywhere in ``--json``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rmq_cli.store_path import ClassifiedPath, QueueSegments, entry_index_files, index_files, queues
from rmq_formats.codecs.batch_consumequeue import is_end, split_file
from rmq_formats.codecs.consumequeue import UNIT_DTYPE
from rmq_formats.codecs.consumequeue_ext import ExtUnit, encode_ext_address
from rmq_formats.codecs.consumer_offsets_json import config_document
from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES, ENTRY_MAGIC, INDEX_UNIT_BYTES, INDEX_UNIT_DTYPE
from rmq_formats.codecs.layout import BATCH_UNIT_BYTES, UNIT_BYTES
from rmq_formats.errors import FormatError
from rmq_formats.read.config_documents import documents_at
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.storage.segments import OpenRange, Storage, read_range

ReportFault = Callable[[str], None]
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class UnitRow:
    """One ConsumeQueue unit; topic and queue id are None where the path does not name them."""

    topic: str | None
    queue_id: int | None
    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int


@dataclass(frozen=True, slots=True)
class TimedUnitRow(UnitRow):
    """One unit of a ConsumeQueue in a database."""

    store_timestamp: int


@dataclass(frozen=True, slots=True)
class BatchUnitRow(TimedUnitRow):
    """One unit of a batch queue, or of a compacted topic's queue; the queue offset is that of its first message."""

    batch_size: int


@dataclass(frozen=True, slots=True)
class ExtRow:
    """One ConsumeQueueExt unit; the address is what the ConsumeQueue unit has for a tags code."""

    topic: str | None
    queue_id: int | None
    address: int
    tags_code: int
    store_timestamp: int
    bit_map: str


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One Index entry; the time has a resolution of one second."""

    index_file: str
    entry: int
    slot: int
    key_hash: int
    physical_offset: int
    store_timestamp: int
    previous_entry: int


def units(place: ClassifiedPath, topic: str | None, begin: int, report_fault: ReportFault) -> Iterator[UnitRow]:
    """Yield the units of all queues under a path, each queue from a queue offset on."""
    for queue in queues(place, topic):
        for segment in queue.segments:
            with place.storage.open(segment.path) as file:
                yield from _segment_units(file, queue, segment.start_offset, begin, report_fault)


def _segment_units(
    file: OpenRange, queue: QueueSegments, start_offset: int, begin: int, report_fault: ReportFault
) -> Iterator[UnitRow]:
    first = start_offset // UNIT_BYTES  # queue offset of the file's first unit
    empty = 0
    for number, data in _unit_blocks(file, UNIT_BYTES, begin - first):
        whole = data[: len(data) - len(data) % UNIT_BYTES]
        for at, row in enumerate(np.frombuffer(whole, dtype=UNIT_DTYPE).tolist()):
            if row[0] < 0 or row[1] <= 0:
                empty += 1
                continue
            yield UnitRow(queue.topic, queue.queue_id, first + number + at, *row)
        if len(whole) < len(data):
            report_fault(f"{_queue_name(queue)}: {len(data) % UNIT_BYTES} bytes at the end of a file are no unit")
    if empty:
        report_fault(f"{_queue_name(queue)}: {empty} places without a unit, and units behind them")


def _unit_blocks(file: OpenRange, unit_bytes: int, begin: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a file's units from a number on, some at a time, with the number of the first."""
    count = -(-file.data_end() // unit_bytes)  # what follows is zero: not written yet
    for number in range(max(0, begin), count, _ROWS_AT_ONCE):
        yield number, read_range(file, number * unit_bytes, min(_ROWS_AT_ONCE, count - number) * unit_bytes)


def batch_units(
    place: ClassifiedPath, topic: str | None, begin: int, report_fault: ReportFault
) -> Iterator[BatchUnitRow]:
    """Yield the units of 46 bytes of all queues under a path, each queue from a queue offset on; see ``units``."""
    for queue in queues(place, topic):
        for units in batch_unit_arrays(place.storage, queue, report_fault):
            for place_at, size, code, stored, base, count, *_ in units.tolist():
                if base + count > begin:
                    yield BatchUnitRow(queue.topic, queue.queue_id, base, place_at, size, code, stored, count)


def batch_unit_arrays(storage: Storage, queue: QueueSegments, report_fault: ReportFault) -> Iterator[NDArray[np.void]]:
    """Yield the units of 46 bytes of a queue, BATCH_UNIT_DTYPE[n] of each file."""
    for segment in queue.segments:
        with storage.open(segment.path) as file:
            units, behind = split_file(read_range(file, 0, file.data_end()))
        if not is_end(behind):
            report_fault(f"{segment.path}: no unit at byte {len(units) * BATCH_UNIT_BYTES}, and bytes behind it")
        yield units


def _queue_name(queue: QueueSegments) -> str:
    path = queue.segments[0].path.rpartition("/")[0]
    return path if queue.topic is None else f"{queue.topic}/{queue.queue_id}"


def ext_units(place: ClassifiedPath, topic: str | None, _begin: int, report_fault: ReportFault) -> Iterator[ExtRow]:
    """Yield all ConsumeQueueExt units of all queues under a path; see ``units``."""
    for queue in queues(place, topic):
        for segment in queue.segments:
            with place.storage.open(segment.path) as file:
                data = read_range(file, 0, file.data_end() + UNIT_BYTES)  # a unit may end in zeros
            at = 0
            while at + 2 <= len(data):
                try:
                    unit = ExtUnit.decode(data, at)
                except FormatError as error:
                    report_fault(f"{segment.path}: {error}")
                    break
                if unit is None:
                    break
                yield ExtRow(
                    queue.topic,
                    queue.queue_id,
                    encode_ext_address(segment.start_offset + at),
                    unit.tags_code,
                    unit.store_timestamp_ms,
                    unit.bit_map.hex(),
                )
                at += unit.size


def entries(place: ClassifiedPath, _topic: str | None, begin: int, report_fault: ReportFault) -> Iterator[EntryRow]:
    """Yield the entries of an IndexFile, or of all in a directory, each file from an entry number on; see ``units``."""
    for path in index_files(place):
        name = path.rpartition("/")[2]
        with place.storage.open(path) as file:
            try:
                index = IndexFile.read(file, path)
            except FormatError as error:
                report_fault(str(error))
                continue
            for first, chunk in index.chunks(begin):
                for number, (key_hash, physical_offset, seconds, previous) in enumerate(chunk.tolist(), first):
                    yield EntryRow(
                        name,
                        number,
                        key_hash % index.slots,
                        key_hash,
                        physical_offset,
                        index.store_ms(seconds),
                        previous,
                    )


@dataclass(frozen=True, slots=True)
class EntryIndexRow:
    """One unit of a DLedger CommitLog's index; the physical offset is that of the entry's record."""

    index: int
    term: int
    pos: int
    size: int
    physical_offset: int


def database_units(
    place: ClassifiedPath, topic: str | None, begin: int, report_fault: ReportFault
) -> Iterator[TimedUnitRow]:
    """Yield the units of a ConsumeQueue in a database, each queue from a queue offset on, up to the first damage."""
    try:
        with open_queues(place.storage, place.path) as database:
            for name, queue_id in database.queues(topic):
                for offsets, units in database.units(name, queue_id, begin):
                    for offset, row in zip(offsets.tolist(), units.tolist(), strict=True):
                        yield TimedUnitRow(name, queue_id, offset, *row)
    except FormatError as error:
        report_fault(str(error))


def config(place: ClassifiedPath) -> object:
    """Parse a config file; config in RocksDB is the document that its file would be. Raises FormatError, StoreError."""
    if place.is_directory:
        return documents_at(place.storage, place.path)
    text = place.storage.read_bytes(place.path).decode("utf-8", "replace")
    return config_document(place.path, text)


def entry_index(
    place: ClassifiedPath, _topic: str | None, begin: int, report_fault: ReportFault
) -> Iterator[EntryIndexRow]:
    """Yield the units of a DLedger CommitLog's index, from an entry's index on."""
    for segment in entry_index_files(place):
        first = segment.start_offset // INDEX_UNIT_BYTES
        with place.storage.open(segment.path) as file:
            for number, data in _unit_blocks(file, INDEX_UNIT_BYTES, begin - first):
                padded = data + bytes(-len(data) % INDEX_UNIT_BYTES)
                units = np.frombuffer(padded, dtype=INDEX_UNIT_DTYPE).tolist()
                for at, (magic, pos, size, index, term) in enumerate(units, first + number):
                    if magic != ENTRY_MAGIC or index != at:
                        report_fault(f"{segment.path}: no unit of entry {at}")
                    else:
                        yield EntryIndexRow(index, term, pos, size, pos + ENTRY_HEAD_BYTES)
