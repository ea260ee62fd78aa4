"""Bounds a verification by the log's end, after which a recovery may have left records."""

from collections.abc import Sequence

from rmq_formats.codecs import paths
from rmq_formats.read.log_end import count_leftovers, cut_segments, find_leftovers
from rmq_formats.storage.segments import Segment
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, FindingList


def bound_by_log_end(
    store: StoreFiles, segments: Sequence[Segment], ends: Sequence[int], findings: FindingList
) -> tuple[list[Segment], list[int]]:
    """Bound segments, and the ends of their data in the files, by the log's end; report the records after that end."""
    leftovers = find_leftovers(store, segments) if segments else None
    if leftovers is None:
        return list(segments), list(ends)
    counts = count_leftovers(store.storage, segments, leftovers)
    path = next(item.path for item in segments if item.start_offset <= leftovers.log_end <= item.end_offset)
    detail = f"the log ends at {leftovers.log_end}, {counts.messages} records of an earlier life are behind it"
    if counts.messages > counts.older:
        detail += f", {counts.messages - counts.older} of them not older than its last record"
    findings.add(Finding(finding_kinds.LOG_LEFTOVER, detail, path, leftovers.log_end, leftovers.size_bytes))
    cut = cut_segments(segments, leftovers)
    bounds = [end if item.log_bytes is None else min(end, item.log_bytes) for item, end in zip(cut, ends, strict=True)]
    return cut, bounds


def is_log_missing(root: str, segments: Sequence[Segment], has_derived: bool, findings: FindingList) -> bool:
    """Return whether queues or an Index exist without any file of the log, readable or not; report such a store."""
    if segments or not has_derived:
        return False
    detail = "no CommitLog file, and queues or an Index, which are not compared with anything"
    findings.report(finding_kinds.LOG_MISSING, detail, paths.commitlog_dir(root))
    return True
