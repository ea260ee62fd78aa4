"""``MessageStore``: an open store, with its appends, reads, dispatch, flushes and cleaning.

One thread calls the store, such as an event loop's. Only opening, shutting down, deleting topics, and an append that
needs a new file which was not created ahead wait for the disk.
"""

import logging
from collections.abc import Collection, Mapping, Set
from contextlib import ExitStack

from rmq_core.store.commitlog.append import SHUTDOWN, Appender, Refusals
from rmq_core.store.commitlog.append_bulk import BulkAppender
from rmq_core.store.commitlog.flush import LogFlusher
from rmq_core.store.commitlog.log import Boundaries, CommitLog
from rmq_core.store.commitlog.quarantine import Quarantine
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_core.store.consumequeue.writer import UnitWriter
from rmq_core.store.dispatch.dispatch import Dispatch
from rmq_core.store.dispatch.kernel_loading import load_kernels
from rmq_core.store.files.config_files import DeletedTopics
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.opening import lock_store, refuse_layouts
from rmq_core.store.files.threads import Threads
from rmq_core.store.files.watermark import CheckpointFiles
from rmq_core.store.index.index import Index, tags_from
from rmq_core.store.maintenance.background import Background
from rmq_core.store.maintenance.cleaning import Cleaner, TopicDeletions
from rmq_core.store.maintenance.reput import LiveDispatch
from rmq_core.store.parts import StoreParts
from rmq_core.store.read import StoreReader
from rmq_core.store.recovery.recovery import Recovery, RecoveryReport
from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.index import NO_TAGS

_LOGGER = logging.getLogger(__name__)


