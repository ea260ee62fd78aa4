"""Recovers a store when it is opened: finds the end of the log, and makes ConsumeQueues and Index agree with it.

With a trusted watermark only later records are read. Else the original's rules decide from where the log is read
(``DefaultMessageStore#recover``, ``CommitLog#recoverNormally``, ``#recoverAbnormally``), with three differences:
records that begin exactly at the end of the last unit's record get units; the Index is completed, too; and damage
before sound records is quarantined, where the original cuts the log.

An interrupted recovery can be repeated; a repeated complete recovery changes nothing.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmq_core.store.commitlog.log import LogFile
from rmq_core.store.files.disk import list_segments
from rmq_core.store.files.watermark import Watermark
from rmq_core.store.parts import StoreParts
from rmq_core.store.recovery.plan import RecoveryPlan, RecoveryPlanner
from rmq_formats.codecs.paths import abort_file
from rmq_formats.codecs.record_frame import Damage
from rmq_formats.errors import StoreLayoutError, StoreSizeError

if TYPE_CHECKING:
    from rmq_core.store.recovery.scan import RecoveryScan
    from rmq_formats.scan.segment import FrameBatch

_WRITE_BLOCK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """Findings and actions of a store's recovery.

    Attributes:
        is_trusted: the watermark was valid; else another program, such as the original, has changed the store since.
        begin_offset: physical offset at which reading began.
        end_offset: physical offset of the next record.
        unit_count: units written.
        tail: damaged ranges at the end of the log, which were cut off.
        quarantined: paths of the copies of ``damages``, and of the flushed parts of ``tail``.
        missing_files: physical offsets at which a CommitLog file is missing.
        displaced: number of units skipped because of an impossible queue offset.
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
        self._dispatch = parts.dispatch
        self._quarantine = parts.quarantine
        self._now_ms = now_ms
        self._files: list[LogFile] = []

    def run(self) -> RecoveryReport:
        """Recover the store: prepare log, ConsumeQueues, Index and dispatch for use, and flush the log's files.

        Raises:
            StoreSizeError: a file has another size than the settings say.
            StoreLayoutError: records that belong into queues of another layout.
        """
        abort_path = abort_file(self._config.root)
        crashed = Path(abort_path).exists()
        self._files = self._find_files()
        watermark = self._parts.checkpoint_files.trusted()
        is_clean = not crashed and (watermark is None or watermark.clean)
        self._disk.write_file(abort_path, str(os.getpid()).encode())
        self._disk.sync_directory(self._config.root)
        try:
            return self._recover(watermark, crashed=crashed, is_clean=is_clean)
        except (StoreSizeError, StoreLayoutError):
            if not crashed:  # the store is still as a stopped broker leaves it
                self._disk.remove(abort_path)
            raise

    def _recover(self, watermark: Watermark | None, *, crashed: bool, is_clean: bool) -> RecoveryReport:
        start_s = time.perf_counter()
        if not self._files:
            self._queues.deleted_topics.clear()
            self._create_log()
            return RecoveryReport(is_new=True, is_clean=is_clean, seconds=time.perf_counter() - start_s)
        neighbours = zip(self._files, self._files[1:], strict=False)
        missing_files = tuple(file.end for file, next_file in neighbours if file.end != next_file.start)
        planner = RecoveryPlanner(self._parts, self._files)
        watermark_plan = None if watermark is None else planner.plan_by_watermark(watermark, is_clean)
        plan = watermark_plan or planner.plan_by_checkpoint(crashed)
        unit_total_before = self._queues.unit_total
        if plan.resume.rewrites_queues:
            self._dispatch.writer.start_rewriting()
        scan = self._scan(plan)
        quarantined = self._apply_plan(scan, plan)
        return RecoveryReport(
            is_clean=is_clean,
            is_trusted=plan is watermark_plan,
            begin_offset=plan.start,
            end_offset=scan.end,
            record_count=scan.record_count,
            unit_count=self._queues.unit_total - unit_total_before,
            damages=tuple(scan.damages),
            tail=tuple(scan.tail),
            quarantined=quarantined,
            rebuilt=plan.resume.rewrites_queues,
            missing_files=missing_files,
            displaced=self._dispatch.writer.displaced,
            seconds=time.perf_counter() - start_s,
        )

    def _find_files(self) -> list[LogFile]:
        """Find the log's files, and extend a file whose creation was interrupted to the full size."""
        file_bytes = self._config.commitlog_file_bytes
        segments = list_segments(self._config.commitlog_path)
        if segments and segments[-1].size == 0:
            self._disk.remove(segments.pop().path)
        for number, (start, path, size) in enumerate(segments):
            is_incomplete = size == 0 or (number == len(segments) - 1 and size < file_bytes)
            if start % file_bytes or not (is_incomplete or size == file_bytes):
                raise StoreSizeError(f"{path}: has {size} bytes, but mappedFileSizeCommitLog is {file_bytes}")
            if is_incomplete:
                descriptor = self._disk.open(path)
                self._disk.truncate(descriptor, file_bytes)
                self._disk.close(descriptor)
        return [LogFile(path, start, file_bytes, self._disk) for start, path, _ in segments]

    def _create_log(self) -> None:
        """Create an empty log, and remove queues and Index. Source: ``recoverNormally``."""
        self._disk.make_durable_directory(self._config.commitlog_path)
        self._queues.load(None)
        self._queues.clear()
        if self._parts.index is not None:
            self._parts.index.load()
            self._parts.index.remove_from(0)
        self._log.adopt([], 0)

    def _scan(self, plan: RecoveryPlan) -> "RecoveryScan":
        from rmq_core.store.dispatch.queue_merge import QueueMerge  # noqa: PLC0415 # numba, see ``kernel_loading``
        from rmq_core.store.recovery.scan import RecoveryScan  # noqa: PLC0415

        writer, resume = self._dispatch.writer, plan.resume
        writer.add_lost_ranges(self._quarantine.find_overwritten(self._files))
        if resume.merges_units:
            resume.merge = QueueMerge(self._queues, writer, max(resume.units_from, self._files[0].start))

        def feed(batch: "FrameBatch") -> None:
            writer.add_lost_ranges(scan.damages)
            self._dispatch.feed(batch, resume)

        scan = RecoveryScan(
            self._files,
            feed,
            flushed_until=plan.flushed_until,
            verify_crc=self._config.check_crc_on_recover,
            is_slave=self._config.slave,
        )
        scan.run(plan.start)
        writer.add_lost_ranges(scan.damages)
        if resume.merge is not None:
            resume.merge.finish(scan.end)
        return scan

    def _apply_plan(self, scan: "RecoveryScan", plan: RecoveryPlan) -> tuple[str, ...]:
        """Quarantine damaged ranges, cut the log, and cut queues and Index to match."""
        quarantine_paths, overwritten_at, timestamp_ms = [], -1, scan.timestamp_ms or self._now_ms
        damaged_files = {self._file_of(damage) for damage in scan.damages}
        for damage in scan.damages:
            file = self._file_of(damage)
            quarantine_paths.append(self._quarantine.copy(file, damage, self._now_ms))
            if self._quarantine.overwrite_with_tombstones(file, damage, timestamp_ms):
                overwritten_at = damage.physical_offset
        for damage in scan.tail:
            if damage.physical_offset < plan.flushed_until and damage.size > 0:
                quarantine_paths.append(self._quarantine.copy(self._file_of(damage), damage, self._now_ms))
        self._cut_log(scan)
        self._rewrite(plan.unproven_from, scan.end)
        for file in self._files:
            if file in damaged_files or file.end > min(plan.flushed_until, scan.end):
                self._disk.sync(file.descriptor)
        self._log.adopt(self._files, scan.end)
        self._dispatch.offset = scan.end
        checkpoint = self._parts.checkpoint_files.checkpoint
        self._dispatch.timestamp_ms = scan.timestamp_ms or checkpoint.logics_msg_timestamp_ms
        self._cut_queues(scan)
        if self._parts.index is not None:
            self._parts.index.cut(scan.end, self._log.store_timestamp_ms)
            if overwritten_at >= 0:  # a rebuild of the Index would read a record without a key there
                self._parts.index.pass_over(overwritten_at, timestamp_ms)
        self._dispatch.publish_progress()
        return tuple(quarantine_paths)

    def _rewrite(self, begin: int, end: int) -> None:
        """Write a range of the log again whose flush is uncertain.

        After a failed fsync the kernel treats the pages that it could not write as clean: the bytes read here may be
        in memory alone, and another fsync would not write them.
        """
        for file in self._files:
            for at in range(max(begin - file.start, 0), min(end - file.start, file.size), _WRITE_BLOCK_BYTES):
                size = min(_WRITE_BLOCK_BYTES, end - file.start - at, file.size - at)
                self._disk.write(file.descriptor, self._disk.read(file.descriptor, size, at), at)

    def _file_of(self, damage: Damage) -> LogFile:
        return next(file for file in reversed(self._files) if file.start <= damage.physical_offset)

    def _cut_log(self, scan: "RecoveryScan") -> None:
        """Remove the files after the log's end, and fill the rest of the last file with zeros."""
        for file in [file for file in self._files if file.start > scan.end]:
            file.release()
            self._disk.remove(file.path)
            self._files.remove(file)
        self._disk.sync_directory(self._config.commitlog_path)
        last = self._files[-1]
        if scan.data_end(last) > scan.end - last.start:
            self._disk.zero(last.descriptor, scan.end - last.start, last.size)

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
