"""Rows of a frame table: lazily gathered header columns, repaired texts and inflated bodies.

Arrow and Spark trust their input, so invalid UTF-8 is repaired here, before selection and column building. Repaired
texts and inflated bodies are appended to the window, and spans point there.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs.compression import decompress
from rmq_formats.codecs.layout import FLAG_COMPRESSED, FLAG_COMPRESSION_MASK
from rmq_formats.codecs.record_layout import (
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_SYS_FLAG_AT,
)
from rmq_formats.errors import FormatError
from rmq_formats.kernels import scan
from rmq_formats.kernels.columns import gather as kernel
from rmq_formats.kernels.columns import text as text_kernel

_NARROW = np.array(
    [(kernel.ANCHOR_RECORD, RECORD_QUEUE_ID_AT), (kernel.ANCHOR_RECORD, RECORD_SYS_FLAG_AT)], dtype=np.int64
)
_WIDE = np.array(
    [
        (kernel.ANCHOR_RECORD, RECORD_QUEUE_OFFSET_AT),
        (kernel.ANCHOR_RECORD, RECORD_PHYSICAL_OFFSET_AT),
        (kernel.ANCHOR_STORE_TIMESTAMP, 0),
    ],
    dtype=np.int64,
)


class FrameRows:
    """Rows of a frame table, with the window of bytes that its spans point into.

    Attributes:
        data: uint8[n], the window, followed by repaired texts and inflated bodies.
        frames: int64[rows, FRAME_COLUMNS].
        bodies: int64[rows, columns], and the column of a body's position; until a body is inflated, the frame table.
        errors: faults of a row beyond the CODE, by row number.
    """

    def __init__(
        self, data: NDArray[np.uint8], frames: NDArray[np.int64], repaired: frozenset[int] = frozenset()
    ) -> None:
        self.data = data
        self.frames = frames
        self.bodies: tuple[NDArray[np.int64], int] = (frames, scan.BODY_AT)
        self.errors: dict[int, str] = {}
        self._repaired = repaired

    def __len__(self) -> int:
        return len(self.frames)

    def select(self, keep: NDArray[np.bool_]) -> "FrameRows":
        """Return the rows of a mask, before bodies are inflated."""
        if keep.all():
            return self
        selected = FrameRows(self.data, self.frames[keep], self._repaired)
        if "_header" in self.__dict__:
            narrow, wide = self._header
            selected._header = narrow.compress(keep, axis=1), wide.compress(keep, axis=1)
        return selected

    def part(self, begin: int, end: int) -> "FrameRows":
        """Return the rows ``[begin, end)``, before bodies are inflated."""
        return FrameRows(self.data, self.frames[begin:end], self._repaired)

    @cached_property
    def _header(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Gather the fixed header fields that selection reads, in one pass."""
        narrow = np.empty((len(_NARROW), len(self.frames)), dtype=np.int32)
        wide = np.empty((len(_WIDE), len(self.frames)), dtype=np.int64)
        kernel.append_fixed(self.data, self.frames, _NARROW, _WIDE, 0, narrow, wide)
        return narrow, wide

    @property
    def queue_ids(self) -> NDArray[np.int32]:
        """Queue id of each row, int32[rows]."""
        return self._header[0][0, :]

    @property
    def sys_flags(self) -> NDArray[np.int32]:
        """sys_flag of each row, int32[rows]."""
        return self._header[0][1, :]

    @property
    def queue_offsets(self) -> NDArray[np.int64]:
        """Queue offset of each row, int64[rows]."""
        return self._header[1][0, :]

    @property
    def physical_offsets(self) -> NDArray[np.int64]:
        """Recorded physical offset of each row, int64[rows]."""
        return self._header[1][1, :]

    @property
    def store_timestamps_ms(self) -> NDArray[np.int64]:
        """Store timestamp of each row in ms, int64[rows]."""
        return self._header[1][2, :]

    def hosts(self, *, born: bool) -> NDArray[np.int64]:
        """Find the born hosts or the store hosts: int64[rows, 2], spans of 8 or 20 bytes."""
        spans = np.empty((len(self.frames), 2), dtype=np.int64)
        kernel.find_hosts(self.data, self.frames, born, spans)
        return spans

    @cached_property
    def well_known(self) -> NDArray[np.int64]:
        """Find TAGS, KEYS and UNIQ_KEY: int64[rows, WELL_KNOWN_COLUMNS], spans of their values."""
        self.repair(scan.PROPERTIES_AT)
        spans = np.empty((len(self.frames), text_kernel.WELL_KNOWN_COLUMNS), dtype=np.int64)
        longest = int(self.frames[:, scan.PROPERTIES_AT + 1].max(initial=0))
        separators = np.empty(longest, dtype=np.int32)
        text_kernel.find_well_known(self.data, self.frames, scan.PROPERTIES_AT, separators, spans)
        return spans

    def repair(self, column: int) -> None:
        """Replace invalid UTF-8 in the topics (TOPIC_AT) or the property blocks (PROPERTIES_AT).

        The repaired text, with U+FFFD as by Java's and Python's decoders, is appended to the window. The separators of
        properties are ASCII, so the repair of a block repairs each name and value.
        """
        if column in self._repaired:
            return
        self._repaired |= {column}
        invalid = np.empty(len(self.frames), dtype=np.bool_)
        if not kernel.find_invalid_utf8(self.data, self.frames, column, invalid):
            return
        has_own_bodies = self.bodies[0] is not self.frames
        self.frames = self.frames.copy()
        if not has_own_bodies:
            self.bodies = (self.frames, scan.BODY_AT)
        texts = {}
        for row in np.flatnonzero(invalid).tolist():
            begin, size = self.frames[row, column : column + 2].tolist()
            texts[row] = self.data[begin : begin + size].tobytes().decode("utf-8", "replace").encode()
        self._append_to_window(texts, self.frames, column)

    def inflate(self, max_bytes: int) -> int:
        """Inflate compressed bodies and clear their compression bits in ``sys_flag``; damaged bodies stay compressed.

        After the row with which the bodies exceed ``max_bytes``, rows are removed. Return the number of remaining rows.
        """
        compressed = self.sys_flags & FLAG_COMPRESSED != 0
        if not compressed.any():
            return len(self)
        spans = self.frames[:, scan.BODY_AT : scan.BODY_AT + 2].copy()
        bodies: dict[int, bytes] = {}
        total = done = 0
        for row, (begin, size) in enumerate(spans.tolist()):
            if total > max_bytes:
                break
            done += 1
            total += size
            if not compressed[row]:
                continue
            stored = self.data[begin : begin + size].tobytes()
            try:
                bodies[row] = decompress(stored, int(self.sys_flags[row]))
            except FormatError as error:
                self.errors[row] = error.reason
            else:
                total += len(bodies[row]) - size
        self._append_to_window(bodies, spans, 0)
        self._clear_compression(list(bodies))
        self.bodies = (spans[:done], 0)
        self.frames = self.frames[:done]
        return done

    def _clear_compression(self, rows: list[int]) -> None:
        """Clear the compression bits of ``sys_flag`` in the window that ``_append_to_window`` has copied.

        In a row that is written to a store or sent again, the bits would contradict the plain body.
        """
        positions = self.frames[rows, scan.POSITION] + RECORD_SYS_FLAG_AT
        flags = self.sys_flags[rows] & ~(FLAG_COMPRESSED | FLAG_COMPRESSION_MASK)
        self.data[positions[:, np.newaxis] + np.arange(4)] = flags.astype(">i4").view(np.uint8).reshape(-1, 4)
        del self._header  # gathered before

    def _append_to_window(self, values: dict[int, bytes], table: NDArray[np.int64], column: int) -> None:
        """Append byte strings to the window, and set the spans of a table's rows."""
        at = len(self.data)
        for row, value in values.items():
            table[row, column], table[row, column + 1] = at, len(value)
            at += len(value)
        self.data = np.frombuffer(bytearray().join([self.data.tobytes(), *values.values()]), dtype=np.uint8)
