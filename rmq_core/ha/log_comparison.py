"""Comparison of a slave's log with its master's, before the slave's end.

The protocol's handshake says how long the slave's log is, and no more. So a slave asks for the log from a record
before its own end on, as every master can give it, and takes nothing new before what came is what it has. A master
of ours answers a report that no record begins at with a heartbeat of another place, and closes; Java's slave gives
up at that, and ours looks for a place further back. It also does so where it has lost something before that place, if
the slave says that it can compare from further back: its first report comes twice at once, or three times if its log
begins at that place.
"""

import logging
from typing import Final

from rmq_core.ha.frames import ReplicationError
from rmq_core.store.files import config_files
from rmq_core.store.store import MessageStore
from rmq_formats.codecs import paths

COMPARED_BYTES: Final = 1 << 20  # before the slave's end, at first
WIDER: Final = 4  # how many times as many after each comparison that found nothing in common
FROM_START: Final = 1  # reported for a log that is compared from its first byte on, as 0 means an empty one
REPEATS: Final = 2  # of a first report that a slave sends that compares; Java's master takes them as one
REPEATS_AT_START: Final = 3  # likewise where it has nothing before that
MORE_REPEATS_S: Final = 0.25  # for which the master waits for them: they may come in pieces, one of which was lost
_IDLE_BEATS: Final = 2  # heartbeats in succession without any bytes between them: the master has no more


class LogsDifferError(ReplicationError):
    """The master's log differs from this slave's log.

    Attributes:
        begin: physical offset from which the logs were compared.
        same_until: up to where they are the same; ``begin`` if not even there.
    """

    def __init__(self, begin: int, same_until: int) -> None:
        super().__init__(f"the master's log is another from {same_until} on")
        self.begin = begin
        self.same_until = same_until


class OtherOffsetError(ReplicationError):
    """The master has no record, or no log, at the offset where this slave starts to compare.

    Attributes:
        begin: that offset.
        master_offset: the offset of the master's push.
        at_start: whether this slave had said that its log begins there.
    """

    def __init__(self, begin: int, master_offset: int, *, at_start: bool) -> None:
        super().__init__(f"the master pushed bytes at {master_offset}, but was asked for those at {begin}")
        self.begin = begin
        self.master_offset = master_offset
        self.at_start = at_start


