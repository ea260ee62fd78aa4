"""Writes ConsumeQueue or Index from tables of units or keys, with the rebuild's own functions.

A task spills its rows beside the store; the commit sorts them where needed, builds the files as a
rebuild does, and publishes them whole.
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

from rmq_formats.arrow.encode import UnitRows, check_topic, key_table
from rmq_formats.codecs import paths
from rmq_formats.codecs.index import IndexBound, IndexHeader
from rmq_formats.codecs.layout import INDEX_HEADER_BYTES, PRE_BLANK_SIZE, UNIT_BYTES
from rmq_formats.errors import OptionError, StoreError, StoreSizeError, os_errors_as_store_errors
from rmq_formats.kernels import dispatch as kernel
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.scan.derived_images import place_by_offset
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.queue_files import QueueFiles, walk_queues
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild import tasks
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.rebuild.tasks import IndexTask, ScanResult
from rmq_offline.tasks import spill
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.tasks.work_area import LocalArea
from rmq_offline.verify import finding_kinds
from rmq_offline.write.job import WriteJob, begin_job, check_target
from rmq_offline.write.piece import Table

PARTITIONS: Final = 16  # bytes of queues for each task of the commit
ROWS_PER_PIECE: Final = 1 << 22  # bounds a task's memory


@dataclass(frozen=True, slots=True)
class DerivedWrite:
    """State of a write of ConsumeQueues, or of an Index, which replaces existing files or appends to them."""

    options: RebuildOptions
    overwrite: bool
    job: WriteJob
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE

    @property
    def directory(self) -> str:
        """Name of the directory that is published: ``consumequeue`` or ``index``."""
        return "consumequeue" if self.options.consumequeue else "index"


def begin_derived(
    root: str, options: RebuildOptions, *, overwrite: bool, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE
) -> DerivedWrite:
    """Begin a write: check all that can be checked, and create its work directory.

    Raises:
        StoreLockedError: a broker has the store.
        StoreSizeError: sizes that no broker could use, or not those of the existing files.
        StoreLayoutError: a store with another kind of queues or Index.
        StoreError: the directory cannot be written to.
        OptionError: not a local directory.
    """
    if "://" in root:
        raise OptionError(
            f"{root}: queues and Index are written to a local directory; rmq rebuild makes them elsewhere"
        )
    check_target(root)
    store = open_store(root)
    if options.consumequeue:
        layout_refusals.refuse(layout_refusals.queue_write_refusal(store.layouts))
    refuse_unknown_files(store, ["consumequeue" if options.consumequeue else "index"])
    options.sizes.check()
    if not overwrite:
        file_bytes = options.sizes.index_file_bytes if options.index else options.sizes.consumequeue_file_bytes
        for path, size in _existing_sizes(root, options):
            if size != file_bytes:
                raise StoreSizeError(f"{path}: has {size} bytes, not {file_bytes}")
    return DerivedWrite(options, overwrite, begin_job(root, leftover), leftover)


def _existing_sizes(root: str, options: RebuildOptions) -> Iterator[tuple[str, int]]:
    if options.index:
        return ((str(path), path.stat().st_size) for path in _index_files(root))
    return ((file.path, file.size_bytes) for queue in _queues_of(root) for file in queue.segments)


def _queues_of(root: str) -> Iterator[QueueFiles]:
    storage, path = open_storage(root)
    return walk_queues(storage, paths.consumequeue_dir(path))


def _index_files(root: str) -> list[Path]:
    directory = Path(paths.index_dir(root))
    entries = directory.iterdir() if directory.is_dir() else iter(())
    return sorted(path for path in entries if paths.is_index_file_name(path.name))


def write_units(batches: Iterable[pa.RecordBatch], write: DerivedWrite) -> list[str]:
    """Task: spill units beside the store, grouped by queue; return the files' paths. Raises StoreError."""
    table = UnitRows()
    directory = write.job.pieces
    pieces = []
    for rows in _pieces(map(table.table, batches)):
        path = directory / f"{uuid.uuid4().hex}.arrow"
        names = table.queue_names()
        for topic, _ in names:
            check_topic(topic)
        with os_errors_as_store_errors(directory):
            spill.write_units(path, rows, names, PARTITIONS)
        pieces.append(str(path))
    return pieces


def write_keys(batches: Iterable[pa.RecordBatch], write: DerivedWrite) -> list[str]:
    """Task: spill keys beside the store, as they come; return the files' paths. Raises StoreError."""
    pieces = []
    for rows in _pieces(map(key_table, batches)):
        path = write.job.pieces / f"{uuid.uuid4().hex}.keys"
        with os_errors_as_store_errors(path):
            rows.tofile(path)  # not np.save: see ``write_longs``
        pieces.append(str(path))
    return pieces


