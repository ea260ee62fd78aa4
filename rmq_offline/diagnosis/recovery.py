"""Estimates what a broker's start reads of the CommitLog.

Source: ``CommitLog#recoverNormally``, ``#recoverAbnormally``, ``#isMappedFileMatchedRecover``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import RECORD_VERSIONS
from rmq_formats.codecs.record_layout import HOST_FLAGS, head_struct, store_timestamp_at
from rmq_formats.read.dirty import read_checkpoint
from rmq_formats.read.queue_choice import dispatched_end_of_files
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.segments import Segment, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles

BYTES_PER_SECOND: Final = 200_000_000  # assumption: one thread of Java's checks that many bytes of records a second
_SAFETY_MS: Final = 3000  # the original trusts its checkpoint so much less
_MAGIC_AND_SYS_FLAG: Final = head_struct("magic", "sys_flag")
_TIMESTAMP_BYTES: Final = 8
_HEAD_BYTES: Final = store_timestamp_at(HOST_FLAGS) + _TIMESTAMP_BYTES


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """Bytes and files that a broker's start reads, from ``first_file`` on.

    Attributes:
        seconds: duration at BYTES_PER_SECOND.
        is_abnormal: the broker did not shut down, and the records are dispatched again.
    """

    files: int
    bytes: int
    seconds: float
    first_file: str
    is_abnormal: bool
    reason: str


def estimate_start(
    store: StoreFiles, segments: Sequence[Segment], checkpoint: Checkpoint | None = None
) -> StartEstimate | None:
    """Estimate what a start reads; None for a log of DLedger, and for an empty one. Raises StoreError.

    Args:
        checkpoint: None is the store's own.
    """
    if not segments or any(segment.head_bytes for segment in segments):
        return None
    _, log_end = log_bounds(store.storage, segments)
    is_abnormal = store.storage.exists(paths.abort_file(store.root))
    if is_abnormal:
        first, reason = _abnormal_begin(store.storage, segments, checkpoint or read_checkpoint(store))
    else:
        first, reason = _normal_begin(store, segments, log_end)
    size = max(0, log_end - segments[first].start_offset)
    name = segments[first].path.rpartition("/")[2]
    return StartEstimate(len(segments) - first, size, round(size / BYTES_PER_SECOND, 1), name, is_abnormal, reason)


def _normal_begin(store: StoreFiles, segments: Sequence[Segment], log_end: int) -> tuple[int, str]:
    queue_end = dispatched_end_of_files(store, log_end)
    first = max((number for number, segment in enumerate(segments) if segment.start_offset <= queue_end), default=0)
    if not queue_end:
        return 0, "the last shutdown was clean, and no queue names a message: from the first file"
    return first, "the last shutdown was clean: from the last file that a unit points to"


def _abnormal_begin(storage: Storage, segments: Sequence[Segment], checkpoint: Checkpoint | None) -> tuple[int, str]:
    if checkpoint is None:
        return 0, "abort is there, and no checkpoint: from the first file"
    safe_ms = min(checkpoint.physic_msg_timestamp_ms, checkpoint.logics_msg_timestamp_ms) - _SAFETY_MS
    for number in range(len(segments) - 1, -1, -1):
        first_ms = first_store_timestamp_ms(storage, segments[number])
        if first_ms is not None and 0 < first_ms <= safe_ms:
            return number, "abort is there: from the last file whose first message the checkpoint covers"
    return 0, "abort is there, and the checkpoint covers no file's first message: from the first file"


def first_store_timestamp_ms(storage: Storage, segment: Segment) -> int | None:
    """Read the store time of a file's first record; None if no record is there."""
    with storage.open(segment.path) as file:
        head = read_range(file, 0, _HEAD_BYTES)
    if len(head) < _HEAD_BYTES:
        return None
    magic, sys_flag = _MAGIC_AND_SYS_FLAG.unpack_from(head)
    at = store_timestamp_at(sys_flag)
    return int.from_bytes(head[at : at + _TIMESTAMP_BYTES], "big", signed=True) if magic in RECORD_VERSIONS else None
