"""Dispatch in an open store: after each batch of appends, and again while the disk is full.

Source: ``DefaultMessageStore.ReputMessageService``.
"""

import logging
from collections import defaultdict
from collections.abc import Callable

from rmq_core.store.config import FlushDiskType
from rmq_core.store.maintenance.background import Background
from rmq_core.store.parts import StoreParts
from rmq_core.store.results import Arrival

_LOGGER = logging.getLogger(__name__)
ArrivalListener = Callable[[list[Arrival]], None]


class LiveDispatch:
    """Dispatches appended messages, and notifies listeners of queues with new messages."""

    def __init__(self, parts: StoreParts, background: Background) -> None:
        self._config = parts.config
        self._log = parts.log
        self._dispatch = parts.dispatch
        self._flusher = parts.flusher
        self._background = background
        self._refusals = parts.refusals
        self._is_sync = parts.config.flush_disk_type is FlushDiskType.SYNC
        self._on_arrival: list[ArrivalListener] = []
        self._are_waiting: list[Callable[[], bool]] = []
        self._warns_of_lmqs = not parts.config.lmq_enabled

    def on_dispatched(self, listener: ArrivalListener, is_waiting: Callable[[], bool]) -> None:
        """Register a callback for queues with new readable messages, collected while ``is_waiting`` is true."""
        self._on_arrival.append(listener)
        self._are_waiting.append(is_waiting)

    def run(self, most_new_queues: int | None = None) -> bool:
        """Dispatch the appended records, so that they are readable; call it once for each batch of appends.

        False if the disk is full or broken: appends are refused until a later call succeeds.
        With SYNC_FLUSH only flushed records become readable, so that no message is lost that a consumer has received:
        call it again from a listener of ``MessageStore.on_flushed``.
        """
        log = self._log
        if log.position >= log.preallocate_at and self._config.preallocate:
            log.preallocate_at = log.file_bytes + 1
            self._background.prepare(log.start + log.file_bytes)
        if self._is_sync:
            self._flusher.request()
        limit = self._flusher.flushed_offset if self._is_sync else log.max_offset
        if self._dispatch.offset >= limit:
            return True
        has_listener = any(is_waiting() for is_waiting in self._are_waiting)
        rows: defaultdict[int, list[int]] | None = defaultdict(list) if has_listener else None
        try:
            self._dispatch.run(limit, rows, most_new_queues)
        except OSError as error:  # the next call tries again, as a full disk may have space by then
            self._refusals.add("dispatch", f"ConsumeQueue or Index cannot be written: {error}")
            return False
        self._refusals.remove("dispatch")
        if self._warns_of_lmqs and self._dispatch.has_lmq_records:
            self._warns_of_lmqs = False
            _LOGGER.warning(
                "%(log)s: messages have offsets in light queues (LMQ), which this broker does not write",
                {"log": self._config.commitlog_path},
            )
        if rows:
            arrivals = self._dispatch.arrivals_of(rows)
            for listener in self._on_arrival:
                listener(arrivals)
        return True
