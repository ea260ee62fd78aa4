"""Finds where records of an open log begin near a place, without a walk from the log's first file."""

from typing import Final

from rmq_core.store.commitlog.log import CommitLog
from rmq_formats.codecs.layout import BLANK_BYTES, MAGIC_BLANK
from rmq_formats.codecs.record_layout import SIZE_AND_MAGIC

_WINDOW_BYTES: Final = 64 << 10
_WIDER: Final = 4  # a window without a record is followed by one so many times as wide


class Boundaries:
    """The places in a CommitLog where records begin or end."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def is_one(self, physical_offset: int) -> bool:
        """Return whether a record, a BLANK or a file begins at a physical offset, or the log ends at the offset."""
        log = self._log
        position = physical_offset % log.file_bytes
        if physical_offset == log.max_offset:
            return True
        if log.file_at(physical_offset) is None or not position:
            return not position
        head = log.slice(physical_offset, BLANK_BYTES)
        is_blank = head is not None and SIZE_AND_MAGIC.unpack(head) == (log.file_bytes - position, MAGIC_BLANK)
        return is_blank or log.record(physical_offset) is not None

    def before(self, physical_offset: int, about_bytes: int) -> int:
        """Begin of a whole record that is some bytes before a place; the log's first byte if there is no nearer.

        Args:
            physical_offset: the place, which need not be a boundary.
            about_bytes: how far before it, at most; farther only where no record begins in between. A file's first
                record is not passed: what is before that may be deleted elsewhere.
        """
        log = self._log
        file_start = max(physical_offset - 1, 0) // log.file_bytes * log.file_bytes
        begin = max(physical_offset - about_bytes, file_start)
        while begin > log.min_offset:
            record_offset = self._first_record(begin, physical_offset)
            if record_offset is not None:
                return record_offset
            about_bytes *= _WIDER
            begin = physical_offset - about_bytes
        record_offset = self._first_record(log.min_offset, physical_offset)
        return log.min_offset if record_offset is None else record_offset

    def last_until(self, physical_offset: int, floor: int) -> int:
        """Return the last boundary at or before a physical offset; ``floor`` is one before it."""
        at, width = floor, _WINDOW_BYTES
        while physical_offset - width > floor:
            record_offset = self._first_record(physical_offset - width, physical_offset)
            if record_offset is not None:
                at = record_offset
                break
            width *= _WIDER
        while True:
            end = self._end_of(at)
            if end is None or end > physical_offset:
                return at
            at = end

    def _end_of(self, physical_offset: int) -> int | None:
        """Return the end of the record or BLANK at a boundary; None if no whole one begins there."""
        log = self._log
        record = log.record(physical_offset)
        if record is not None:
            return physical_offset + len(record)
        file_end = physical_offset - physical_offset % log.file_bytes + log.file_bytes
        return file_end if physical_offset < log.max_offset and file_end <= log.max_offset else None

    def _first_record(self, begin: int, end: int) -> int | None:
        """Return the offset of the first whole, sound record in a range of the log; None without one."""
        import numpy as np  # noqa: PLC0415 # see ``kernel_loading``

        from rmq_formats.kernels import scan  # noqa: PLC0415 # numba, see ``kernel_loading``

        row = np.zeros(scan.FRAME_COLUMNS, dtype=np.int64)
        result = np.zeros(2, dtype=np.int64)
        while begin < end:
            file = self._log.file_at(begin)
            if file is None:
                return None
            data_bytes = min(self._log.max_offset - file.start, file.size)
            status = scan.find_sound(
                file.array, data_bytes, 0, file.start, file.size, begin - file.start, row, result
            )  # fmt: skip
            record_offset = file.start + int(result[0])
            if status == scan.SOUND:
                return record_offset if record_offset < end else None
            begin = file.start + file.size
        return None
