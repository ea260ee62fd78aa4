"""Writes a store out of rows: tasks encode them beside it, a commit gives them their places and publishes all.

- ``begin_write`` refuses what can be refused, before anything is written.
- ``write_pieces`` of ``write_piece`` is the task.
- ``commit_write`` continues the log, or makes a new one, in a directory beside it, has the queues and the Index
  rebuilt there if asked to, and puts the new directories in the place of the old ones.

Killed at any instant, the store has the old log or the new one. What a killed write leaves is cleared by the next.
"""

import json
import os
import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from rmq_formats import paths
from rmq_formats.arrow_encode import EncodeOptions
from rmq_formats.errors import OptionError, StoreError
from rmq_formats.kernels import encode_rows
from rmq_formats.layout import BLANK_BYTES, RECORD_FIXED_BYTES_V1
from rmq_formats.offline.lock import store_lock
from rmq_formats.offline.publish import clear_work, finish_publishing, publish
from rmq_formats.offline.rebuild import RebuildOptions
from rmq_formats.offline.rebuild_store import check_rebuild, check_sizes, rebuild_store
from rmq_formats.offline.runner import ProcessRunner
from rmq_formats.offline.write_end import log_end, log_file_bytes, log_segments, queue_ends
from rmq_formats.offline.write_piece import WrittenTask
from rmq_formats.offline.write_place import LogEnd, LogWriter
from rmq_formats.offline.write_topics import add_topics, queue_counts, read_topics
from rmq_formats.segment import Segment

WORK_DIRECTORY: Final = ".rmq-write"  # below the store's root
_NOTE: Final = "write.json"
_MAX_FILE_BYTES: Final = (1 << 31) - 1  # mappedFileSizeCommitLog is a Java int
# What stands beside a log and speaks of it; another log's would lead astray.
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
class WriteJob:
    """A write that has begun.

    Attributes:
        options: ``commitlog_file_bytes`` is set.
        number: tells it from other writes into the store.
        now_ms: when it began; the time of messages that have none.
    """

    options: WriteOptions
    number: str
    now_ms: int

    @property
    def work(self) -> Path:
        """Where all is written until it is published."""
        return Path(self.options.root) / WORK_DIRECTORY

    @property
    def pieces(self) -> Path:
        """Where tasks write."""
        return self.work / f"pieces-{self.number}"

    @property
    def encoding(self) -> EncodeOptions:
        """How rows become records."""
        file_bytes = self.options.commitlog_file_bytes or 0
        return EncodeOptions(self.now_ms, self.options.crc_way, self.options.keep_offsets, file_bytes - BLANK_BYTES)


