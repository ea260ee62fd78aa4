"""Recovers a store when it is opened: finds the end of the log, and makes ConsumeQueues and Index agree with it.

Where the watermark can be trusted, only what came after it is read; else the original's rules tell from
where on (``DefaultMessageStore#recover``, ``CommitLog#recoverNormally``, ``#recoverAbnormally``), with
three differences. Records that begin exactly where the last unit's record ends get their units. The Index
is completed, too. And damage that sound records follow is quarantined, where the original cuts the log.

A recovery that is interrupted can be done again; one after a complete one changes nothing.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_core.store.commitlog.log import LogFile, list_log_files
from rmq_core.store.files.watermark import Watermark
from rmq_core.store.parts import StoreParts
from rmq_core.store.recovery.plan import RecoveryPlan, RecoveryPlanner
from rmq_formats.codecs.paths import abort_file
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.errors import StoreLayoutError, StoreSizeError

if TYPE_CHECKING:
    from rmq_core.store.recovery.scan import RecoveryScan
    from rmq_formats.scan.segment import FrameBatch

_WRITTEN_AT_ONCE: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Findings and actions of a store's recovery.

    Attributes:
        is_new: there was no log.
        is_trusted: the watermark held; else another program, such as the original, has changed the store since.
        begin_offset: physical offset where reading began.
        end_offset: physical offset of the next record.
        record_count: sound records read.
        unit_count: units written.
        tail: damaged ranges at the end of the log, which were cut off.
        quarantined: paths of the copies of ``damages``, and of what of ``tail`` was below the flushed offset.
        rebuilt: all queues and the Index were made anew.
        missing_files: physical offsets at which a CommitLog file is missing.
        displaced: units left out because of an impossible queue offset.
    """

    is_new: bool = False
    is_clean: bool = False
    is_trusted: bool = False
    begin_offset: int = 0
    end_offset: int = 0
    record_count: int = 0
    unit_count: int = 0
    damages: tuple[Damage, ...] = ()
    tail: tuple[Damage, ...] = ()
    quarantined: tuple[str, ...] = ()
    rebuilt: bool = False
    missing_files: tuple[int, ...] = ()
    displaced: int = 0
    seconds: float = 0.0


