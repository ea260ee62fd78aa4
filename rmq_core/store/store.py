"""``MessageStore``: one store, open.

One thread calls it, an event loop's for instance. Nothing here waits for the disk but opening, shutting
down, deleting topics, and an append that needs a new file when none has been made ahead.
"""

import logging
from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Final

from rmq_core.store import config_files
from rmq_core.store.append import Appender
from rmq_core.store.append_bulk import BulkAppender
from rmq_core.store.background import Background
from rmq_core.store.cleaning import Cleaner
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.disk import Disk
from rmq_core.store.dispatch import Dispatch
from rmq_core.store.flush import FaultListener, FlushListener, LogFlusher
from rmq_core.store.index import Index
from rmq_core.store.kernel_loading import load_kernels
from rmq_core.store.live_dispatch import LiveDispatch
from rmq_core.store.lock import hold_lock
from rmq_core.store.log import CommitLog, list_log_files
from rmq_core.store.queues import QueueTable
from rmq_core.store.read import Reader
from rmq_core.store.recovery import Recovery, RecoveryReport
from rmq_core.store.refusals import SHUTDOWN, Refusals, refuse_put
from rmq_core.store.unit_writer import UnitWriter
from rmq_core.store.watermark import Marks
from rmq_formats import paths
from rmq_formats.consumequeue import delay_levels_ms
from rmq_formats.hosts import Host

_LOGGER = logging.getLogger(__name__)
_DROPPED_TOPICS: Final = "droppedTopics.json"


