"""Comparison of a slave's log with its master's, before the slave's end.

The handshake of the protocol tells the master only the end of the slave's log. So a slave of ours reports the offset
of a record before its end, which every master accepts, and compares the pushed bytes with its own log. It appends
nothing before both are the same up to its end.

If no record of the master's log begins at the reported offset, a master of ours sends a heartbeat with another offset
and closes the connection: Java's slave stops then, a slave of ours compares from an earlier offset. The master does
the same if a recovery has changed its log before the reported offset. A slave that compares sends its first report
twice at once, or three times if its log begins at the reported offset.
"""

import logging
from typing import Final

import numpy as np

from rmq_core.ha.frames import ReplicationError
from rmq_core.store.files import config_files
from rmq_core.store.store import MessageStore
from rmq_formats.codecs import paths

COMPARED_BYTES: Final = 1 << 20  # that the first comparison covers
_GROWTH_FACTOR: Final = 4  # of the compared bytes, after each comparison without common bytes
FROM_START: Final = 1  # reported to compare from the log's first byte: 0 would mean an empty log
REPEATS: Final = 2  # of the first report of a slave that compares; Java's master takes them for one
REPEATS_AT_START: Final = 3  # of the first report of a slave whose log begins at the reported offset
MORE_REPEATS_S: Final = 0.25  # that the master waits for repeats, which may come in several packets
_MAX_IDLE_HEARTBEATS: Final = 2  # one after the other: then the master has no more bytes
_MAX_COMPARED_BYTES: Final = 1 << 30  # from the saved offset on: each slave takes seconds for them
_KEY: Final = "physicalOffset"
log = logging.getLogger("rmq.broker.replication")


class LogsDifferError(ReplicationError):
    """The master's log differs from this slave's log.

    Attributes:
        begin: physical offset from which the logs were compared.
        common_end: physical offset up to which the logs are the same; ``begin`` if they have no common byte.
    """

    def __init__(self, begin: int, common_end: int) -> None:
        super().__init__(f"the master's log differs from offset {common_end} on")
        self.begin = begin
        self.common_end = common_end


class OtherOffsetError(ReplicationError):
    """The master has no record, or no log, at the offset where this slave starts to compare.

    Attributes:
        begin: physical offset where this slave starts to compare.
        master_offset: physical offset of the master's push.
        at_start: True if this slave reported that its log begins at ``begin``.
    """

    def __init__(self, begin: int, master_offset: int, *, at_start: bool) -> None:
        super().__init__(f"the master pushed bytes at {master_offset}: this slave asked for those at {begin}")
        self.begin = begin
        self.master_offset = master_offset
        self.at_start = at_start