class LogComparison:
    """Comparison of a slave's log with its master's, from a start offset up to the slave's end.

    Attributes:
        begin: physical offset to report: there the master begins to push.
        repeats: how often that is reported at once, so that the master knows that it is compared.
    """

    def __init__(self, store: MessageStore, begin: int) -> None:
        """Compare from a physical offset on, where a record of the store begins."""
        self._store = store
        self._end = store.max_physical_offset
        self.begin = begin if begin or not self._end else FROM_START
        self.repeats = REPEATS if begin > store.min_physical_offset else REPEATS_AT_START
        self._at = self.begin
        self._beats = 0
        self.is_done = self._at >= self._end

    def compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare bytes of the master's log; return those after the slave's end.

        Raises:
            LogsDifferError: they are not the same, or the master has no more.
            OtherOffsetError: they are not those that were asked for.
        """
        if offset != self._at:
            raise OtherOffsetError(self.begin, offset, at_start=self.repeats == REPEATS_AT_START)
        self._beats = 0 if piece else self._beats + 1
        if self._beats == _IDLE_BEATS:
            raise LogsDifferError(self.begin, self._at)
        while piece and self._at < self._end:
            slave_bytes = self._store.read_log_range(self._at, min(len(piece), self._end - self._at))
            if slave_bytes is None:
                raise ReplicationError(f"the log at {self._at} was deleted while it was compared with the master's")
            if slave_bytes != piece[: len(slave_bytes)]:
                raise LogsDifferError(self.begin, self._at + _first_difference(slave_bytes, piece))
            self._at += len(slave_bytes)
            piece = piece[len(slave_bytes) :]
        self.is_done = self._at >= self._end
        return piece


def _first_difference(slave_bytes: memoryview, master_bytes: memoryview) -> int:
    """Find the position of the first byte that differs, by bisection."""
    low, high = 0, len(slave_bytes)  # the same below ``low``; they differ below ``high``
    while high - low > 1:
        middle = (low + high) // 2
        if slave_bytes[low:middle] == master_bytes[low:middle]:
            low = middle
        else:
            high = middle
    return low


class ComparisonStart:
    """Start offset of the next comparison: further back after each comparison without a common prefix."""

    def __init__(self, store: MessageStore, *, flushed_only: bool) -> None:
        """Start at the log's end; ``flushed_only`` where a report acknowledges a flush of all before its offset."""
        self._store = store
        self._flushed_only = flushed_only
        self.reset()

    def reset(self) -> None:
        """Start at the log's end again."""
        self._limit: int | None = None
        self._compared_bytes = COMPARED_BYTES
        self._exact_start: int | None = None  # where the master's log begins
        self._tried_start = -1  # likewise, when that place has been chosen once

    def next_comparison(self) -> LogComparison:
        """Return the next comparison; its first report acknowledges all before the start offset."""
        store = self._store
        if self._exact_start is not None and self._exact_start < store.min_physical_offset:
            self.reset()  # retention has deleted that place since
        if self._exact_start is not None:
            return LogComparison(store, self._exact_start)
        limit = store.max_physical_offset if self._limit is None else self._limit
        if self._flushed_only:
            limit = min(limit, store.flushed_offset)
        return LogComparison(store, store.boundaries.before(limit, self._compared_bytes))

    def move_back(self, error: LogsDifferError | OtherOffsetError) -> int | None:
        """Choose the next start offset after a failed comparison.

        Returns:
            None if there is one to try; else the last boundary up to which the logs are the same, or -1 if they
            have nothing in common.
        """
        store, begin = self._store, 0 if error.begin == FROM_START else error.begin
        if isinstance(error, LogsDifferError):
            common = store.boundaries.last_until(error.same_until, begin)
            if common > begin:
                return common
            offset = begin
        else:
            offset = error.master_offset
        if offset > begin:
            if offset == self._tried_start or offset > store.max_physical_offset:
                return -1
            if self._flushed_only and offset > store.flushed_offset:
                self.reset()  # a report of that place would acknowledge what is not forced: later
                return None
            self._exact_start = self._tried_start = offset
            return None
        if begin <= store.min_physical_offset:
            if isinstance(error, LogsDifferError) or error.at_start:
                return -1
            self.reset()  # retention has deleted what was before it since: this is to be told
            return None
        self._limit, self._exact_start = offset, None
        self._compared_bytes *= WIDER
        return None


log = logging.getLogger("rmq.broker.replication")
_FILE: Final = "recoveredFrom.json"
_KEY: Final = "physicalOffset"
_MOST_BYTES: Final = 1 << 30  # of log behind that, which each slave would compare: a matter of seconds


def sound_until(store: MessageStore) -> int:
    """Return the offset below which no recovery has changed a store's log; the log's end if none has.

    What was not forced at a loss of power may be lost in the middle and be there behind that: a slave then has other
    bytes far before its end. So it compares from there. The file ``config/recoveredFrom.json`` has the offset; it is
    ours, and the original passes over it.
    """
    path = f"{paths.config_dir(store.config.root)}/{_FILE}"
    end, recovery = store.max_physical_offset, store.recovery
    begin = config_files.load_numbers(path, store.disk).get(_KEY, end)
    if begin > end or end - begin > _MOST_BYTES:
        begin = end
    if not recovery.is_new and (not recovery.is_clean or recovery.damages):
        begin = min(begin, recovery.begin_offset)
        try:
            config_files.save(path, config_files.dump_numbers({_KEY: begin}), store.disk)
        except OSError as error:  # it counts until the next start
            log.warning("%(path)s cannot be written: %(error)s", {"path": path, "error": error})
    return begin
