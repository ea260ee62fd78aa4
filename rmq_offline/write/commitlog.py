"""Writes or extends a store from rows: tasks encode records beside it, a commit places them and publishes all.

- ``begin_write`` checks all preconditions, before anything is written.
- ``write_pieces`` of ``piece`` is the task.
- ``commit_write`` extends the log, or makes a new one, in a directory beside it, has the queues and the Index
  rebuilt there if asked to, and replaces the old directories by the new ones. In an object store: see ``objects``.

Killed at any instant, the store has the old log or the new one. The next write clears what a killed one leaves.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmq_formats.arrow.encode import EncodeOptions
from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import BLANK_BYTES
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import OptionError, StoreError, os_errors_as_store_errors
from rmq_formats.kernels.encode import rows
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.segments import Segment, read_range
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild.job import check_rebuild, rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.publish import publish
from rmq_offline.tasks.runner import ProcessRunner, Runner
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.write import objects
from rmq_offline.write.job import WriteJob, begin_job, check_target, end_killed_write
from rmq_offline.write.log_end import (
    is_empty,
    list_log_segments,
    log_end,
    queue_ends,
    require_log_file_bytes,
    usual_file_bytes,
)
from rmq_offline.write.log_writer import AppendPosition, LogWriter
from rmq_offline.write.piece import WrittenTask
from rmq_offline.write.topics import TOPICS, add_topics, queue_counts, read_topics, with_topics

_MAX_FILE_BYTES: Final = (1 << 31) - 1  # mappedFileSizeCommitLog is a Java int
# Files beside a log that refer to it: queues of the old log beside the new one would lead to other messages.
_DERIVED: Final = ("consumequeue", "consumequeue_ext", "index", "checkpoint", "abort")
_REPLACED: Final = ("commitlog", "consumequeue", "consumequeue_ext", "index")
_COPIED_BYTES: Final = 16 << 20  # of an object, at once


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write of records.

    Attributes:
        root: directory or URI of the store; made if missing.
        overwrite: replace the old log, instead of appending to it.
        commitlog_file_bytes: ``mappedFileSizeCommitLog``; None is the store's size, or 1 GiB for a new store.
        keep_offsets: see ``EncodeOptions``; needs ``overwrite``, or a store without a log.
        dispatch: options for building ConsumeQueue and Index; None builds neither.
    """

    root: str
    overwrite: bool
    commitlog_file_bytes: int | None = None
    crc_way: int = rows.CRC_AS_GIVEN
    keep_offsets: bool = False
    dispatch: RebuildOptions | None = None
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE


@dataclass(frozen=True, slots=True)
class LogWrite:
    """State of a write of records, shared by its tasks and its commit."""

    options: WriteOptions
    file_bytes: int
    job: WriteJob | objects.ObjectJob

    @property
    def encoding(self) -> EncodeOptions:
        """Encoder options of the write."""
        max_bytes = self.file_bytes - BLANK_BYTES
        return EncodeOptions(self.job.now_ms, self.options.crc_way, self.options.keep_offsets, max_bytes)