class LogComparison:
    """Comparison of a slave's log with its master's, from a start offset up to the slave's end.

    Attributes:
        begin: physical offset to report, where the master begins to push.
        repeats: number of times to report ``begin`` at once: more than once says that this slave compares.
    """

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Compare from a physical offset on, where a record of the store begins."""
        self._store = store
        self._end = store.max_physical_offset
        self.begin = begin if begin or not self._end else FROM_START
        self.repeats = REPEATS if begin > store.min_physical_offset else REPEATS_AT_START
        self._compared_until = self.begin
        self._idle_heartbeats = 0
        self.is_done = self._compared_until >= self._end

    def compare(self, offset: int, chunk: memoryview) -> memoryview:
        """Compare bytes of the master's log; return those after the slave's end.

        Raises:
            LogsDifferError: the bytes differ, or the master's log ends before the slave's.
            OtherOffsetError: the bytes are not at the expected offset.
        """
        if offset != self._compared_until:
            raise OtherOffsetError(self.begin, offset, at_start=self.repeats == REPEATS_AT_START)
        self._idle_heartbeats = 0 if chunk else self._idle_heartbeats + 1
        if self._idle_heartbeats == _MAX_IDLE_HEARTBEATS:
            raise LogsDifferError(self.begin, self._compared_until)
        while chunk and self._compared_until < self._end:
            at = self._compared_until
            slave_bytes = self._store.read_log_range(at, min(len(chunk), self._end - at))
            if slave_bytes is None:
                raise ReplicationError(f"the log at {at} was deleted while it was compared with the master's")
            master_bytes = chunk[: len(slave_bytes)]
            if slave_bytes != master_bytes:
                differs = np.frombuffer(slave_bytes, np.uint8) != np.frombuffer(master_bytes, np.uint8)
                raise LogsDifferError(self.begin, at + int(differs.argmax()))
            self._compared_until += len(slave_bytes)
            chunk = chunk[len(slave_bytes) :]
        self.is_done = self._compared_until >= self._end
        return chunk


class ComparisonStart:
    """Start offset of the next comparison: further back after each comparison without a common prefix."""

    def __init__(self, store: MessageStore, *, flushed_only: bool) -> None:
        """Start at the log's end, or at its flushed end if reports acknowledge a flush (``flushed_only``)."""
        self._store = store
        self._flushed_only = flushed_only
        self.reset()

    def reset(self) -> None:
        """Start at the log's end again."""
        self._limit: int | None = None
        self._compared_bytes = COMPARED_BYTES
        self._exact_start: int | None = None  # offset of the master's push
        self._tried_start = -1  # the last exact start, to choose each one only once

    def next_comparison(self) -> LogComparison:
        """Return the next comparison; its first report acknowledges the log before its start."""
        store = self._store
        if self._exact_start is not None and self._exact_start < store.min_physical_offset:
            self.reset()  # retention has deleted that offset since
        if self._exact_start is not None:
            return LogComparison(store, self._exact_start)
        limit = store.max_physical_offset if self._limit is None else self._limit
        if self._flushed_only:
            limit = min(limit, store.flushed_offset)
        return LogComparison(store, store.boundaries.last_record_before(limit, self._compared_bytes))

    def move_back(self, error: LogsDifferError | OtherOffsetError) -> int | None:
        """Choose the next start offset after a failed comparison.

        Returns:
            None if there is another start offset; else the last record boundary up to which the logs are the same,
            -1 if they have nothing in common.
        """
        store, begin = self._store, 0 if error.begin == FROM_START else error.begin
        if isinstance(error, LogsDifferError):
            common_boundary = store.boundaries.last_until(error.common_end, begin)
            if common_boundary > begin:
                return common_boundary
            offset = begin
        else:
            offset = error.master_offset
        if offset > begin:
            if offset == self._tried_start or offset > store.max_physical_offset:
                return -1
            if self._flushed_only and offset > store.flushed_offset:
                self.reset()  # a report of that offset would acknowledge unflushed bytes: try later
                return None
            self._exact_start = self._tried_start = offset
            return None
        if begin <= store.min_physical_offset:
            if isinstance(error, LogsDifferError) or error.at_start:
                return -1
            self.reset()  # retention has deleted the log before ``begin``: the next report says so
            return None
        self._limit, self._exact_start = offset, None
        self._compared_bytes *= _GROWTH_FACTOR
        return None


def load_sound_offset(store: MessageStore) -> int:
    """Return the offset below which no recovery has changed a store's log; the log's end if none has.

    A loss of power may lose unflushed bytes in the middle of the log and keep later ones: then the logs of master and
    slave may differ far before the slave's end, so slaves compare from this offset. The file
    ``config/recoveredFrom.json`` keeps the offset. Java's broker ignores that file.
    """
    path = f"{paths.config_dir(store.config.root)}/recoveredFrom.json"
    end, recovery = store.max_physical_offset, store.recovery
    begin = config_files.load_numbers(path, store.disk).get(_KEY, end)
    if begin > end or end - begin > _MAX_COMPARED_BYTES:
        begin = end
    if not recovery.is_new and (not recovery.is_clean or recovery.damages):
        begin = min(begin, recovery.begin_offset)
        try:
            config_files.save(path, config_files.dump_numbers({_KEY: begin}), store.disk)
        except OSError as error:  # the offset holds until the next start
            log.warning("%(path)s cannot be written: %(error)s", {"path": path, "error": error})
    return begin
