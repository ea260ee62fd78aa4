"""Opens what a store was left as: finds the end of the log, and has queues and Index say what it says.

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
from typing import TYPE_CHECKING

from rmq_core.store.config import StoreConfig
from rmq_core.store.disk import Disk
from rmq_core.store.dispatch import Dispatch
from rmq_core.store.index import Index
from rmq_core.store.log import CommitLog, LogFile, list_log_files
from rmq_core.store.quarantine import Quarantine
from rmq_core.store.queues import QueueTable
from rmq_core.store.recovery_plan import Plan, Planner
from rmq_core.store.watermark import Marks, Watermark
from rmq_formats.damage import Damage
from rmq_formats.errors import StoreSizeError
from rmq_formats.paths import abort_file

if TYPE_CHECKING:
    from rmq_core.store.log_scan import LogScan


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What an opening found and did.

    Attributes:
        is_new: there was no log.
        is_clean: the store was shut down in order.
        is_trusted: the watermark held; else the original, or someone, had worked on the store.
        begin_offset: physical offset where reading began.
        end_offset: physical offset of the next record.
        record_count: sound records read.
        unit_count: units written.
        damages: stretches that sound records follow.
        tail: stretches that none follows; they were thrown away.
        quarantined: copies of these, where they were below what had been flushed, and of those.
        rebuilt: all queues and the Index were made anew.
        missing_files: physical offsets at which a CommitLog file lacks.
        displaced: units left out because of an impossible queue offset.
        seconds: how long it took.
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
    """One opening of a store."""

    def __init__(
        self,
        config: StoreConfig,
        disk: Disk,
        log: CommitLog,
        queues: QueueTable,
        index: Index | None,
        dispatch: Dispatch,
        marks: Marks,
        dropped_topics: dict[str, int],
        now_ms: int,
    ) -> None:
        """Prepare.

        Args:
            config: the store's settings.
            disk: where it is.
            log: to be opened.
            queues: likewise.
            index: likewise; None without.
            dispatch: writes what lacks.
            marks: what was left.
            dropped_topics: see ``UnitWriter``; those of another log are thrown out.
            now_ms: the time.
        """
        self._config = config
        self._dropped_topics = dropped_topics
        self._disk = disk
        self._log = log
        self._queues = queues
        self._index = index
        self._dispatch = dispatch
        self._marks = marks
        self._now_ms = now_ms
        self._quarantine = Quarantine(config.root, disk)
        self._files: list[LogFile] = []

    def run(self) -> RecoveryReport:
        """Recover; log, queues, Index and dispatch are ready afterwards, and the log's files forced.

        Raises:
            StoreSizeError: files of another size than the settings say.
            OSError: the disk is full or broken.
        """
        crashed = Path(abort_file(self._config.root)).exists()
        self._files = self._find_files()
        watermark = self._marks.trusted()
        is_clean = not crashed and (watermark is None or watermark.clean)
        self._write_abort()
        try:
            return self._recover(watermark, crashed=crashed, is_clean=is_clean)
        except StoreSizeError:
            if not crashed:  # nothing has been done yet
                self._disk.remove(abort_file(self._config.root))
            raise

    def _recover(self, watermark: Watermark | None, *, crashed: bool, is_clean: bool) -> RecoveryReport:
        began = time.perf_counter()
        end = self._files[-1].start + self._files[-1].size if self._files else 0
        for topic in [topic for topic, offset in self._dropped_topics.items() if offset > end]:
            del self._dropped_topics[topic]  # of another log, which was here before
        if not self._files:
            self._begin_new()
            return RecoveryReport(is_new=True, is_clean=is_clean, seconds=time.perf_counter() - began)
        missing = tuple(
            before.start + before.size
            for before, after in zip(self._files, self._files[1:], strict=False)
            if before.start + before.size != after.start
        )
        planner = Planner(self._config, self._files, self._queues, self._index, self._marks)
        plan = None if watermark is None else planner.by_watermark(watermark, is_clean)
        is_trusted = plan is not None
        if plan is None:
            plan = planner.by_checkpoint(crashed)
        before = self._queues.unit_total
        if plan.resume.restart:
            self._dispatch.writer.restart()
        scan = self._scan(plan)
        quarantined = self._settle(scan, plan)
        return RecoveryReport(
            is_clean=is_clean, is_trusted=is_trusted, begin_offset=plan.start, end_offset=scan.end,
            record_count=scan.record_count, unit_count=self._queues.unit_total - before, damages=tuple(scan.damages),
            tail=tuple(scan.tail), quarantined=quarantined, rebuilt=plan.resume.restart, missing_files=missing,
            displaced=self._dispatch.writer.displaced, seconds=time.perf_counter() - began,
        )  # fmt: skip

    def _write_abort(self) -> None:
        path = Path(abort_file(self._config.root))
        path.write_text(str(os.getpid()), encoding="ascii")
        self._disk.sync_directory(self._config.root)

    def _find_files(self) -> list[LogFile]:
        """The log's files; one whose making was interrupted gets its size."""
        config = self._config
        found = list_log_files(config.commitlog_path)
        if found and found[-1][2] == 0:
            self._disk.remove(found.pop()[0])
        for number, (path, start, size) in enumerate(found):
            is_cut = size == 0 or (number == len(found) - 1 and size < config.commitlog_file_bytes)
            if start % config.commitlog_file_bytes or not (is_cut or size == config.commitlog_file_bytes):
                raise StoreSizeError(
                    f"{path}: has {size} bytes, but mappedFileSizeCommitLog is {config.commitlog_file_bytes}"
                )
            if is_cut:
                descriptor = self._disk.open(path)
                os.ftruncate(descriptor, config.commitlog_file_bytes)
                self._disk.close(descriptor)
        return [LogFile(path, start, config.commitlog_file_bytes, self._disk) for path, start, _ in found]

    def _begin_new(self) -> None:
        """Without a log there is nothing that queues and Index could say. Source: ``recoverNormally``."""
        for changed in self._disk.make_directory(self._config.commitlog_path):
            self._disk.sync_directory(changed)
        self._queues.load(None)
        self._queues.clear()
        if self._index is not None:
            self._index.load()
            self._index.remove_from(0)
        self._log.adopt([], 0)

    def _scan(self, plan: Plan) -> "LogScan":
        from rmq_core.store.log_scan import LogScan  # noqa: PLC0415 # numba, which a new store need not wait for

        scan = LogScan(
            self._files, lambda batch: self._dispatch.feed(batch, plan.resume), flushed_until=plan.flushed_until,
            verify_crc=self._config.check_crc_on_recover,
        )  # fmt: skip
        scan.run(plan.start)
        return scan

    def _settle(self, scan: "LogScan", plan: Plan) -> tuple[str, ...]:
        """Cut the log, bury the damage, and have queues and Index agree."""
        quarantined = []
        touched = {self._file_of(damage): damage for damage in scan.damages}
        for damage in scan.damages:
            file = self._file_of(damage)
            quarantined.append(self._quarantine.keep(file, damage, self._now_ms))
            self._quarantine.bury(file, damage, scan.timestamp_ms or self._now_ms)
        for damage in scan.tail:
            if damage.physical_offset < plan.flushed_until and damage.size > 0:
                quarantined.append(self._quarantine.keep(self._file_of(damage), damage, self._now_ms))
        self._cut_log(scan)
        for file in self._files:
            if file in touched or file.start + file.size > min(plan.flushed_until, scan.end):
                self._disk.sync(file.descriptor)
        self._log.adopt(self._files, scan.end)
        self._dispatch.offset = scan.end
        self._dispatch.timestamp_ms = scan.timestamp_ms or self._marks.checkpoint.logics_msg_timestamp_ms
        self._cut_queues(scan)
        if self._index is not None:
            self._index.cut(scan.end, self._log.store_timestamp_ms)
        self._dispatch.note()
        return tuple(quarantined)

    def _file_of(self, damage: Damage) -> LogFile:
        return next(file for file in reversed(self._files) if file.start <= damage.physical_offset)

    def _cut_log(self, scan: "LogScan") -> None:
        """Remove the files behind the end, and make zeros of what stands behind it in the last."""
        end = scan.end
        for file in [file for file in self._files if file.start > end]:
            file.release()
            self._disk.remove(file.path)
            self._files.remove(file)
        self._disk.sync_directory(self._config.commitlog_path)
        last = self._files[-1]
        if scan.data_end(last) > end - last.start:
            self._disk.zero(last.descriptor, end - last.start, last.size)

    def _cut_queues(self, scan: "LogScan") -> None:
        log_min = self._log.min_offset
        for queue in self._queues:
            if queue.last_end() > scan.end:
                queue.trim(queue.find_physical(scan.end, queue.first_stored))
            for damage in scan.damages:
                begin = queue.find_physical(damage.physical_offset, queue.first_stored)
                queue.blank(begin, queue.find_physical(damage.physical_offset + damage.size, begin))
            queue.correct_min(log_min)
        self._queues.count_units()
