"""Scans one CommitLog segment, or a part of it, into batches of frames.

A split of a segment, ``[start, limit)``, owns the frames that begin in it: it searches its first sound
frame at or after ``start`` (a record states its own physical offset, which no chance bytes do), and continues
past ``limit`` until it stands on a sound frame again. So neighbouring splits meet at one
position, and each damaged range is reported by exactly one of them. In a segment of a DLedger CommitLog each record
has a header in front: there a walk stands on headers, and a split owns the records whose headers begin in it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.layout import BLANK_BYTES
from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V1
from rmq_formats.errors import TruncatedError
from rmq_formats.kernels import scan as kernel
from rmq_formats.storage.range_reader import RangeReader

if TYPE_CHECKING:  # a broker scans its log without pyarrow
    from rmq_formats.storage.segments import Segment, Storage

WINDOW_BYTES: Final = 1 << 20  # at least a page; small enough for a core's cache between the kernels


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """Frames in one window of a segment, and the damage before and between the frames.

    Attributes:
        data: uint8, the window; valid until the next batch is asked for.
        physical_offset: of ``data[0]``.
        frames: int64[n, FRAME_COLUMNS], the columns of ``rmq_formats.kernels.scan``. Rows whose CODE is
            not 0 failed a checksum.
        damages: ranges without a frame, in log order.
        blank_at: physical offset of the BLANK record that ended the file, in the last batch; else None.
        begin_physical_offset: where the walk to this batch began: for the first batch, the split's first frame.
        next_physical_offset: where the scan continues after this batch.
    """

    data: NDArray[np.uint8]
    physical_offset: int
    frames: NDArray[np.int64]
    damages: tuple[Damage, ...]
    blank_at: int | None
    begin_physical_offset: int
    next_physical_offset: int

    def all_damages(self) -> list[Damage]:
        """Return ``damages`` and the frames that failed a checksum, in log order."""
        failed = self.frames[self.frames[:, kernel.CODE] != kernel.SOUND]
        failures = [
            Damage(
                self.physical_offset + int(row[kernel.POSITION]),
                int(row[kernel.SIZE]),
                DamageCode(int(row[kernel.CODE])),
            )
            for row in failed
        ]
        return sorted([*self.damages, *failures])


def scan_segment(
    reader: RangeReader,
    file_offset: int,
    file_bytes: int,
    *,
    start: int = 0,
    limit: int | None = None,
    data_end: int | None = None,
    verify_crc: bool = True,
    search: bool = True,
    head_bytes: int = 0,
    window_bytes: int = WINDOW_BYTES,
) -> Iterator[FrameBatch]:
    """Scan the frames that begin in ``[start, limit)`` of a segment; the last batch may have no frames.

    Args:
        start: first byte of the split, in the file; 0 begins there, more searches a sound frame.
        limit: end of the split, in the file; None is the end of the data.
        data_end: bytes of the file from here on are known to be zero, or are not to be read (the
            frozen bound of a live store); None reads all.
        search: look for the first sound frame from ``start`` on; False where one is known to begin there.
        head_bytes: in front of each record, see ``Segment``.
        window_bytes: memory for a window; a larger record enlarges it.
    """
    walker = _SegmentWalker(reader, file_offset, file_bytes, data_end, head_bytes, window_bytes)
    begin = walker.first_sound(start)[0] if search and start > 0 else start
    yield from walker.walk(begin, walker.data_end if limit is None else min(limit, walker.data_end), verify_crc)


def log_frames(
    storage: "Storage", segments: Iterable["Segment"], *, start: int = 0, verify_crc: bool = True, search: bool = True
) -> Iterator[tuple["Segment", FrameBatch]]:
    """Scan the segments of a log one after the other; segments without data from ``start`` on are passed over.

    Args:
        start: physical offset where the scan begins.
        search: see ``scan_segment``; a segment that begins at ``start`` or later is scanned from its begin.

    Raises:
        StoreError: a file that cannot be read.
    """
    for segment in segments:
        if segment.end_offset <= start:
            continue
        with storage.open(segment.path) as file:
            data_end = segment.data_end(file)
            start_in_file = max(0, start - segment.start_offset)
            if start_in_file >= data_end:
                continue
            batches = scan_segment(
                file,
                segment.start_offset,
                segment.size_bytes,
                start=start_in_file,
                data_end=data_end,
                verify_crc=verify_crc,
                search=search,
                head_bytes=segment.head_bytes,
            )
            for batch in batches:
                yield segment, batch


def without_record_sums(batches: Iterable[FrameBatch]) -> Iterator[FrameBatch]:
    """Accept frames as sound if only the record's own CRC (``__CRC32#``) fails.

    In the log of a single queue, of tiered storage or of a compacted topic, records have another physical offset than
    when the sum was made; their bodies' sums hold. The frame tables are changed in place.
    """
    for batch in batches:
        codes = batch.frames[:, kernel.CODE]
        codes[codes == DamageCode.PROPERTIES_CRC] = kernel.SOUND
        yield batch


class _SegmentWalker:
    """One pass over one segment; owns the window buffer."""

    def __init__(
        self,
        reader: RangeReader,
        file_offset: int,
        file_bytes: int,
        data_end: int | None,
        head_bytes: int,
        window_bytes: int,
    ) -> None:
        self.reader = reader
        self.file_offset = file_offset
        self.file_bytes = file_bytes
        self.data_end = file_bytes if data_end is None else min(data_end, file_bytes)
        self.head_bytes = head_bytes
        self._walk_frames, self._find_sound = kernel.walk_frames, kernel.find_sound
        if head_bytes:
            from rmq_formats.kernels import dledger  # noqa: PLC0415 # kernels that a classic log does not need

            self._walk_frames, self._find_sound = dledger.walk_entries, dledger.find_entry
        self.window = np.empty(window_bytes, dtype=np.uint8)
        self.window_at = 0
        self.data_bytes = 0
        self.row = np.zeros(kernel.FRAME_COLUMNS, dtype=np.int64)
        self.result = np.zeros(2, dtype=np.int64)

    def walk(self, start: int, limit: int, verify_crc: bool) -> Iterator[FrameBatch]:
        capacity = len(self.window) // RECORD_FIXED_BYTES_V1 + 1
        frames = np.empty((capacity, kernel.FRAME_COLUMNS), dtype=np.int64)
        damages: list[Damage] = []
        begin = position = start
        while position < self.data_end:
            self._load(position)
            status = self._walk_frames(
                self.window,
                self.data_bytes,
                self.window_at,
                self.file_offset,
                self.file_bytes,
                position - self.window_at,
                limit - self.window_at,
                verify_crc,
                frames,
                self.result,
            )
            count, position = int(self.result[0]), self.window_at + int(self.result[1])
            if count or status == kernel.BLANK:
                blank_at = self.file_offset + position if status == kernel.BLANK else None
                yield self._batch(frames[:count], damages, blank_at, begin, position)
                damages, begin = [], position
            if status in (kernel.LIMIT, kernel.BLANK):
                break
            if status == kernel.NEED_MORE:
                self._extend(position)
            elif status > kernel.SOUND and position < self.data_end:
                sound_at, used_end = self.first_sound(position)
                end = min(sound_at, used_end) if sound_at == self.data_end else sound_at
                if end > position:
                    damages.append(Damage(self.file_offset + position, end - position, DamageCode(status)))
                position = sound_at
        yield self._batch(frames[:0], damages, None, begin, position)

    def _batch(
        self, frames: NDArray[np.int64], damages: list[Damage], blank_at: int | None, begin: int, end: int
    ) -> FrameBatch:
        base = self.file_offset
        return FrameBatch(
            self.window, base + self.window_at, frames, tuple(damages), blank_at, base + begin, base + end
        )

    def _load(self, position: int) -> None:
        if not self.window_at <= position < self.window_at + self.data_bytes:
            self.data_bytes = 0
            self._extend(position)

    def _extend(self, position: int) -> None:
        """Read until the window begins at ``position`` and contains more bytes than before.

        If it begins there already and is full, a record with a plausible header is larger than it.
        """
        kept = self.window_at + self.data_bytes - position if self.data_bytes else 0
        if kept and position == self.window_at and self.data_bytes == len(self.window):
            head = self.head_bytes
            size = head + int.from_bytes(self.window[head : head + 4].tobytes(), "big")
            grown = np.empty(max(size, len(self.window)) + BLANK_BYTES, dtype=np.uint8)
            grown[:kept] = self.window
            self.window = grown
        elif kept:
            self.window[:kept] = self.window[self.data_bytes - kept : self.data_bytes].copy()
        window_end = min(len(self.window), self.file_bytes - position)
        got = kept + self.reader.read_into(position + kept, self.window[kept:window_end].data)
        if got < window_end:
            raise TruncatedError(
                "the file ended while it was read", self.file_offset + position + got, None, window_end, got
            )
        self.window_at, self.data_bytes = position, got

    def first_sound(self, position: int) -> tuple[int, int]:
        """Find the position in the file of the first sound frame or BLANK from ``position`` on, else ``data_end``.

        The second value is one past the last byte before ``data_end`` that counts as used: zeros
        before a sound frame do, those that nothing follows do not.
        """
        used_end = 0
        while position < self.data_end:
            self._load(position)
            status = self._find_sound(
                self.window,
                self.data_bytes,
                self.window_at,
                self.file_offset,
                self.file_bytes,
                position - self.window_at,
                self.row,
                self.result,
            )
            position = self.window_at + int(self.result[0])
            if status in (kernel.SOUND, kernel.BLANK):
                return min(position, self.data_end), self.data_end
            used = int(kernel.used_bytes(self.window, self.data_bytes))
            used_end = self.window_at + used if used else used_end
            if self.window_at + self.data_bytes >= self.file_bytes and status == kernel.NOT_FOUND:
                break
            self._extend(position)
        return self.data_end, used_end