def _pieces(tables: Iterable[Table]) -> Iterator[Table]:
    waiting: list[Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= ROWS_PER_PIECE:
            yield np.concatenate(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield np.concatenate(waiting)


def commit_derived(write: DerivedWrite, pieces: Sequence[str]) -> int:
    """Build the files out of the tasks' pieces, and publish them; return the number of new units or Index entries.

    Raises:
        StoreLockedError: a broker has the store by now.
        StoreError: units with the same queue offset, keys before the existing ones, or a disk that is full.
    """
    area = LocalArea(write.job.root)
    make = _make_queues if write.options.consumequeue else _make_index
    with store_lock(write.job.root), os_errors_as_store_errors(write.job.root):
        write.job.check_own()
        area.finish_publishing(write.leftover)
        area.clear([write.directory])
        count = make(write, pieces, area)
        shutil.rmtree(write.job.work)
        area.drop_spills()
        area.publish([write.directory])
    return count


def _make_queues(write: DerivedWrite, pieces: Sequence[str], area: LocalArea) -> int:
    number = 0
    if not write.overwrite:
        for rows, queue in _existing_units(write.job.root):
            _write_spill(area, number, rows, queue)
            number += 1
    for piece in pieces:
        Path(piece).rename(area.path(f"spill/units-{number:06d}.arrow"))
        number += 1
    task = functools.partial(
        tasks.write_queues, split_count=number, options=write.options, area=area, place_records=place_by_offset
    )
    results = ProcessRunner().map(task, range(PARTITIONS))
    for result in results:
        for fields in result.findings:
            finding = finding_kinds.restore_finding(fields)
            if finding.kind is not finding_kinds.QUEUE_OFFSET_GAP:
                raise StoreError(
                    f"topic {finding.topic!r}, queue {finding.queue_id}, queue offset {finding.queue_offset}: "
                    f"{finding.kind.code}; the unit of physical offset {finding.physical_offset} has no place"
                )
    return sum(result.unit_count for result in results)


def _write_spill(area: LocalArea, number: int, rows: Table, queue: tuple[str, int]) -> None:
    area.write(f"spill/units-{number:06d}.arrow", lambda target: spill.write_units(target, rows, [queue], PARTITIONS))


def _existing_units(root: str) -> Iterator[tuple[Table, tuple[str, int]]]:
    for queue in _queues_of(root):
        for file in queue.segments:
            image = np.fromfile(file.path, dtype=np.uint8)
            rows = np.zeros((len(image) // UNIT_BYTES, unit_kernel.ROW_COLUMNS), dtype=np.int64)
            unit_kernel.decode_units(image, rows)
            sizes = rows[:, unit_kernel.SIZE]
            slots = np.flatnonzero((sizes > 0) & (sizes != PRE_BLANK_SIZE))
            units = np.zeros((len(slots), kernel.UNIT_COLUMNS), dtype=np.int64)
            units[:, kernel.UNIT_QUEUE_OFFSET] = file.start_offset // UNIT_BYTES + slots
            units[:, kernel.UNIT_PHYSICAL_OFFSET] = rows[slots, unit_kernel.PHYSICAL_OFFSET]
            units[:, kernel.UNIT_SIZE] = sizes[slots]
            units[:, kernel.UNIT_TAGS_CODE] = rows[slots, unit_kernel.TAGS_CODE]
            if len(units):
                yield units, (queue.topic, queue.queue_id)


def _make_index(write: DerivedWrite, pieces: Sequence[str], area: LocalArea) -> int:
    keys = [np.fromfile(piece, dtype=np.int64).reshape(-1, kernel.KEY_COLUMNS) for piece in pieces]
    rows: Table = np.concatenate([np.zeros((0, kernel.KEY_COLUMNS), dtype=np.int64), *keys])
    offsets = rows[:, kernel.KEY_PHYSICAL_OFFSET]
    if (offsets[1:] < offsets[:-1]).any():
        rows = rows[np.argsort(offsets, kind="stable")]  # keys of one record keep their order
    old = [] if write.overwrite else _index_files(write.job.root)
    header = IndexHeader()
    for path in old:
        os.link(path, area.path(f"new/index/{path.name}"))
        with path.open("rb") as file:
            header = IndexHeader.decode(file.read(INDEX_HEADER_BYTES))
    if len(rows) and rows[0, kernel.KEY_PHYSICAL_OFFSET] < header.end_physical_offset:
        raise StoreError(
            f"{old[-1]}: ends at physical offset {header.end_physical_offset}, after the first key of the rows, at "
            f"{rows[0, kernel.KEY_PHYSICAL_OFFSET]}; an Index is in the order of the log"
        )
    begins = range(0, len(rows), ROWS_PER_PIECE)
    results = [_write_key_spill(area, number, rows[at : at + ROWS_PER_PIECE]) for number, at in enumerate(begins)]
    waiting = tasks.index_tasks(results, write.options, tasks.spilled_key(area))
    if old and waiting:
        waiting = _rename_after(old[-1].name, IndexBound(header.end_timestamp_ms, header.end_physical_offset), waiting)
    task = functools.partial(tasks.write_index, options=write.options, area=area)
    return sum(result.entry_count for result in ProcessRunner().map(task, waiting))


def _write_key_spill(area: LocalArea, number: int, rows: Table) -> ScanResult:
    area.write(f"spill/keys-{number:06d}.arrow", lambda target: spill.write_keys(target, rows))
    first, last = rows[[0, -1], kernel.KEY_PHYSICAL_OFFSET].tolist()
    # Messages without keys are unknown here, so that no empty file is made for one.
    return ScanResult(number, first, last, 0, 0, -1, len(rows), (), 0)


def _rename_after(name: str, previous_end: IndexBound, waiting: Sequence[IndexTask]) -> list[IndexTask]:
    """Plan IndexFiles whose names come after those that exist."""
    moved = []
    for number, task in enumerate(waiting):
        name = max(task.name, f"{int(name) + 1:017d}")
        moved.append(replace(task, name=name, previous_end=task.previous_end if number else previous_end))
    return moved
