"""First task batch of a verification: each task scans one split, checks its records, spills units and keys."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

import numpy as np

from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.errors import RmqError
from rmq_formats.kernels import dispatch as dispatch_kernel
from rmq_formats.scan.dispatch import Dispatcher, drop_light_units, with_store_times
from rmq_formats.scan.splits import Split, split_frames
from rmq_formats.storage.segments import open_storage
from rmq_offline.tasks import spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.work_area import WorkArea
from rmq_offline.tasks.work_files import read_longs, write_longs
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.commitlog import LogCheck
from rmq_offline.verify.dledger_entries import EntrySpan, check_entry_boundary
from rmq_offline.verify.findings import Finding, FindingList
from rmq_offline.verify.log_facts import Longs
from rmq_offline.verify.timestamps import Moment, check_boundary, pack_moments, unpack_moments

MAX_MARKS: Final = 200  # damaged ranges of a split that the map shows


@dataclass(frozen=True, slots=True)
class SplitCheck:
    """Result of checking one split; counts and sizes of records are of sound ones.

    Attributes:
        begin_physical_offset: offset of the first frame.
        end_physical_offset: offset at which the walk ended: the first frame of the next split.
        key_count: number of Index entries of the records.
        last_physical_offset: offset of the last record; -1 without a record.
        blank_at: physical offset of the file's end mark, if it is in the split.
        marks: (physical offset, size) of the first damaged ranges.
        open_damage: the damaged range at the end of the segment.
        open_finding: the finding about ``open_damage``, if more of the log follows.
        head: offsets and store timestamps of the first records, by ``pack_moments``; ``tail`` of the last.
        latest_ms: the latest store timestamp; -1 without a record.
        failed: whether the split could not be read to its end.
        light_topics: topics whose messages were put into light queues (LMQ) too.
        batch_topics: topics with inner batches, and so with a BatchConsumeQueue.
        entries: entries of a DLedger log; None in a segment of ``commitlog``.
        findings: None without findings, since a driver has a million results in memory.
    """

    split: Split
    begin_physical_offset: int
    end_physical_offset: int
    message_count: int
    record_bytes: int
    key_count: int
    last_physical_offset: int
    largest_record_bytes: int
    blank_at: int | None
    damage_count: int
    damaged_bytes: int
    marks: tuple[tuple[int, int], ...]
    open_damage: Damage | None
    open_finding: Finding | None
    head: bytes
    tail: bytes
    latest_ms: int
    failed: bool
    light_topics: tuple[str, ...]
    batch_topics: tuple[str, ...]
    entries: EntrySpan | None
    findings: FindingList | None


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of the scan of each split.

    Attributes:
        partitions: number of partitions of the queues.
        to_light_queues: whether the broker has light queues (LMQ), so that records have units there too.
        has_database: whether queues are in a database, where a light unit has its record's store time.
        batch_topics: topics whose queues are BatchConsumeQueues; their records have no units in light queues.
    """

    sizes: StoreSizes
    partitions: int
    to_light_queues: bool
    has_database: bool
    batch_topics: frozenset[str]


