"""Writes a store out of rows: tasks encode them beside it, a commit gives them their places and publishes all.

- ``begin_write`` refuses what can be refused, before anything is written.
- ``write_pieces`` of ``write_piece`` is the task.
- ``commit_write`` continues the log, or makes a new one, in a directory beside it, has the queues and the Index
  rebuilt there if asked to, and puts the new directories in the place of the old ones.

Killed at any instant, the store has the old log or the new one. What a killed write leaves is cleared by the next.
"""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_formats import paths
from rmq_formats.arrow_encode import EncodeOptions
from rmq_formats.errors import OptionError, StoreError, told_as_store_errors
from rmq_formats.kernels import encode_rows
from rmq_formats.layout import BLANK_BYTES, RECORD_FIXED_BYTES_V1
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.publish import publish
from rmq_formats.offline.rebuild import RebuildOptions
from rmq_formats.offline.rebuild_store import check_rebuild, check_sizes, rebuild_store
from rmq_formats.offline.runner import Runner
from rmq_formats.offline.write_end import is_empty, log_end, log_file_bytes, log_segments, queue_ends, usual_file_bytes
from rmq_formats.offline.write_job import WriteJob, begin_job, check_target
from rmq_formats.offline.write_piece import WrittenTask
from rmq_formats.offline.write_place import LogEnd, LogWriter
from rmq_formats.offline.write_topics import add_topics, queue_counts, read_topics
from rmq_formats.segment import Segment

_MAX_FILE_BYTES: Final = (1 << 31) - 1  # mappedFileSizeCommitLog is a Java int
# What stands beside a log and speaks of it: queues of the old one beside the new one would lead to other messages.
_DERIVED: Final = ("consumequeue", "consumequeue_ext", "index", "checkpoint", "abort")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write is to do.

    Attributes:
        root: of the store, a local directory; made if missing.
        overwrite: a new log in the place of the old one, instead of behind it.
        commitlog_file_bytes: ``mappedFileSizeCommitLog``; None is that of the store, else 1 GiB.
        crc_way: see ``EncodeOptions``.
        keep_offsets: see ``EncodeOptions``; needs ``overwrite``, or a store without a log.
        dispatch: how to make ConsumeQueue and Index beside the log; None does not.
    """

    root: str
    overwrite: bool
    commitlog_file_bytes: int | None = None
    crc_way: int = encode_rows.CRC_AS_GIVEN
    keep_offsets: bool = False
    dispatch: RebuildOptions | None = None


@dataclass(frozen=True, slots=True)
class LogWrite:
    """A write that has begun.

    Attributes:
        options: what it is to do.
        file_bytes: size of the CommitLog's files.
        job: where tasks write.
    """

    options: WriteOptions
    file_bytes: int
    job: WriteJob

    @property
    def encoding(self) -> EncodeOptions:
        """How rows become records."""
        options = self.options
        return EncodeOptions(self.job.now_ms, options.crc_way, options.keep_offsets, self.file_bytes - BLANK_BYTES)


def begin_write(options: WriteOptions) -> LogWrite:
    """Begin a write: check all that can be checked, and make its directory.

    Raises:
        StoreLockedError: a broker has the store.
        StoreSizeError: sizes that no broker could use, or not the store's.
        StoreError: the store cannot be continued, or not be written to.
        OptionError: options that do not go together.
    """
    check_target(options.root)
    segments = log_segments(options.root)
    if options.overwrite:
        file_bytes = log_file_bytes([], options.commitlog_file_bytes or usual_file_bytes(segments))
    else:
        file_bytes = log_file_bytes(segments, options.commitlog_file_bytes)
    if not RECORD_FIXED_BYTES_V1 + BLANK_BYTES <= file_bytes <= _MAX_FILE_BYTES:
        raise OptionError(f"CommitLog files of {file_bytes} bytes: 100 to {_MAX_FILE_BYTES} can be")
    if options.dispatch is not None:
        check_sizes(options.dispatch)
    read_topics(options.root)
    if segments and not options.overwrite:
        if options.keep_offsets and not is_empty(segments):
            raise OptionError(f"{options.root}: has a log; offsets can be kept only in a new one, with overwrite")
        log_end(segments, file_bytes)
        if options.dispatch is not None:
            check_rebuild(options.root, None, options.dispatch)
    return LogWrite(options, file_bytes, begin_job(options.root))


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What a write did.

    Attributes:
        messages: records written.
        begin_physical_offset: of the first of them.
        end_physical_offset: one past the last.
        seconds: of the commit: places, copies, queues and Index, publication.
    """

    messages: int
    begin_physical_offset: int
    end_physical_offset: int
    seconds: float