def begin_write(options: WriteOptions) -> WriteJob:
    """Begin a write: check all that can be checked, and make its directory.

    Raises:
        StoreLockedError: a broker has the store.
        StoreSizeError: sizes that no broker could use, or not the store's.
        StoreError: the store cannot be continued, or not be written to.
        OptionError: options that do not go together.
    """
    segments = _check(options)
    file_bytes = log_file_bytes([] if options.overwrite else segments, options.commitlog_file_bytes)
    if not RECORD_FIXED_BYTES_V1 + BLANK_BYTES <= file_bytes <= _MAX_FILE_BYTES:
        raise OptionError(f"CommitLog files of {file_bytes} bytes: 100 to {_MAX_FILE_BYTES} can be")
    if not options.overwrite:
        log_end(segments, file_bytes)
    job = WriteJob(replace(options, commitlog_file_bytes=file_bytes), uuid.uuid4().hex, int(time.time() * 1000))
    root = Path(options.root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with store_lock(options.root):
            finish_publishing(job.work, root)
            clear_work(job.work, [job.pieces.name, "new"])
            (job.work / _NOTE).write_text(json.dumps({"number": job.number}), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{error.filename or root}: {error.strerror}") from error
    return job


def _check(options: WriteOptions) -> list[Segment]:
    """Refuse a write that cannot be done; the log's files."""
    if "://" in options.root:
        raise OptionError(f"{options.root}: a store is written to a directory; copy it to the object store then")
    root = Path(options.root)
    if root.exists() and not root.is_dir():
        raise StoreError(f"{root}: is no directory")
    if options.dispatch is not None:
        check_sizes(options.dispatch)
    read_topics(options.root)
    if not root.exists():
        return []
    if Path(paths.lock_file(options.root)).exists():
        with store_lock(options.root):
            pass
    segments = log_segments(options.root)
    if options.keep_offsets and segments and not options.overwrite:
        raise OptionError(f"{options.root}: has a log; offsets can be kept only in a new one, with overwrite")
    if options.dispatch is not None and segments and not options.overwrite:
        check_rebuild(options.root, None, options.dispatch)
    return segments


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


def commit_write(job: WriteJob, tasks: Sequence[WrittenTask]) -> WriteReport:
    """Give the records of all tasks their places, and publish the store with them.

    Args:
        job: of ``begin_write``.
        tasks: what they gave, in the order of their rows.

    Raises:
        StoreLockedError: a broker has the store by now.
        StoreError: another write has begun, offsets that cannot be kept, or a disk that is full.
    """
    begin = time.perf_counter()
    root = Path(job.options.root)
    try:
        with store_lock(job.options.root):
            _check_own(job)
            end_before, end = _write_new_log(job, tasks)
            names = ["commitlog", *_dispatch(job)]
            add_topics(job.options.root, queue_counts(queue for task in tasks for queue in task.queues), job.now_ms)
            shutil.rmtree(job.pieces)  # what is deleted before it is flushed never goes to the disk
            if job.options.overwrite:
                _retire_derived(job)
            publish(job.work, root, names)
    except OSError as error:
        raise StoreError(f"{error.filename or root}: {error.strerror or error}") from error
    messages = sum(piece.row_count for task in tasks for piece in task.pieces)
    return WriteReport(messages, end_before, end, round(time.perf_counter() - begin, 3))


def abort_write(job: WriteJob) -> None:
    """Remove what a write has left beside the store, unless another one has begun since."""
    try:
        _check_own(job)
    except StoreError:
        return
    shutil.rmtree(job.work, ignore_errors=True)


def _check_own(job: WriteJob) -> None:
    try:
        note = json.loads((job.work / _NOTE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        note = {}
    if note.get("number") != job.number:
        raise StoreError(f"{job.options.root}: another write into this store has begun since this one did")


def _write_new_log(job: WriteJob, tasks: Sequence[WrittenTask]) -> tuple[int, int]:
    """Make ``new/commitlog``; physical offsets of its new part's begin and end."""
    directory = job.work / "new" / "commitlog"
    directory.mkdir()
    file_bytes = job.encoding.max_record_bytes + BLANK_BYTES
    workers = len(os.sched_getaffinity(0))
    segments = [] if job.options.overwrite else log_segments(job.options.root)
    log_file_bytes(segments, file_bytes)
    end = log_end(segments, file_bytes)
    if segments:
        _link_old(Path(job.options.root) / "commitlog", directory, segments, end.physical_offset)
    elif job.options.keep_offsets:
        end = _kept_begin(tasks, file_bytes)
    writer = LogWriter(directory, end, file_bytes, keep_offsets=job.options.keep_offsets)
    known = {} if job.options.overwrite else queue_ends(job.options.root, segments, workers)
    writer.write(tasks, known)
    if not any(directory.iterdir()):  # no rows at all: an empty log, and not none
        with (directory / paths.segment_name(0)).open("xb") as file:
            file.truncate(file_bytes)
    return end.physical_offset, writer.end.physical_offset


def _kept_begin(tasks: Sequence[WrittenTask], file_bytes: int) -> LogEnd:
    """Where a log begins whose records keep their offsets: with a file."""
    first = min((piece.first_key for task in tasks for piece in task.pieces if piece.is_sorted), default=0)
    begin = first // file_bytes * file_bytes
    return LogEnd(begin, begin)


def _link_old(old: Path, new: Path, segments: list[Segment], end: int) -> None:
    """Take over the old files: all that the write leaves as they are by a link, the last one as a copy."""
    last = Path(segments[-1].path)
    for path in old.iterdir():
        if path != last:
            os.link(path, new / path.name)
    with last.open("rb") as source, (new / last.name).open("xb") as target:
        left = end - segments[-1].start_offset
        while left:
            copied = os.copy_file_range(source.fileno(), target.fileno(), left)
            if not copied:
                raise StoreError(f"{last}: shrank while it was copied")
            left -= copied
        target.truncate(segments[-1].size_bytes)


def _dispatch(job: WriteJob) -> list[str]:
    """Have ConsumeQueue and Index rebuilt beside the new log; the names of their directories."""
    if job.options.dispatch is None:
        return []
    new = job.work / "new"
    rebuild_store(str(new), None, job.options.dispatch, ProcessRunner())
    return [name for name in ("consumequeue", "consumequeue_ext", "index") if (new / name).is_dir()]


def _retire_derived(job: WriteJob) -> None:
    """Take away what speaks of the old log: queues of it beside the new one would lead to other messages."""
    retired = job.work / "retired"
    retired.mkdir()
    for name in _DERIVED:
        path = Path(job.options.root) / name
        if path.exists():
            path.rename(retired / name)