def check_split(split: Split, options: ScanOptions, work: WorkArea, *, begin: int | None = None) -> SplitCheck:
    """Task: check one split; write its units, keys and damaged ranges to the work directory.

    Args:
        begin: file position of the split's first frame; None searches it.
    """
    findings = FindingList()
    sizes = options.sizes
    dispatcher = Dispatcher(
        sizes.delay_levels_ms, split.size_bytes, tags_from=sizes.tags_from, to_light_queues=options.to_light_queues
    )
    start = split.file_offset + (split.start if begin is None else begin)
    first, end, last, failed, check, entries = -1, start, -1, False, None, None
    storage, path = open_storage(split.path)
    try:
        with (
            storage.open(path) as file,
            closing(LogCheck(storage, split.path, file, split.file_offset, split.head_bytes, findings)) as check,
        ):
            for batch in split_frames(file, split, begin=begin):
                first = batch.begin_physical_offset if first < 0 else first
                end = batch.next_physical_offset
                check.add(batch)
                dispatcher.dispatch(batch)
                if len(batch.frames):
                    last = batch.physical_offset + int(batch.frames[-1, 0])
            check.finish(is_end=end >= split.file_offset + split.data_end)
            entries = check.finish_entries()
            open_finding = check.make_damage_finding(check.open_damage) if check.open_damage else None
    except (RmqError, OSError) as error:
        failed, open_finding = True, None
        kind, size = finding_kinds.SEGMENT_UNREADABLE, split.file_offset + split.limit - end
        findings.report(kind, str(error), split.path, physical_offset=end, size=size)
    units, keys = dispatcher.drain()
    names, file_name = dispatcher.queue_names(), f"{split.number:06d}.arrow"
    units = drop_light_units(units, names, options.batch_topics)
    if options.has_database:
        units = with_store_times(units)
    work.write(f"spill/units-{file_name}", lambda target: spill.write_units(target, units, names, options.partitions))
    spill.spill_batches(work, split.number, dispatcher.inner_batches())
    work.write(f"spill/keys-{file_name}", lambda target: spill.write_keys(target, keys))
    damages = [] if check is None else list(check.damages)
    if failed:
        damages.append(Damage(end, split.file_offset + split.limit - end, DamageCode.TRUNCATED))
    if damages:
        ranges = [(item.physical_offset, item.physical_offset + item.size) for item in damages]
        rows = np.array(ranges, dtype=np.int64).reshape(-1)
        write_longs(work, f"spill/damages-{split.number:06d}.msgpack", rows=rows)
    times = None if check is None else check.times
    return SplitCheck(
        split=split,
        begin_physical_offset=first,
        end_physical_offset=end,
        message_count=dispatcher.message_count,
        record_bytes=dispatcher.record_bytes,
        key_count=len(keys),
        last_physical_offset=last,
        largest_record_bytes=0 if check is None else check.largest_record_bytes,
        blank_at=None if check is None else check.blank_at,
        damage_count=len(damages),
        damaged_bytes=sum(damage.size for damage in damages),
        marks=tuple((damage.physical_offset, damage.size) for damage in damages[:MAX_MARKS]),
        open_damage=None if check is None or failed else check.open_damage,
        open_finding=open_finding,
        head=b"" if times is None else pack_moments(times.head),
        tail=b"" if times is None else pack_moments(times.tail),
        latest_ms=-1 if times is None else times.latest_ms,
        failed=failed,
        light_topics=dispatcher.marked_topics(dispatch_kernel.MARK_LIGHT),
        batch_topics=dispatcher.marked_topics(dispatch_kernel.MARK_BATCH),
        entries=entries,
        findings=findings if findings.counts else None,
    )


def read_damages(work: WorkArea, checks: Sequence[SplitCheck]) -> Iterator[Longs]:
    """Read the damaged ranges of splits in log order, int64[n, 2] each: begin and end."""
    for check in checks:
        if check.damage_count:
            yield read_longs(work, f"spill/damages-{check.split.number:06d}.msgpack")["rows"].reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class SegmentState:
    """State of one CommitLog file, merged from its splits.

    Attributes:
        start_offset: physical offset of the first byte.
        data_bytes: up to the last byte that is not zero.
        message_count: number of sound records.
        marks: (physical offset, size) of the first damaged ranges.
    """

    path: str
    start_offset: int
    size_bytes: int
    data_bytes: int
    message_count: int
    damage_count: int
    damaged_bytes: int
    marks: tuple[tuple[int, int], ...]


def merge_segment_states(checks: Sequence[SplitCheck]) -> list[SegmentState]:
    """Merge the results of splits to the states of their files."""
    states: list[SegmentState] = []
    for check in checks:
        split = check.split
        if not states or states[-1].path != split.path:
            states.append(SegmentState(split.path, split.file_offset, split.file_bytes, split.data_end, 0, 0, 0, ()))
        before = states[-1]
        states[-1] = replace(
            before,
            message_count=before.message_count + check.message_count,
            damage_count=before.damage_count + check.damage_count,
            damaged_bytes=before.damaged_bytes + check.damaged_bytes,
            marks=(before.marks + check.marks)[:MAX_MARKS],
        )
    return states