class MessageStore:
    """The store.

    Attributes:
        config: its settings.
        recovery: what opening it found.
        put: appends a message; see ``Appender.put``. Methods of its parts, such as this, are the store's own
            without a call in between: it would be felt.
        put_batch: appends a client's batch; see ``BulkAppender.put_batch``.
        put_encoded: appends a master's bytes; see ``BulkAppender.put_encoded``.
        dispatch: makes readable what has been appended; see ``LiveDispatch.run``.
        on_dispatched: has a function told of new messages; see ``LiveDispatch.on_dispatched``.
        wait_for_kernels: has no later ``dispatch`` wait for numba; see ``LiveDispatch.wait_for_kernels``.
        next_offset: queue offset that the next message of a queue gets.
        get: messages of a queue; see ``Reader.get``.
        query: messages with a key; see ``Reader.query``.
        message: the message at a physical offset; see ``Reader.message``.
        message_by_id: the message with an offset message id; see ``Reader.message_by_id``.
        record: the stored record at a physical offset; None where none begins.
        clean: removes what is too old; see ``Cleaner.clean``.
        log_stretch: bytes of the log, for a slave; see ``CommitLog.stretch``.
        offset_by_time: queue offset for a store time; see ``Reader.offset_by_time``.
        store_timestamp_ms: when a message of a queue was stored; see ``Reader.store_timestamp_ms``.
        is_in_memory: whether a message is likely still in memory; see ``Reader.is_in_memory``.
        min_offset: first readable queue offset; see ``Reader.min_offset``.
        max_offset: queue offset one past the newest readable message; see ``Reader.max_offset``.
    """

    def __init__(self, config: StoreConfig, *, store_host: Host, disk: Disk) -> None:
        """Use ``open``."""
        self.config = config
        self._disk = disk
        self._closing = ExitStack()
        self._lacks_file = False  # that a new CommitLog file could not be made is told once
        levels = delay_levels_ms(config.delay_levels)
        self._log = CommitLog(config.commitlog_path, config.commitlog_file_bytes, disk)
        self._queues = QueueTable(config, disk)
        self._index = Index(config, disk) if config.index_enabled else None
        self._dropped = config_files.load_numbers(self._dropped_path)
        self._dispatch = Dispatch(self._log, self._queues, self._index, levels, UnitWriter(self._queues, self._dropped))
        self._reader = Reader(config, self._log, self._queues, self._index)
        self._appender = Appender(config, self._log, self._queues, store_host.to_bytes(), self._roll)
        self._refusals = Refusals(config.root, self._appender)
        self.put = self._appender.put
        bulk = BulkAppender(self._appender, config, self._log, self._roll)
        self.put_batch = bulk.put_batch
        self.put_encoded = bulk.put_encoded
        if config.slave:  # its master writes it; Java: "broker role is slave, so putMessage is forbidden"
            self.put = self.put_batch = refuse_put
        self.next_offset = self._appender.next_offset
        self.get = self._reader.get
        self.query = self._reader.query
        self.message = self._reader.message
        self.message_by_id = self._reader.message_by_id
        self.offset_by_time = self._reader.offset_by_time
        self.store_timestamp_ms = self._reader.store_timestamp_ms
        self.is_in_memory = self._reader.is_in_memory
        self.min_offset = self._reader.min_offset
        self.max_offset = self._reader.max_offset
        self.record = self._log.record
        self.log_stretch = self._log.stretch
        is_sync = config.flush_disk_type is FlushDiskType.SYNC
        self._flusher = LogFlusher(self._log, disk, None if is_sync else config.flush_interval_ms)
        self._flusher.on_fault(self._on_flush_fault)
        self._marks = Marks(config.root, disk)
        self._background = Background(
            config, disk, self._log, self._queues.open_files, self._index, self._dispatch, self._flusher, self._marks
        )
        self._live = LiveDispatch(config, self._log, self._dispatch, self._flusher, self._background, self._refusals)
        self.dispatch = self._live.run
        self.on_dispatched = self._live.on_dispatched
        self.wait_for_kernels = self._live.wait_for_kernels
        cleaner = Cleaner(
            config, disk, self._log, self._queues, self._index, self._dispatch, self._background, self._flusher,
            self._refusals,
        )  # fmt: skip
        self.clean = cleaner.clean
        self.recovery = RecoveryReport()

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        now_ms: int,
        *,
        store_host: Host | None = None,
        disk: Disk | None = None,
        on_kernels: Callable[[], None] | None = None,
    ) -> "MessageStore":
        """Open a store, or make one, and recover it.

        Args:
            config: its settings.
            now_ms: the time.
            store_host: the broker's address, as records and message ids show it; 127.0.0.1:10911 by default.
            disk: the file system.
            on_kernels: has ``dispatch`` of a new store leave messages for later until its kernels are loaded, and is
                called then, in a thread of its own; see ``LiveDispatch.load_kernels_beside``.

        Raises:
            StoreLockedError: another process, or this one, has it open.
            StoreSizeError: files of other sizes than the settings say.
            StoreError: it cannot be locked.
            OSError: the disk is full or broken, or the directory cannot be written.
        """
        disk = disk or Disk()
        disk.make_directory(config.root)
        locked = hold_lock(config.root)
        try:
            store = cls(config, store_host=store_host or Host(b"\x7f\0\0\1", 10911), disk=disk)
            try:
                store._open(now_ms, on_kernels)
            except BaseException:
                store._live.wait_for_kernels()  # no thread may be left that imports
                raise
        except BaseException:
            locked.close()
            raise
        store._closing.push(locked)
        return store

    @property
    def _dropped_path(self) -> str:
        return f"{paths.config_dir(self.config.root)}/{_DROPPED_TOPICS}"

    def _open(self, now_ms: int, on_kernels: Callable[[], None] | None) -> None:
        if list_log_files(self.config.commitlog_path):
            load_kernels()
        else:
            self._live.load_kernels_beside(on_kernels)
        recovery = Recovery(
            self.config, self._disk, self._log, self._queues, self._index, self._dispatch, self._marks, self._dropped,
            now_ms,
        )  # fmt: skip
        self.recovery = recovery.run()
        if self.recovery.damages:
            damages = "; ".join(map(str, self.recovery.damages))
            _LOGGER.error("%(store)s: damage in the log: %(damages)s", {"store": self.config.root, "damages": damages})
        self._flusher.start(self._log.max_offset)
        self._background.force()
        self._background.start()

    def _roll(self) -> bool:
        """Have the log go on in a new file."""
        start = self._log.start + self.config.commitlog_file_bytes
        try:
            self._log.roll(self._background.take(start))
        except OSError as error:
            if not self._lacks_file:  # each message that comes now asks again
                _LOGGER.error(
                    "%(store)s: no new CommitLog file: %(error)s", {"store": self.config.root, "error": error}
                )
            self._lacks_file = True
            return False
        self._lacks_file = False
        return True

    @property
    def is_loading_kernels(self) -> bool:
        """Whether what is appended becomes readable only when the kernels are loaded."""
        return self._live.is_loading_kernels

    # --- the disk -----------------------------------------------------------------------
    @property
    def flushed_offset(self) -> int:
        """Physical offset below which the log is on the disk."""
        return self._flusher.flushed_offset

    @property
    def dispatched_offset(self) -> int:
        """Physical offset below which messages are readable."""
        return self._dispatch.offset

    @property
    def refusals(self) -> dict[str, str]:
        """Why no messages are taken now, by cause; empty while they are."""
        return self._refusals.by_cause

    @property
    def fault(self) -> OSError | None:
        """The error that ended all writing for good, until the store is opened again; None while all is well."""
        return self._flusher.fault

    def on_flushed(self, listener: FlushListener) -> None:
        """Have a function called with the new ``flushed_offset``: by a thread of the store, so be brief."""
        self._flusher.on_flushed(listener)

    def on_fault(self, listener: FaultListener) -> None:
        """Have a function called when writing ends for good: no append that waits will be forced."""
        self._flusher.on_fault(listener)

    def wait_flushed(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Have all that is appended forced, and wait until that has reached an offset; for callers without a loop."""
        self._flusher.request()
        return self._flusher.wait(physical_offset, timeout_s)

    def flush(self) -> bool:
        """Force log, queues and Index as far as they are dispatched, and wait; False if that failed."""
        return self._background.force()

    def _on_flush_fault(self, error: OSError) -> None:
        self._refusals.add("fault", f"the disk failed: {error}; open the store again")

    def calculate_bit_maps(self, bit_map: Callable[[str, memoryview], bytes]) -> None:
        """Have messages that are dispatched from now on get bit maps, where ConsumeQueueExt has room for them.

        Args:
            bit_map: makes one of a topic and a record.
        """

        def of_message(topic: str, physical_offset: int) -> bytes:
            record = self._log.record(physical_offset)
            return b"" if record is None else bit_map(topic, record)

        self._dispatch.writer.bit_map_of = of_message

    # --- places -------------------------------------------------------------------------
    def topics(self) -> dict[str, list[int]]:
        """Topics that have queues, and the ids of these."""
        return self._queues.topics()

    @property
    def min_physical_offset(self) -> int:
        """Where the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Where the next record goes."""
        return self._log.max_offset

    def earliest_store_timestamp_ms(self) -> int | None:
        """Store timestamp of the oldest record; None without one."""
        return self._log.store_timestamp_ms(self._log.min_offset)

    # --- removing -----------------------------------------------------------------------
    def delete_topics(self, topics: Collection[str]) -> int:
        """Remove the queues of topics; how many had any. Their messages stay in the log until it is cleaned.

        A note of the place in the log keeps a later recovery from bringing the queues back.

        Source: ``DefaultMessageStore#deleteTopics``.
        """
        self.dispatch()
        self._dropped.update(dict.fromkeys(topics, self._log.max_offset))
        log_min = self._log.min_offset
        for topic in [topic for topic, offset in self._dropped.items() if offset < log_min]:
            del self._dropped[topic]
        config_files.save(self._dropped_path, config_files.dump_numbers(self._dropped), self._disk)
        removed = self._queues.remove_topics(topics)
        for topic in topics:
            self._appender.forget(topic)
        self._dispatch.writer.forget()
        self._dispatch.note()
        self._background.force()
        return removed

    # --- the end ------------------------------------------------------------------------
    def shutdown(self) -> bool:
        """Dispatch and force everything, and let go of the store.

        Returns:
            Whether the next start finds it complete; else the mark of a crash stays, and it is recovered then.
        """
        self._refusals.add(SHUTDOWN, "the store is shut down")
        self.wait_for_kernels()  # no thread may be left that imports
        self._flusher.stop()
        self.dispatch()
        self._background.stop()
        is_complete = self._dispatch.offset == self._log.max_offset and self.fault is None
        is_complete = is_complete and self._background.force(clean=True)
        if is_complete:
            self._disk.remove(paths.abort_file(self.config.root))
            self._disk.sync_directory(self.config.root)
        self._queues.close()
        self._log.close()
        self._closing.close()
        return is_complete
