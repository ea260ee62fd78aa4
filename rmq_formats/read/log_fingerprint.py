"""Fingerprints of a CommitLog: checksums of its bytes before an offset, which a later run compares with the log.

Commits of exports and checkpoints of replays have fingerprints. A log that was cut and written anew, or another store
at the same path, has other bytes there: store times at least.
"""

import json
import zlib
from collections.abc import Sequence
from typing import Final

from rmq_formats.read.ranges import Range, missing_ranges
from rmq_formats.storage.segments import Segment, Storage, read_range

_FINGERPRINT_BYTES: Final = 64 << 10  # the last record before an offset, or some of them, with their store times
_FIELDS: Final = ("physical_offset", "crc32_from", "crc32")


def fingerprint_log(storage: Storage, segments: Sequence[Segment], end: int) -> str | None:
    """Compute a checksum of the last bytes before an offset, as JSON; None for deleted bytes. Raises StoreError."""
    for segment in segments:
        if segment.start_offset < end <= segment.end_offset:
            begin = max(segment.start_offset, end - _FINGERPRINT_BYTES)
            return json.dumps(dict(zip(_FIELDS, (end, begin, _crc32(storage, segments, begin, end)), strict=True)))
    return None


def differing_range(storage: Storage, segments: Sequence[Segment], fingerprint: str | None) -> Range | None:
    """Return the range that differs from a fingerprint; None for equal, deleted or not comparable bytes."""
    try:
        end, begin, crc32 = (int(json.loads(fingerprint or "")[name]) for name in _FIELDS)
    except (ValueError, TypeError, KeyError):  # another program's metadata
        return None
    if not 0 < end - begin <= _FINGERPRINT_BYTES or missing_ranges(segments, begin, end):
        return None
    return None if _crc32(storage, segments, begin, end) == crc32 else (begin, end)


def fingerprint_end(fingerprint: str | None) -> int:
    """Return the physical offset of a fingerprint; -1 for other metadata."""
    try:
        return int(json.loads(fingerprint or "")[_FIELDS[0]])
    except (ValueError, TypeError, KeyError):  # another program's metadata
        return -1


def _crc32(storage: Storage, segments: Sequence[Segment], begin: int, end: int) -> int:
    """Compute the checksum of a range; the segments may have other sizes than for an earlier fingerprint."""
    crc32 = 0
    for segment in segments:
        first, last = max(begin, segment.start_offset), min(end, segment.end_offset)
        if first < last:
            with storage.open(segment.path) as file:
                crc32 = zlib.crc32(read_range(file, first - segment.start_offset, last - first), crc32)
    return crc32
