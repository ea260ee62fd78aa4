"""ConsumeQueue and Index out of tables of units and of keys, by the rebuild's own functions.

A task writes what it is given beside the store; the commit sorts it where that is needed, has the files written as
a rebuild does, and publishes them whole.
"""

import functools
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_formats import paths
from rmq_formats.arrow_derive import UnitRows, key_table
from rmq_formats.arrow_encode import check_topic
from rmq_formats.errors import StoreError, StoreSizeError, told_as_store_errors
from rmq_formats.findings import QUEUE_GAP, Finding
from rmq_formats.index import IndexHeader
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.layout import INDEX_HEADER_BYTES, PRE_BLANK_SIZE, UNIT_BYTES, index_file_bytes
from rmq_formats.offline import rebuild as tasks
from rmq_formats.offline import spill
from rmq_formats.offline.area import LocalArea
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.rebuild import IndexTask, RebuildOptions, ScanResult
from rmq_formats.offline.rebuild_store import check_sizes
from rmq_formats.offline.runner import ProcessRunner
from rmq_formats.offline.write_end import queue_files
from rmq_formats.offline.write_job import WriteJob, begin_job, check_target
from rmq_formats.segment import open_storage

PARTITIONS: Final = 16  # of queues: tasks of the commit
ROWS_PER_PIECE: Final = 1 << 22  # bounds a task's memory
Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DerivedWrite:
    """A write of queues or of an Index that has begun.

    Attributes:
        options: exactly one of ``consumequeue`` and ``index`` is set.
        overwrite: in the place of what is there, instead of behind it.
        job: where tasks write.
    """

    options: RebuildOptions
    overwrite: bool
    job: WriteJob

    @property
    def directory(self) -> str:
        """Name of the directory that is published."""
        return "consumequeue" if self.options.consumequeue else "index"


@dataclass(frozen=True, slots=True)
class DerivedPiece:
    """What a task wrote: a file of units, or of keys.

    Attributes:
        path: of the file.
        row_count: units or keys.
    """

    path: str
    row_count: int


def begin_derived(root: str, options: RebuildOptions, *, overwrite: bool) -> DerivedWrite:
    """Begin a write: check all that can be checked, and make its directory.

    Raises:
        StoreLockedError: a broker has the store.
        StoreSizeError: sizes that no broker could use, or not those of the files that are there.
        StoreError: it cannot be written to.
        OptionError: not a local directory.
    """
    check_target(root)
    check_sizes(options)
    if not overwrite:
        for path, size in _existing_sizes(root, options):
            wanted = options.consumequeue_file_bytes
            if options.index:
                wanted = index_file_bytes(options.index_slots, options.index_entries)
            if size != wanted:
                raise StoreSizeError(f"{path}: has {size} bytes, not {wanted}")
    return DerivedWrite(options, overwrite, begin_job(root))


def _existing_sizes(root: str, options: RebuildOptions) -> Iterator[tuple[str, int]]:
    if options.index:
        yield from ((str(path), path.stat().st_size) for path in _index_files(root))
        return
    for _, _, files in queue_files(*open_storage(root)):
        yield from ((file.path, file.size_bytes) for file in files)


def _index_files(root: str) -> list[Path]:
    directory = Path(paths.index_dir(root))
    found = directory.iterdir() if directory.is_dir() else iter(())
    return sorted(path for path in found if paths.is_index_file_name(path.name))


def write_units(batches: Iterable[pa.RecordBatch], write: DerivedWrite) -> list[DerivedPiece]:
    """Task: write units beside the store, grouped by queue.

    Raises:
        StoreError: a row that is no unit, or a disk that is full.
    """
    table = UnitRows()
    return [_write_units(rows, table, write.job.pieces) for rows in _pieces(map(table.table, batches))]


def _write_units(rows: Table, table: spill.QueueNames, directory: Path) -> DerivedPiece:
    path = directory / f"{uuid.uuid4().hex}.arrow"
    for topic, _ in table.queue_names():
        check_topic(topic)
    with told_as_store_errors(directory):
        spill.write_units(path, rows, table, PARTITIONS)
    return DerivedPiece(str(path), len(rows))


def write_keys(batches: Iterable[pa.RecordBatch], write: DerivedWrite) -> list[DerivedPiece]:
    """Task: write keys beside the store, as they come.

    Raises:
        StoreError: a row that is no key, or a disk that is full.
    """
    pieces = []
    for rows in _pieces(map(key_table, batches)):
        path = write.job.pieces / f"{uuid.uuid4().hex}.npy"
        with told_as_store_errors(path):
            np.save(path, rows)
        pieces.append(DerivedPiece(str(path), len(rows)))
    return pieces