def begin_write(options: WriteOptions) -> LogWrite:
    """Begin a write: check all that can be checked, and create its work directory.

    Raises:
        StoreLockedError: a broker has the store.
        StoreSizeError: sizes that no broker could use, or not the store's.
        StoreLayoutError: a store with layouts that the write would get wrong.
        StoreError: the store cannot be extended, or not be written to.
        OptionError: options that do not go together.
    """
    store = open_store(options.root)
    options = replace(options, root=store.root)
    if store.storage.is_local:
        check_target(store.root)
    else:
        objects.end_killed_object_write(store.root, ProcessRunner(), options.leftover)
    refuse_write(options.root, overwrite=options.overwrite)
    segments = list_log_segments(options.root)
    if options.overwrite:
        file_bytes = require_log_file_bytes([], options.commitlog_file_bytes or usual_file_bytes(segments))
    else:
        file_bytes = require_log_file_bytes(segments, options.commitlog_file_bytes)
    if not RECORD_FIXED_BYTES_V1 + BLANK_BYTES <= file_bytes <= _MAX_FILE_BYTES:
        raise OptionError(f"CommitLog file size {file_bytes}: must be 100 to {_MAX_FILE_BYTES} bytes")
    if options.dispatch is not None:
        options.dispatch.sizes.check()
    read_topics(options.root)
    if segments and not options.overwrite:
        if options.keep_offsets and not is_empty(options.root):
            raise OptionError(f"{options.root}: has a log; offsets can be kept only in a new one, with overwrite")
        log_end(options.root, segments, file_bytes)
        if options.dispatch is not None:
            check_rebuild(store, None, options.dispatch)
    job = begin_job(store.root, options.leftover) if store.storage.is_local else objects.begin_object_job(store.root)
    return LogWrite(options, file_bytes, job)


def refuse_write(root: str, *, overwrite: bool) -> None:
    """Refuse a store whose other layouts a write would get wrong. Raises StoreLayoutError."""
    store = open_store(root)
    layouts = store.layouts
    layout_refusals.refuse(
        layout_refusals.log_replacement_refusal(layouts) if overwrite else layout_refusals.write_refusal(layouts)
    )
    if overwrite:
        layout_refusals.refuse(layout_refusals.timer_log_refusal(store.storage, store.root))
        refuse_unknown_files(store, _REPLACED)


def commit_write(write: LogWrite, tasks: Sequence[WrittenTask], runner: Runner) -> int:
    """Assign offsets to the records of all tasks, in their order, and publish the store; return the number of records.

    Raises:
        StoreLockedError: a broker has the store by now.
        StoreError: another write has begun, offsets that cannot be kept, or a disk that is full.
    """
    job = write.job
    if isinstance(job, objects.ObjectJob):
        _commit_objects(write, job, tasks, runner)
    else:
        _commit_files(write, job, tasks, runner)
    return sum(piece.row_count for task in tasks for piece in task.pieces)


def _commit_files(write: LogWrite, job: WriteJob, tasks: Sequence[WrittenTask], runner: Runner) -> None:
    root = Path(job.root)
    with os_errors_as_store_errors(root), store_lock(job.root):
        job.check_own()
        _write_new_log(write, tasks, job.work / "new" / "commitlog")
        names = ["commitlog", *_dispatch(write, job, runner)]
        replaced = _REPLACED if write.options.overwrite else names[1:]  # what stood beside an old log's files stays
        refuse_unknown_files(open_store(job.root), replaced)
        add_topics(job.root, queue_counts(queue for task in tasks for queue in task.queues), job.now_ms)
        shutil.rmtree(job.pieces)  # a file deleted before it is flushed never reaches the disk
        publish(job.work, root, names, _DERIVED if write.options.overwrite else ())


def _commit_objects(write: LogWrite, job: objects.ObjectJob, tasks: Sequence[WrittenTask], runner: Runner) -> None:
    options, area = write.options, job.area
    with os_errors_as_store_errors(job.root):
        with area.lease("write") as check_lease, tempfile.TemporaryDirectory(prefix="rmq-write-") as temporary:
            job.check_own()
            pieces, new = Path(temporary) / "pieces", Path(temporary) / "new"
            pieces.mkdir()
            new.mkdir()
            old = _write_new_log(write, objects.fetch_pieces(area, tasks, pieces), new / "commitlog")
            written = frozenset(queue for task in tasks for queue in task.queues)
            topics = with_topics(read_topics(job.root), queue_counts(written), job.now_ms)
            if topics is not None:
                (new / "config").mkdir()
                (new / "config" / TOPICS).write_bytes(topics)
            retired = [f"commitlog/{Path(segment.path).name}" for segment in old]
            if options.overwrite:
                refuse_write(job.root, overwrite=True)
            check_lease()
            dispatch = None if options.dispatch is None else replace(options.dispatch, written_queues=written)
            objects.publish_objects(area, new, retired, dispatch, overwrite=options.overwrite)
        objects.dispatch_objects(job.root, runner)
        job.abort()