def commit_write(write: LogWrite, tasks: Sequence[WrittenTask], runner: Runner) -> WriteReport:
    """Give the records of all tasks their places, and publish the store with them.

    Args:
        write: of ``begin_write``.
        tasks: what they gave, in the order of their rows.
        runner: where queues and Index are made.

    Raises:
        StoreLockedError: a broker has the store by now.
        StoreError: another write has begun, offsets that cannot be kept, or a disk that is full.
    """
    begin = time.perf_counter()
    job = write.job
    root = Path(job.root)
    with told_as_store_errors(root), store_lock(job.root):
        job.check_own()
        end_before, end = _write_new_log(write, tasks)
        names = ["commitlog", *_dispatch(write, runner)]
        add_topics(job.root, queue_counts(queue for task in tasks for queue in task.queues), job.now_ms)
        shutil.rmtree(job.pieces)  # what is deleted before it is flushed never goes to the disk
        publish(job.work, root, names, _DERIVED if write.options.overwrite else ())
    messages = sum(piece.row_count for task in tasks for piece in task.pieces)
    return WriteReport(messages, end_before, end, round(time.perf_counter() - begin, 3))


def _write_new_log(write: LogWrite, tasks: Sequence[WrittenTask]) -> tuple[int, int]:
    """Make ``new/commitlog``; physical offsets of its new part's begin and end."""
    options, file_bytes = write.options, write.file_bytes
    directory = write.job.work / "new" / "commitlog"
    directory.mkdir()
    workers = len(os.sched_getaffinity(0))
    segments = [] if options.overwrite else log_segments(options.root)
    log_file_bytes(segments, file_bytes)
    end = log_end(segments, file_bytes)
    segments = [segment for segment in segments if segment.start_offset < end.physical_offset]  # else made ahead, empty
    if segments:
        _link_old(Path(options.root) / "commitlog", directory, segments, end.physical_offset)
    elif options.keep_offsets:
        end = _kept_begin(tasks, file_bytes)
    writer = LogWriter(directory, end, file_bytes, keep_offsets=options.keep_offsets)
    known = {} if options.overwrite else queue_ends(options.root, segments, end.physical_offset, workers)
    writer.write(tasks, known)
    if not any(directory.iterdir()):  # no rows at all: an empty log, and not none
        with (directory / paths.segment_name(end.physical_offset)).open("xb") as file:
            file.truncate(file_bytes)
    return end.physical_offset, writer.end.physical_offset


def _kept_begin(tasks: Sequence[WrittenTask], file_bytes: int) -> LogEnd:
    """Where a log begins whose records keep their offsets: with a file."""
    first = min((piece.first_key for task in tasks for piece in task.pieces if piece.is_sorted), default=0)
    begin = first // file_bytes * file_bytes
    return LogEnd(begin, begin)


def _link_old(old: Path, new: Path, segments: list[Segment], end: int) -> None:
    """Take over the old files: all that the write leaves as they are by a link, the last one as a copy.

    Args:
        old: the old log's directory.
        new: the new one's.
        segments: the old files that begin before the log's end; those behind it are not taken over.
        end: the log's end, a physical offset.
    """
    last = Path(segments[-1].path)
    for path in old.iterdir():
        start = paths.parse_segment_name(path.name)
        if path != last and (start is None or start < end):
            os.link(path, new / path.name)
    with last.open("rb") as source, (new / last.name).open("xb") as target:
        left = end - segments[-1].start_offset
        while left:
            copied = os.copy_file_range(source.fileno(), target.fileno(), left)
            if not copied:
                raise StoreError(f"{last}: shrank while it was copied")
            left -= copied
        target.truncate(segments[-1].size_bytes)


def _dispatch(write: LogWrite, runner: Runner) -> list[str]:
    """Have ConsumeQueue and Index rebuilt beside the new log; the names of their directories."""
    if write.options.dispatch is None:
        return []
    new = write.job.work / "new"
    rebuild_store(str(new), None, write.options.dispatch, runner)
    return [name for name in ("consumequeue", "consumequeue_ext", "index") if (new / name).is_dir()]