def _pieces(tables: Iterable[Table]) -> Iterator[Table]:
    """Tables joined up to a size that memory bears."""
    waiting: list[Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_PER_PIECE:
            yield np.concatenate(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def commit_derived(write: DerivedWrite, pieces: Sequence[DerivedPiece]) -> int:
    """Make the files out of all pieces, and publish them.

    Returns:
        Units of the queues, or entries that were added to the Index.

    Raises:
        StoreLockedError: a broker has the store by now.
        StoreError: units that claim one place, keys in front of those that are there, or a disk that is full.
    """
    area = LocalArea(write.job.root)
    make = _make_queues if write.options.consumequeue else _make_index
    with store_lock(write.job.root), told_as_store_errors(write.job.root):
        write.job.check_own()
        area.finish_publishing()
        area.clear([write.directory])
        count = make(write, pieces, area)
        shutil.rmtree(write.job.work)
        area.drop_spills()
        area.publish([write.directory])
    return count


def _make_queues(write: DerivedWrite, pieces: Sequence[DerivedPiece], area: LocalArea) -> int:
    number = 0
    if not write.overwrite:
        for rows, queues in _existing_units(write.job.root):
            _write_spill(area, number, rows, queues)
            number += 1
    for piece in pieces:
        Path(piece.path).rename(area.path(f"spill/units-{number:06d}.arrow"))
        number += 1
    task = functools.partial(tasks.write_queues, split_count=number, options=write.options, area=area)
    results = ProcessRunner().map(task, range(PARTITIONS))
    for result in results:
        for fields in result.findings:
            finding = Finding.from_dict(fields)
            if finding.kind is not QUEUE_GAP:
                raise StoreError(
                    f"topic {finding.topic!r}, queue {finding.queue_id}, queue offset {finding.queue_offset}: "
                    f"{finding.kind.code}; the unit of physical offset {finding.physical_offset} has no place"
                )
    return sum(result.unit_count for result in results)


def _write_spill(area: LocalArea, number: int, rows: Table, queues: "_Queues") -> None:
    area.write(f"spill/units-{number:06d}.arrow", lambda target: spill.write_units(target, rows, queues, PARTITIONS))


@dataclass(frozen=True, slots=True)
class _Queues:
    """The queues of a unit table."""

    names: list[tuple[str, int]]

    def queue_names(self) -> list[tuple[str, int]]:
        """Topic and queue id of each."""
        return self.names


def _existing_units(root: str) -> Iterator[tuple[Table, _Queues]]:
    """The units of each queue that is there, a file at a time."""
    for topic, queue_id, files in queue_files(*open_storage(root)):
        for file in files:
            image = np.fromfile(file.path, dtype=np.uint8)
            rows = np.zeros((len(image) // UNIT_BYTES, unit_kernel.ROW_COLUMNS), dtype=np.int64)
            unit_kernel.decode_units(image, rows)
            sizes = rows[:, unit_kernel.SIZE]
            found = np.flatnonzero((sizes > 0) & (sizes != PRE_BLANK_SIZE))
            units = np.zeros((len(found), kernel.UNIT_COLUMNS), dtype=np.int64)
            units[:, kernel.UNIT_QUEUE_OFFSET] = file.start_offset // UNIT_BYTES + found
            units[:, kernel.UNIT_PHYSICAL_OFFSET] = rows[found, unit_kernel.PHYSICAL_OFFSET]
            units[:, kernel.UNIT_SIZE] = sizes[found]
            units[:, kernel.UNIT_TAGS_CODE] = rows[found, unit_kernel.TAGS_CODE]
            if len(units):
                yield units, _Queues([(topic, queue_id)])


def _make_index(write: DerivedWrite, pieces: Sequence[DerivedPiece], area: LocalArea) -> int:
    keys = [np.load(piece.path) for piece in pieces]
    rows: Table = np.concatenate([np.zeros((0, kernel.KEY_COLUMNS), dtype=np.int64), *keys])
    offsets = rows[:, kernel.KEY_PHYSICAL_OFFSET]
    if (offsets[1:] < offsets[:-1]).any():
        rows = rows[np.argsort(offsets, kind="stable")]  # keys of one record stay in the order that they came in
    old = [] if write.overwrite else _index_files(write.job.root)
    header = IndexHeader()
    for path in old:
        os.link(path, area.path(f"new/index/{path.name}"))
        with path.open("rb") as file:
            header = IndexHeader.decode(file.read(INDEX_HEADER_BYTES))
    if len(rows) and rows[0, kernel.KEY_PHYSICAL_OFFSET] < header.end_physical_offset:
        raise StoreError(
            f"{old[-1]}: ends at physical offset {header.end_physical_offset}, behind the first key of the rows, at "
            f"{rows[0, kernel.KEY_PHYSICAL_OFFSET]}; an Index is in the order of the log"
        )
    results: list[ScanResult] = []
    for begin in range(0, len(rows), ROWS_PER_PIECE):
        part = rows[begin : begin + ROWS_PER_PIECE]
        results.append(_write_key_spill(area, len(results), part))
    waiting = tasks.index_tasks(results, write.options, tasks.spilled_key(area))
    if old and waiting:
        waiting = _behind(old[-1].name, (header.end_timestamp_ms, header.end_physical_offset), waiting)
    task = functools.partial(tasks.write_index, options=write.options, area=area)
    return sum(result.entry_count for result in ProcessRunner().map(task, waiting))


def _write_key_spill(area: LocalArea, number: int, rows: Table) -> ScanResult:
    area.write(f"spill/keys-{number:06d}.arrow", lambda target: spill.write_keys(target, rows))
    first, last = rows[[0, -1], kernel.KEY_PHYSICAL_OFFSET].tolist()
    # Of messages without keys nothing is known here, so that no empty file is made for one.
    return ScanResult(number, first, last, 0, 0, -1, len(rows), (), 0)


def _behind(name: str, previous_end: tuple[int, int], waiting: Sequence[IndexTask]) -> list[IndexTask]:
    """Index tasks whose files come after those that are there."""
    moved = []
    for number, task in enumerate(waiting):
        name = max(task.name, f"{int(name) + 1:017d}")
        moved.append(replace(task, name=name, previous_end=task.previous_end if number else previous_end))
    return moved