class MessageStore:
    """A message store on disk: CommitLog, ConsumeQueues and Index, open in this process.

    Reads are methods of ``StoreReader``; ``record`` and ``read_log_range`` are methods of the log, ``next_offset`` of
    the appender, ``topics`` of the queues, ``on_flushed`` and ``on_fault`` of ``LogFlusher``, ``on_dispatched`` of
    ``LiveDispatch``, ``clean`` of ``Cleaner``, ``remove_deleted_before`` and ``remove_deleted`` of ``TopicDeletions``.

    Attributes:
        appender: appends single messages; callers use it directly, as a further call for each message would cost time.
        boundaries: offsets in the log at which records begin.
        deleted_topics: physical offset by deleted topic: earlier records of the topic are dead.
    """

    def __init__(
        self, config: StoreConfig, *, store_host: Host, disk: Disk, threads: Threads, batch_topics: Set[str]
    ) -> None:
        """Use ``open``."""
        self.config = config
        self.recovery = RecoveryReport()
        self._closing = ExitStack()
        self.disk = disk
        self._log = log = CommitLog(config.commitlog_path, config.commitlog_file_bytes, disk)
        self.boundaries = Boundaries(log)
        self._deleted_topics = DeletedTopics(config.root, disk)
        self.deleted_topics: Mapping[str, int] = self._deleted_topics.ends
        self._queues = queues = ConsumeQueueTable(config, disk, self._deleted_topics, batch_topics)
        index = Index(config, disk) if config.index_enabled else None
        quarantine = Quarantine(config.root, disk)
        self._dispatch = Dispatch(
            log,
            queues,
            index,
            delay_levels_ms(config.delay_levels),
            UnitWriter(queues, is_slave=config.slave),
            quarantine,
            tags_from=tags_from(config),
            to_light_queues=config.lmq_enabled,
        )
        self.topics = queues.topics
        reader = StoreReader(config, log, queues, index)
        self.get = reader.get
        self.query = reader.query
        self.message = reader.message
        self.queue = reader.queue
        self.min_offset = reader.min_offset
        self.max_offset = reader.max_offset
        self.offset_by_time = reader.offset_by_time
        self.store_timestamp_ms = reader.store_timestamp_ms
        self.is_in_memory = reader.is_in_memory
        self.record = log.record
        self.read_log_range = log.read_range

        self.appender = Appender(config, log, queues, store_host.to_bytes(), self._roll)
        self.next_offset = self.appender.next_offset
        self.bulk = BulkAppender(self.appender, config, log)
        self._refusals = Refusals(config, self.appender)
        is_sync = config.flush_disk_type is FlushDiskType.SYNC
        self._flusher = LogFlusher(
            log,
            disk,
            threads,
            None if is_sync else config.flush_interval_ms,
            least_pages=config.flush_least_pages,
            thorough_interval_ms=config.flush_log_thorough_interval_ms,
        )
        self._flushes_batches = not is_sync and not config.flush_timed
        self._flusher.on_fault(self._on_flush_fault)
        self._parts = StoreParts(
            config=config,
            disk=disk,
            threads=threads,
            log=log,
            quarantine=quarantine,
            queues=queues,
            index=index,
            dispatch=self._dispatch,
            flusher=self._flusher,
            checkpoint_files=CheckpointFiles(config.root, disk),
            refusals=self._refusals,
        )
        self._background = Background(self._parts)
        self._live = LiveDispatch(self._parts, self._background)
        self._deletions = TopicDeletions(self._parts, self.appender, self._live, self._background)
        self.on_flushed = self._flusher.on_flushed
        self.on_fault = self._flusher.on_fault
        self.on_dispatched = self._live.on_dispatched
        self.clean = Cleaner(self._parts, self._background).clean
        self.remove_deleted_before = self._deletions.delete_before
        self.remove_deleted = self._deletions.remove_files

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        now_ms: int,
        *,
        store_host: Host | None = None,
        disk: Disk | None = None,
        threads: Threads | None = None,
    ) -> "MessageStore":
        """Open and recover a store; create the store if it does not exist.

        Args:
            store_host: the broker's address, as records and message ids show it; 127.0.0.1:10911 by default.

        Raises:
            StoreLockedError: another process, or this one, has the store open.
            StoreSizeError: a file has another size than the settings say.
            StoreLayoutError: a DLedger CommitLog, or queues of another layout.
            StoreError: the store cannot be locked, or the kernels cannot be loaded.
        """
        batch_topics = refuse_layouts(config.root, light_queues=config.lmq_enabled)
        load_kernels()
        disk = disk or Disk()
        disk.make_durable_directory(config.root)
        locked = lock_store(config.root, config.commitlog_path, disk)
        try:
            store = cls(
                config,
                store_host=store_host or Host(b"\x7f\0\0\1", 10911),
                disk=disk,
                threads=threads or Threads(),
                batch_topics=batch_topics,
            )
            store._open(now_ms)
        except BaseException:
            locked.close()
            raise
        store._closing.push(locked)
        return store

    def _open(self, now_ms: int) -> None:
        self.recovery = Recovery(self._parts, now_ms).run()
        self._deletions.begin()
        if not self.config.slave:  # a slave may still receive the rest of its log
            self.cut_deleted_topics()
        if self.recovery.damages:
            damages = "; ".join(map(str, self.recovery.damages))
            _LOGGER.error("%(store)s: damage in the log: %(damages)s", {"store": self.config.root, "damages": damages})
        self._flusher.start(self._log.max_offset)
        self._background.flush()
        self._background.start()

    # --- appending ----------------------------------------------------------------------
    def _roll(self) -> bool:
        return self._background.roll()  # which is created after the appender

    def append_to_commit_log(self, physical_offset: int, data: bytes | memoryview) -> bool:
        """Append bytes of a master's log, as a slave does; False if that is refused or fails. See ``BulkAppender``."""
        return not self._refusals.by_cause and self.bulk.append_to_commit_log(physical_offset, data)

    def dispatch(self, most_new_queues: int | None = None) -> bool:
        """Make appended messages readable; call it after each batch of appends. See ``LiveDispatch.run``."""
        if self._flushes_batches:
            self._flusher.wake()
        return self._live.run(most_new_queues)

    @property
    def has_more_to_dispatch(self) -> bool:
        """True if the last ``dispatch`` ended early."""
        return self._dispatch.has_more

    # --- the disk -----------------------------------------------------------------------
    @property
    def flushed_offset(self) -> int:
        """Physical offset below which the log is flushed to the disk."""
        return self._flusher.flushed_offset

    @property
    def dispatched_offset(self) -> int:
        """Physical offset below which the log is dispatched: its messages are readable."""
        return self._dispatch.offset

    @property
    def is_from_5_4(self) -> bool:
        """True for a store of RocketMQ 5.4 or later, with TAGS in its Index."""
        return self._dispatch.tags_from != NO_TAGS

    @property
    def refusals(self) -> dict[str, str]:
        """Reasons to refuse appends, by cause; empty while appends are accepted."""
        return self._refusals.by_cause

    @property
    def fault(self) -> OSError | None:
        """The I/O error that ended all writing until the store is opened again; None without an error."""
        return self._flusher.fault

    def wait_flushed(self, physical_offset: int, timeout_s: float | None = None) -> bool:
        """Flush all appended bytes, and block until an offset is flushed; for callers without an event loop."""
        self._flusher.request()
        return self._flusher.wait(physical_offset, timeout_s)

    def flush(self) -> bool:
        """Flush the log and the dispatched units and keys; return False if that failed."""
        return self._background.flush()

    def _on_flush_fault(self, error: OSError) -> None:
        self._refusals.add("fault", f"the disk failed: {error}; open the store again")

    # --- topics and offsets -------------------------------------------------------------
    @property
    def batch_topics(self) -> Set[str]:
        """Topics whose queues are BatchConsumeQueues."""
        return self._queues.batch_topics

    @property
    def stray_batch_topics(self) -> Set[str]:
        """Topics with inner batches but without BatchConsumeQueues: topics that a slave's config lacks."""
        return self._dispatch.stray_batch_topics - self._queues.batch_topics

    def set_batch_topics(self, topics: Collection[str]) -> None:
        """Set the topics with BatchConsumeQueues, before their first messages unless on a slave.

        On a slave, plain queues of such a topic are replaced; after an OSError call it again.
        """
        if self._queues.set_batch_topics(topics):
            self._dispatch.writer.clear_cache()
            self._queues.make_batch_queues(self._log.batch_unit)
            self._dispatch.publish_progress()

    @property
    def min_physical_offset(self) -> int:
        """Physical offset at which the log begins."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Physical offset of the next record."""
        return self._log.max_offset

    def earliest_store_timestamp_ms(self) -> int | None:
        """Store timestamp of the oldest record; None without one."""
        return self._log.store_timestamp_ms(self._log.min_offset)

    # --- removing -----------------------------------------------------------------------
    def delete_topics(self, topics: Collection[str], ends: Mapping[str, int] | None = None) -> int:
        """Remove the queues of topics; return the number of topics that had queues; see ``TopicDeletions.delete``."""
        return self._deletions.delete(topics, ends or {})

    def cut_deleted_topics(self) -> None:
        """Limit the offsets of deleted topics to a slave's log end, as its master may have lost later records."""
        self._deleted_topics.cut(self._log.max_offset)

    # --- the end ------------------------------------------------------------------------
    def shutdown(self) -> bool:
        """Dispatch and flush everything, then close the store.

        If that fails, False: the file ``abort`` stays, and the next start recovers the store.
        """
        self._refusals.add(SHUTDOWN, "the store is shut down")
        self._flusher.stop()
        self.dispatch()
        try:
            self._background.stop()
            self._queues.remove_files()
            is_complete = self._dispatch.offset == self._log.max_offset and not self._log.has_trailing_bytes
            is_complete = is_complete and self.fault is None
            is_complete = is_complete and self._background.flush(clean=True)
            if is_complete:
                self.disk.remove(paths.abort_file(self.config.root))
                self.disk.sync_directory(self.config.root)
        except OSError as error:
            _LOGGER.error(
                "%(store)s: not shut down in order, the next start recovers the store: %(error)s",
                {"store": self.config.root, "error": error},
            )
            is_complete = False
        self._queues.open_files.close_all()
        self._log.close()
        self._closing.close()
        return is_complete
