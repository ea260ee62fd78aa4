"""Frames of a window as rows, whose fields are gathered when they are first asked for.

Selection and columns both work on it, so that a field which both need is read once. Text that is not
UTF-8 is repaired here, before any kernel sees it: Arrow and Spark trust what they are given.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rmq_formats.kernels import columns as kernel
from rmq_formats.kernels import columns_text as text_kernel
from rmq_formats.kernels import scan
from rmq_formats.layout import (
    RECORD_PHYSICAL_OFFSET_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_SYS_FLAG_AT,
)


class FrameRows:
    """Rows of a frame table, over the window that they stand in.

    Attributes:
        data: uint8, the window; with repaired texts behind it where there were any.
        frames: int64[n, FRAME_COLUMNS]; spans of repaired texts point to where these are.
    """

    def __init__(self, data: NDArray[np.uint8], frames: NDArray[np.int64]) -> None:
        self.data = data
        self.frames = frames
        self._repaired: set[int] = set()

    def __len__(self) -> int:
        return len(self.frames)

    def take(self, keep: NDArray[np.bool_]) -> "FrameRows":
        """The rows that a mask marks; the rows themselves if it marks all."""
        if keep.all():
            return self
        taken = FrameRows(self.data, self.frames[keep])
        taken._repaired = set(self._repaired)
        return taken

    def part(self, begin: int, end: int) -> "FrameRows":
        """The rows from ``begin`` to ``end``."""
        part = FrameRows(self.data, self.frames[begin:end])
        part._repaired = set(self._repaired)
        return part

    def int32(self, anchor: int, distance: int) -> NDArray[np.int32]:
        """Integers ``distance`` bytes behind a position of the frame table."""
        out = np.empty(len(self.frames), dtype=np.int32)
        kernel.gather_i32(self.data, self.frames, anchor, distance, out)
        return out

    def int64(self, anchor: int, distance: int) -> NDArray[np.int64]:
        """Integers of 64 bits; see ``int32``."""
        out = np.empty(len(self.frames), dtype=np.int64)
        kernel.gather_i64(self.data, self.frames, anchor, distance, out)
        return out

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """0, or the DamageCode of a checksum that does not match."""
        return self.frames[:, scan.CODE]

    @cached_property
    def queue_ids(self) -> NDArray[np.int32]:
        """int32[n]."""
        return self.int32(scan.POSITION, RECORD_QUEUE_ID_AT)

    @cached_property
    def queue_offsets(self) -> NDArray[np.int64]:
        """int64[n]."""
        return self.int64(scan.POSITION, RECORD_QUEUE_OFFSET_AT)

    @cached_property
    def physical_offsets(self) -> NDArray[np.int64]:
        """int64[n]; a frame is one only if it names its own place, so what it names is where it stands."""
        return self.int64(scan.POSITION, RECORD_PHYSICAL_OFFSET_AT)

    @cached_property
    def sys_flags(self) -> NDArray[np.int32]:
        """int32[n]."""
        return self.int32(scan.POSITION, RECORD_SYS_FLAG_AT)

    @cached_property
    def store_timestamps_ms(self) -> NDArray[np.int64]:
        """int64[n]."""
        out = np.empty(len(self.frames), dtype=np.int64)
        kernel.gather_store_timestamps(self.data, self.frames, out)
        return out

    @cached_property
    def born_timestamps_ms(self) -> NDArray[np.int64]:
        """int64[n]."""
        out = np.empty(len(self.frames), dtype=np.int64)
        kernel.gather_born_timestamps(self.data, self.frames, out)
        return out

    @cached_property
    def store_hosts(self) -> NDArray[np.int64]:
        """int64[n, 2], spans of 8 or 20 bytes."""
        return self._hosts(born=False)

    @cached_property
    def born_hosts(self) -> NDArray[np.int64]:
        """int64[n, 2], spans of 8 or 20 bytes."""
        return self._hosts(born=True)

    def _hosts(self, born: bool) -> NDArray[np.int64]:
        spans = np.empty((len(self.frames), 2), dtype=np.int64)
        kernel.find_hosts(self.data, self.frames, born, spans)
        return spans

    @cached_property
    def well_known(self) -> NDArray[np.int64]:
        """int64[n, 8], spans of TAGS, KEYS, UNIQ_KEY and DELAY; see ``rmq_formats.kernels.text``."""
        self.repair(scan.PROPERTIES_AT)
        found = np.empty((len(self.frames), 4, 2), dtype=np.int64)
        text_kernel.find_well_known(self.data, self.frames, scan.PROPERTIES_AT, found)
        return found.reshape(-1, 8)

    def repair(self, column: int) -> None:
        """See that the topics (TOPIC_AT) or the property blocks (PROPERTIES_AT) are valid UTF-8.

        What is not is put behind the window as decoders of Java and Python read it, with U+FFFD. The
        separators of properties are ASCII, so repairing a whole block repairs each name and value.
        """
        if column in self._repaired:
            return
        self._repaired.add(column)
        invalid = np.empty(len(self.frames), dtype=np.bool_)
        if not kernel.find_invalid_utf8(self.data, self.frames, column, invalid):
            return
        frames = self.frames.copy()
        at = len(self.data)
        pieces = [self.data.tobytes()]
        for row in np.flatnonzero(invalid):
            begin, size = frames[row, column], frames[row, column + 1]
            raw = self.data[begin : begin + size].tobytes()
            pieces.append(raw.decode("utf-8", "replace").encode())
            frames[row, column], frames[row, column + 1] = at, len(pieces[-1])
            at += len(pieces[-1])
        self.data = np.frombuffer(bytearray().join(pieces), dtype=np.uint8)
        self.frames = frames
