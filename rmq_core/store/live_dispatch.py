"""Dispatch in a store that is open: after each batch of appends, as far as the disk allows.

Source: ``DefaultMessageStore.ReputMessageService``.
"""

from collections.abc import Callable

from rmq_core.store.background import Background
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.dispatch import Dispatch
from rmq_core.store.flush import LogFlusher
from rmq_core.store.kernel_loading import KernelLoading
from rmq_core.store.log import CommitLog
from rmq_core.store.refusals import Refusals
from rmq_core.store.values import Arrival
from rmq_formats.errors import StoreError

ArrivalListener = Callable[[list[Arrival]], None]


class LiveDispatch:
    """Makes appended messages readable, and tells of them."""

    def __init__(
        self,
        config: StoreConfig,
        log: CommitLog,
        dispatch: Dispatch,
        flusher: LogFlusher,
        background: Background,
        refusals: Refusals,
    ) -> None:
        """Work on these parts of a store."""
        self._config = config
        self._log = log
        self._dispatch = dispatch
        self._flusher = flusher
        self._background = background
        self._refusals = refusals
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC
        self._on_arrival: list[ArrivalListener] = []
        self._loading: KernelLoading | None = None
        self._waits = True

    def load_kernels_beside(self, on_end: Callable[[], None] | None) -> None:
        """Have a thread load the kernels.

        Args:
            on_end: is called in that thread when they are there, or cannot be had, and until then ``run`` leaves
                messages for later; None has the first run that needs the kernels wait for them.
        """
        self._waits = on_end is None
        self._loading = KernelLoading(on_end or (lambda: None))

    @property
    def is_loading_kernels(self) -> bool:
        """Whether the kernels are being loaded."""
        return self._loading is not None and not self._loading.is_over

    def wait_for_kernels(self) -> bool:
        """Wait for the kernels; False if they cannot be had."""
        if self._loading is not None:
            try:
                self._loading.wait()
            except StoreError as error:
                self._refusals.add("kernels", str(error))
                return False
            self._loading = None
        return True

    def on_dispatched(self, listener: ArrivalListener) -> None:
        """Have ``run`` call a function with the queues that have new messages."""
        self._on_arrival.append(listener)

    def run(self) -> bool:
        """Make what has been appended readable, and have it forced. Call it once for each batch of appends.

        With SYNC_FLUSH only what is forced becomes readable: what a consumer has seen must not be lost. Call
        it again when ``MessageStore.on_flushed`` tells of more. The first messages of a new store wait here, or
        become readable in a later call, until the kernels are loaded; see ``load_kernels_beside``.

        Returns:
            False if the disk did not take it: it is tried again at the next call, and until then no message is
            taken.
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
        if self._loading is not None:
            if self.is_loading_kernels and not self._waits:
                return True
            if not self.wait_for_kernels():
                return False
        rows: dict[int, list[int]] | None = {} if self._on_arrival else None
        try:
            self._dispatch.run(limit, rows)
        except OSError as error:  # what it needs may come: a full disk heals
            self._refusals.add("dispatch", f"ConsumeQueue or Index cannot be written: {error}")
            return False
        self._refusals.remove("dispatch")
        if rows:
            arrivals = self._dispatch.arrivals_of(rows)
            for listener in self._on_arrival:
                listener(arrivals)
        return True