def finish_killed_write(
    root: str, runner: Runner, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE
) -> bool:
    """Complete a write that was killed during its publication; False if there was none. Raises StoreError."""
    store = open_store(root)
    if store.storage.is_local:
        return end_killed_write(store.root, leftover)
    return objects.end_killed_object_write(store.root, runner, leftover)


def _write_new_log(write: LogWrite, tasks: Sequence[WrittenTask], directory: Path) -> list[Segment]:
    """Write the new log, for an object store only changed files; return the old files that the new log lacks."""
    options, file_bytes = write.options, write.file_bytes
    directory.mkdir()
    workers = len(os.sched_getaffinity(0))
    old = list_log_segments(options.root)
    segments = [] if options.overwrite else old
    require_log_file_bytes(segments, file_bytes)
    end = log_end(options.root, segments, file_bytes)
    segments = [segment for segment in segments if segment.start_offset < end.physical_offset]  # else made ahead, empty
    if segments:
        _link_or_copy_old_files(options.root, directory, segments, end.physical_offset)
    elif options.keep_offsets:  # records keep their offsets, and the log begins where a file does
        first = min((piece.first_key for task in tasks for piece in task.pieces if piece.is_sorted), default=0)
        begin = first // file_bytes * file_bytes
        end = AppendPosition(begin, begin)
    writer = LogWriter(directory, end, file_bytes, keep_offsets=options.keep_offsets)
    ends = {} if options.overwrite else queue_ends(options.root, segments, end.physical_offset, workers)
    writer.write(tasks, ends)
    if not segments and not any(directory.iterdir()):  # no rows at all: an empty log, not a missing one
        with (directory / paths.segment_name(end.physical_offset)).open("xb") as file:
            file.truncate(file_bytes)
    return [segment for segment in old if segment not in segments]


def _link_or_copy_old_files(root: str, new: Path, segments: list[Segment], end: int) -> None:
    """Put the old files into the new log's directory; of a log in an object store only the last file."""
    store, last = open_store(root), segments[-1]
    if store.storage.is_local:
        _link_old(Path(store.root) / "commitlog", new, last, end)
    elif end < last.end_offset:
        used = end - last.start_offset
        with store.storage.open(last.path) as source, (new / Path(last.path).name).open("xb") as file:
            for begin in range(0, used, _COPIED_BYTES):
                file.write(read_range(source, begin, min(_COPIED_BYTES, used - begin)))
            file.truncate(last.size_bytes)


def _link_old(old: Path, new: Path, last: Segment, end: int) -> None:
    """Link the old files that begin before the log's end; copy the last file, since the write changes that file."""
    last_path = Path(last.path)
    for path in old.iterdir():
        start = paths.parse_segment_name(path.name)
        if path != last_path and (start is None or start < end):
            os.link(path, new / path.name)
    with last_path.open("rb") as source, (new / last_path.name).open("xb") as target:
        remaining = end - last.start_offset
        while remaining:
            copied = os.copy_file_range(source.fileno(), target.fileno(), remaining)
            if not copied:
                raise StoreError(f"{last_path}: shrank while it was copied")
            remaining -= copied
        target.truncate(last.size_bytes)


def _dispatch(write: LogWrite, job: WriteJob, runner: Runner) -> list[str]:
    """Rebuild ConsumeQueue and Index beside the new log; return the names of their directories."""
    if write.options.dispatch is None:
        return []
    new = job.work / "new"
    rebuild_store(str(new), None, write.options.dispatch, runner)
    return [name for name in ("consumequeue", "consumequeue_ext", "index") if (new / name).is_dir()]
