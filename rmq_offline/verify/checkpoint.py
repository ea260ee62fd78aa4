"""Checks the checkpoint against the log and the IndexFiles."""

from collections.abc import Iterator, Sequence

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES, CHECKPOINT_SIXTH_END, CHECKPOINT_USED_BYTES
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding


def check_checkpoint(
    data: bytes | None, size_bytes: int, path: str, latest_ms: int, log_end: int, *, has_sixth: bool
) -> Iterator[Finding]:
    """Check a checkpoint.

    Args:
        data: the first CHECKPOINT_FILE_BYTES; None without a checkpoint.
        latest_ms: the latest store timestamp in the log; -1 in an empty log.
        log_end: one past the log's last byte, the filler of its last file included.
        has_sixth: whether a broker of 5.5 or later may have written the sixth number.
    """
    if data is None:
        yield Finding(finding_kinds.CHECKPOINT_MISSING, "there is no checkpoint", path)
        return
    if size_bytes != CHECKPOINT_FILE_BYTES:
        expected, actual = str(CHECKPOINT_FILE_BYTES), str(size_bytes)
        detail = "file of another size"
        yield Finding(finding_kinds.CHECKPOINT_UNREADABLE, detail, path, expected=expected, actual=actual)
    if len(data) < CHECKPOINT_USED_BYTES:
        return
    checkpoint = Checkpoint.decode(data)
    for name, value, limit in (
        ("physicMsgTimestamp", checkpoint.physic_msg_timestamp_ms, latest_ms),
        ("logicsMsgTimestamp", checkpoint.logics_msg_timestamp_ms, latest_ms),
        ("indexMsgTimestamp", checkpoint.index_msg_timestamp_ms, latest_ms),
        # A slave may lag behind what its master has flushed.
        ("masterFlushedOffset", checkpoint.master_flushed_offset, checkpoint.master_flushed_offset),
        ("confirmPhyOffset", checkpoint.confirm_physical_offset, log_end),
        ("logicsPhysicalOffset", checkpoint.logics_physical_offset * has_sixth, log_end),
    ):
        if value < 0:
            yield Finding(finding_kinds.CHECKPOINT_UNREADABLE, f"{name} is negative", path, actual=str(value))
        elif value > max(limit, 0):
            what = "the log's last store timestamp" if name.endswith("Timestamp") else "the end of the log"
            detail, expected = f"{name} is beyond {what}", f"at most {max(limit, 0)}"
            yield Finding(finding_kinds.CHECKPOINT_LATER, detail, path, expected=expected, actual=str(value))
    if any(data[CHECKPOINT_SIXTH_END if has_sixth else CHECKPOINT_USED_BYTES :]):
        yield Finding(finding_kinds.CHECKPOINT_TRAILING, "bytes after the checkpoint's numbers", path)


def check_index_timestamp(data: bytes | None, path: str, index_ends_ms: Sequence[int]) -> Iterator[Finding]:
    """Check that the checkpoint covers all full IndexFiles.

    The checkpoint has the end of the last full IndexFile. An abnormal start deletes files that end later, which is
    meant for the last, still open one. The other times may well be too early: recovery only takes longer.
    Source: ``IndexService#load``, ``IndexService#flush``.

    Args:
        data: the checkpoint; None without one.
        index_ends_ms: end timestamp of each IndexFile, oldest first.
    """
    if data is None or len(data) < CHECKPOINT_USED_BYTES:
        return
    checkpoint_ms = Checkpoint.decode(data).index_msg_timestamp_ms
    later = [end_ms for end_ms in index_ends_ms[:-1] if end_ms > checkpoint_ms]
    if later:
        detail, expected = f"{len(later)} full IndexFiles end after indexMsgTimestamp", str(later[-1])
        yield Finding(finding_kinds.CHECKPOINT_EARLIER, detail, path, expected=expected, actual=str(checkpoint_ms))