def check_whole_log(checks: Sequence[SplitCheck]) -> Iterator[Finding]:
    """Find the faults that need the whole log: how each file ends, and store timestamps that go back between splits."""
    with_data = [check for check in checks if check.split.data_end > 0]
    tail: Sequence[Moment] = ()
    for check in with_data:
        if check.head:
            time_findings = check_boundary(tail, unpack_moments(check.head), loose=check.split.head_bytes > 0)
            yield from (replace(finding, path=check.split.path) for finding in time_findings)
            tail = unpack_moments(check.tail)
    yield from (replace(finding, path=with_data[-1].split.path) for finding in check_boundary(tail, ()) if with_data)
    files = [list(file_checks) for _, file_checks in groupby(with_data, key=lambda check: check.split.path)]
    for file_checks in files:
        yield from _end_findings(file_checks, is_last=file_checks is files[-1])
    yield from _hole_findings(checks)
    yield from _entry_findings(checks)


def _entry_findings(checks: Sequence[SplitCheck]) -> Iterator[Finding]:
    """Check that the entries of each split continue the entries of the split before."""
    before: EntrySpan | None = None
    is_damaged = False
    for check in checks:
        after = check.entries
        if after is None or after.first_index < 0:
            is_damaged |= check.split.head_bytes > 0 and (check.damage_count > 0 or check.failed)
            continue
        if before is not None:
            after_damage = is_damaged or after.begins_after_damage
            yield from check_entry_boundary(before, after, check.split.path, after_damage=after_damage)
        before, is_damaged = after, check.failed or check.open_damage is not None


def _end_findings(checks: Sequence[SplitCheck], *, is_last: bool) -> Iterator[Finding]:
    """Check how a file ends, by all its splits: damage at its end may begin in an early one, and fill the others."""
    split = checks[-1].split
    blank_at = checks[-1].blank_at
    torn = next((check for check in reversed(checks) if check.open_damage is not None), None)
    if blank_at is not None:
        blank_end = blank_at - split.file_offset + 8
        if split.data_end > blank_end:
            detail = "bytes that are not zero after the file's end mark"
            at = split.file_offset + blank_end
            yield Finding(finding_kinds.LOG_AFTER_BLANK, detail, split.path, at, split.data_end - blank_end)
    elif torn is not None and torn.open_damage is not None and torn.open_finding is not None:
        if is_last and torn.open_damage.code is not DamageCode.PHYSICAL_OFFSET:
            detail = f"bytes after the last record: {torn.open_damage.code.text}"
            yield replace(torn.open_finding, kind=finding_kinds.LOG_TAIL, detail=detail)
        else:
            yield torn.open_finding
    elif not is_last and not any(check.failed for check in checks):
        at = checks[-1].end_physical_offset
        yield Finding(finding_kinds.LOG_NO_BLANK, "no end mark after the file's last record", split.path, at)


def find_unended_ranges(checks: Sequence[SplitCheck]) -> list[tuple[int, int]]:
    """Return the lost ranges of files without an end mark before other files: from the walk's end to the file's end."""
    with_data = [check for check in checks if check.split.data_end > 0]
    files = [list(file_checks)[-1] for _, file_checks in groupby(with_data, key=lambda check: check.split.path)]
    return [
        (last.end_physical_offset, last.split.file_offset + last.split.file_bytes)
        for last in files[:-1]
        if last.blank_at is None
    ]


def _hole_findings(checks: Sequence[SplitCheck]) -> Iterator[Finding]:
    used = [number for number, check in enumerate(checks) if check.split.data_end > 0]
    for number in range(used[-1] if used else 0):
        split = checks[number].split
        if split.data_end == 0 and split.file_bytes > 0:
            detail = "nothing but zeros, and files with records after it"
            yield Finding(finding_kinds.SEGMENT_HOLE, detail, split.path, split.file_offset, split.file_bytes)


def find_last_timestamp_ms(checks: Sequence[SplitCheck]) -> int | None:
    """Return the store timestamp of the log's last record; None in an empty log."""
    tails = (unpack_moments(check.tail) for check in reversed(checks))
    return next((tail[-1].timestamp_ms for tail in tails if tail), None)


def checked_log_end(checks: Sequence[SplitCheck]) -> int:
    """Return one past the last byte of the log that was checked; of a file that has ended, one past the file."""
    for check in reversed(checks):
        if check.split.data_end > 0:
            has_ended = check.blank_at is not None
            return check.split.file_offset + check.split.file_bytes if has_ended else check.end_physical_offset
    return checks[0].split.file_offset if checks else 0