class Recovery:
    """The recovery of one store while it is opened."""

    def __init__(self, parts: StoreParts, now_ms: int) -> None:
        self._parts = parts
        self._config = parts.config
        self._disk = parts.disk
        self._log = parts.log
        self._queues = parts.queues
        self._index = parts.index
        self._dispatch = parts.dispatch
        self._checkpoint_files = parts.checkpoint_files
        self._now_ms = now_ms
        self._quarantine = parts.quarantine
        self._files: list[LogFile] = []

    def run(self) -> RecoveryReport:
        """Recover; log, ConsumeQueues, Index and dispatch are ready afterwards, and the log's files flushed.

        Raises:
            StoreSizeError: files of another size than the settings say.
            StoreLayoutError: records that belong into queues of another layout.
            OSError: the disk is full or broken.
        """
        crashed = Path(abort_file(self._config.root)).exists()
        self._files = self._find_files()
        watermark = self._checkpoint_files.trusted()
        is_clean = not crashed and (watermark is None or watermark.clean)
        self._write_abort()
        try:
            return self._recover(watermark, crashed=crashed, is_clean=is_clean)
        except (StoreSizeError, StoreLayoutError):
            if not crashed:  # nothing has been changed yet that a stopped broker would not leave
                self._disk.remove(abort_file(self._config.root))
            raise

    def _recover(self, watermark: Watermark | None, *, crashed: bool, is_clean: bool) -> RecoveryReport:
        began = time.perf_counter()
        if not self._files:
            self._queues.deleted_topics.clear()
            self._begin_new()
            return RecoveryReport(is_new=True, is_clean=is_clean, seconds=time.perf_counter() - began)
        missing = tuple(
            before.start + before.size
            for before, after in zip(self._files, self._files[1:], strict=False)
            if before.start + before.size != after.start
        )
        planner = RecoveryPlanner(self._parts, self._files)
        plan = None if watermark is None else planner.by_watermark(watermark, is_clean)
        is_trusted = plan is not None
        if plan is None:
            plan = planner.by_checkpoint(crashed)
        before = self._queues.unit_total
        if plan.resume.restart:
            self._dispatch.writer.restart()
        scan = self._scan(plan)
        quarantined = self._apply_plan(scan, plan)
        return RecoveryReport(
            is_clean=is_clean, is_trusted=is_trusted, begin_offset=plan.start, end_offset=scan.end,
            record_count=scan.record_count, unit_count=self._queues.unit_total - before, damages=tuple(scan.damages),
            tail=tuple(scan.tail), quarantined=quarantined, rebuilt=plan.resume.restart, missing_files=missing,
            displaced=self._dispatch.writer.displaced, seconds=time.perf_counter() - began,
        )  # fmt: skip

    def _write_abort(self) -> None:
        self._disk.write_file(abort_file(self._config.root), str(os.getpid()).encode())
        self._disk.sync_directory(self._config.root)

    def _find_files(self) -> list[LogFile]:
        """Find the log's files; one whose creation was interrupted gets its full size."""
        config = self._config
        segments = list_log_files(config.commitlog_path)
        if segments and segments[-1][2] == 0:
            self._disk.remove(segments.pop()[0])
        for number, (path, start, size) in enumerate(segments):
            is_cut = size == 0 or (number == len(segments) - 1 and size < config.commitlog_file_bytes)
            if start % config.commitlog_file_bytes or not (is_cut or size == config.commitlog_file_bytes):
                raise StoreSizeError(
                    f"{path}: has {size} bytes, but mappedFileSizeCommitLog is {config.commitlog_file_bytes}"
                )
            if is_cut:
                descriptor = self._disk.open(path)
                self._disk.truncate(descriptor, config.commitlog_file_bytes)
                self._disk.close(descriptor)
        return [LogFile(path, start, config.commitlog_file_bytes, self._disk) for path, start, _ in segments]

    def _begin_new(self) -> None:
        """Remove queues and Index: without a log they can refer to nothing. Source: ``recoverNormally``."""
        self._disk.make_durable_directory(self._config.commitlog_path)
        self._queues.load(None)
        self._queues.clear()
        if self._index is not None:
            self._index.load()
            self._index.remove_from(0)
        self._log.adopt([], 0)

    def _scan(self, plan: RecoveryPlan) -> "RecoveryScan":
        from rmq_core.store.dispatch.queue_merge import QueueMerge  # noqa: PLC0415 # numba, see ``kernel_loading``
        from rmq_core.store.recovery.scan import RecoveryScan  # noqa: PLC0415

        writer, resume = self._dispatch.writer, plan.resume
        writer.note_lost(self._quarantine.find_overwritten(self._files))
        if resume.merges:
            resume.merge = QueueMerge(self._queues, writer, max(resume.units_from, self._files[0].start))

        def feed(batch: "FrameBatch") -> None:
            writer.note_lost(scan.damages)
            self._dispatch.feed(batch, resume)

        scan = RecoveryScan(
            self._files, feed, flushed_until=plan.flushed_until, verify_crc=self._config.check_crc_on_recover,
            is_slave=self._config.slave,
        )  # fmt: skip
        scan.run(plan.start)
        writer.note_lost(scan.damages)
        if resume.merge is not None:
            resume.merge.finish(scan.end)
        return scan

    def _apply_plan(self, scan: "RecoveryScan", plan: RecoveryPlan) -> tuple[str, ...]:
        """Quarantine damaged ranges, cut the log, and cut queues and Index to match."""
        quarantined, overwritten_at, timestamp_ms = [], -1, scan.timestamp_ms or self._now_ms
        touched = {self._file_of(damage): damage for damage in scan.damages}
        for damage in scan.damages:
            file = self._file_of(damage)
            quarantined.append(self._quarantine.copy(file, damage, self._now_ms))
            if self._quarantine.overwrite_with_tombstones(file, damage, timestamp_ms):
                overwritten_at = damage.physical_offset
        for damage in scan.tail:
            if damage.physical_offset < plan.flushed_until and damage.size > 0:
                quarantined.append(self._quarantine.copy(self._file_of(damage), damage, self._now_ms))
        self._cut_log(scan)
        self._write_again(plan.unproven_from, scan.end)
        for file in self._files:
            if file in touched or file.start + file.size > min(plan.flushed_until, scan.end):
                self._disk.sync(file.descriptor)
        self._log.adopt(self._files, scan.end)
        self._dispatch.offset = scan.end
        self._dispatch.timestamp_ms = scan.timestamp_ms or self._checkpoint_files.checkpoint.logics_msg_timestamp_ms
        self._cut_queues(scan)
        if self._index is not None:
            self._index.cut(scan.end, self._log.store_timestamp_ms)
            if overwritten_at >= 0:  # a rebuild meets a record without a key there
                self._index.pass_over(overwritten_at, timestamp_ms)
        self._dispatch.note()
        return tuple(quarantined)

    def _write_again(self, begin: int, end: int) -> None:
        """Write a part of the log that has not been forced for certain again, as it is.

        After an fsync that failed, the kernel counts the pages that it could not write as written: what is read
        here may be in memory alone, and an fsync would succeed without it.
        """
        for file in self._files:
            for at in range(max(begin - file.start, 0), min(end - file.start, file.size), _WRITTEN_AT_ONCE):
                size = min(_WRITTEN_AT_ONCE, end - file.start - at, file.size - at)
                self._disk.write(file.descriptor, self._disk.read(file.descriptor, size, at), at)

    def _file_of(self, damage: Damage) -> LogFile:
        return next(file for file in reversed(self._files) if file.start <= damage.physical_offset)

    def _cut_log(self, scan: "RecoveryScan") -> None:
        """Remove the files after the log's end, and fill the rest of the last file with zeros."""
        end = scan.end
        for file in [file for file in self._files if file.start > end]:
            file.release()
            self._disk.remove(file.path)
            self._files.remove(file)
        self._disk.sync_directory(self._config.commitlog_path)
        last = self._files[-1]
        if scan.data_end(last) > end - last.start:
            self._disk.zero(last.descriptor, end - last.start, last.size)

    def _cut_queues(self, scan: "RecoveryScan") -> None:
        log_min = self._log.min_offset
        for queue in self._queues:
            if queue.last_end() > scan.end:
                queue.trim(queue.find_physical(scan.end, queue.first_stored))
            queue.trim_empty_files()
            for damage in scan.damages:
                begin = queue.find_physical(damage.physical_offset, queue.first_stored)
                queue.blank(begin, queue.find_physical(damage.physical_offset + damage.size, begin))
            queue.correct_min(log_min)
        self._queues.count_units()
