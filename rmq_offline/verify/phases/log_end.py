"""Bounds a verification by the log's end, after which records of an earlier recovery may remain."""

from collections.abc import Sequence

from rmq_formats.codecs import paths
from rmq_formats.read.log_end import Leftovers, count_leftovers, cut_segments, find_leftovers
from rmq_formats.storage.segments import Segment, Storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, FindingList


def bound_by_log_end(
    store: StoreFiles, segments: Sequence[Segment], ends: Sequence[int], findings: FindingList
) -> tuple[list[Segment], list[int]]:
    """Bound segments, and the ends of their data, by the log's end; report the records after that end.

    Args:
        segments: the log's readable files.
        ends: for each segment one past its last data byte, in the file.
    """
    leftovers = find_leftovers(store, segments) if segments else None
    if leftovers is None:
        return list(segments), list(ends)
    findings.add(_finding(store.storage, segments, leftovers))
    cut = cut_segments(segments, leftovers)
    bounds = [end if item.log_bytes is None else min(end, item.log_bytes) for item, end in zip(cut, ends, strict=True)]
    return cut, bounds


def is_log_missing(root: str, segments: Sequence[Segment], has_derived: bool, findings: FindingList) -> bool:
    """Return whether queues or an Index are there, and no log with which to compare them; add the finding of it.

    Args:
        segments: the log's files, also the unreadable ones.
        has_derived: whether the store has queues or IndexFiles.
    """
    if segments or not has_derived:
        return False
    detail = "no CommitLog file, and queues or an Index, which are not compared with anything"
    findings.report(finding_kinds.LOG_MISSING, detail, paths.commitlog_dir(root))
    return True


def _finding(storage: Storage, segments: Sequence[Segment], leftovers: Leftovers) -> Finding:
    counted = count_leftovers(storage, segments, leftovers)
    path = next(item.path for item in segments if item.start_offset <= leftovers.log_end <= item.end_offset)
    detail = f"the log ends at {leftovers.log_end}, {counted.messages} records of an earlier life are behind it"
    if counted.messages > counted.older:
        detail += f", {counted.messages - counted.older} of them not older than its last record"
    return Finding(finding_kinds.LOG_LEFTOVER, detail, path, leftovers.log_end, leftovers.size_bytes)
