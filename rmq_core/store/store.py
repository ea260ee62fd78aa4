"""``MessageStore``: one store, open.

One thread calls it, an event loop's for instance. Nothing here waits for the disk but opening, shutting
down, deleting topics, and an append that needs a new file when none has been made ahead.
"""

import logging
from collections.abc import Callable, Collection, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rmq_core.store import config_files
from rmq_core.store.append import Appender
from rmq_core.store.background import Background
from rmq_core.store.config import FlushDiskType, StoreConfig
from rmq_core.store.disk import Disk
from rmq_core.store.dispatch import Dispatch
from rmq_core.store.flush import FaultListener, FlushListener, LogFlusher
from rmq_core.store.index import Index
from rmq_core.store.lock import hold_lock
from rmq_core.store.log import CommitLog
from rmq_core.store.queues import QueueTable
from rmq_core.store.read import MAX_PULL_BYTES, Matches, Reader
from rmq_core.store.recovery import Recovery, RecoveryReport
from rmq_core.store.retention import CleanReport, Pressure, Retention
from rmq_core.store.unit_writer import UnitWriter
from rmq_core.store.values import Arrival, Boundary, GetResult, PutResult, PutStatus, QueryResult
from rmq_core.store.watermark import Marks
from rmq_formats import paths
from rmq_formats.consumequeue import delay_levels_ms
from rmq_formats.hosts import Host
from rmq_formats.index import MAX_LONG
from rmq_formats.message import StoredMessage
from rmq_formats.message_id import decode_message_id

ArrivalListener = Callable[[list[Arrival]], None]

_LOGGER = logging.getLogger(__name__)
_REFUSED: Final = PutResult(PutStatus.SERVICE_NOT_AVAILABLE)
_DROPPED_TOPICS: Final = "droppedTopics.json"


class MessageStore:
    """The store.

    Attributes:
        config: its settings.
        recovery: what opening it found.
    """

    def __init__(self, config: StoreConfig, now_ms: int, *, store_host: Host, disk: Disk) -> None:
        """Use ``open``."""
        self.config = config
        self._disk = disk
        self._closing = ExitStack()
        self._refusals: dict[str, str] = {}
        self._on_arrival: list[ArrivalListener] = []
        levels = delay_levels_ms(config.delay_levels)
        self._log = CommitLog(config.commitlog_path, config.commitlog_file_bytes, disk)
        self._queues = QueueTable(config, disk)
        self._index = Index(config, disk) if config.index_enabled else None
        self._dropped = config_files.load_numbers(self._dropped_path)
        self._dispatch = Dispatch(self._log, self._queues, self._index, levels, UnitWriter(self._queues, self._dropped))
        self._reader = Reader(config, self._log, self._queues, self._index)
        self._appender = Appender(config, self._log, self._queues, store_host.to_bytes(), self._roll)
        self._is_sync = config.flush_disk_type is FlushDiskType.SYNC
        self._flusher = LogFlusher(self._log, disk, None if self._is_sync else config.flush_interval_ms)
        self._flusher.on_fault(self._on_flush_fault)
        self._marks = Marks(config.root, disk)
        self._background = Background(
            config, disk, self._log, self._queues.open_files, self._index, self._dispatch, self._flusher, self._marks
        )
        self._retention = Retention(config, disk)
        self.recovery = RecoveryReport()
        self._open(now_ms)

    @classmethod
    def open(
        cls, config: StoreConfig, now_ms: int, *, store_host: Host | None = None, disk: Disk | None = None
    ) -> "MessageStore":
        """Open a store, or make one, and recover it.

        Args:
            config: its settings.
            now_ms: the time.
            store_host: the broker's address, as records and message ids show it; 127.0.0.1:10911 by default.
            disk: the file system.

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
            store = cls(config, now_ms, store_host=store_host or Host(b"\x7f\0\0\1", 10911), disk=disk)
        except BaseException:
            locked.close()
            raise
        store._closing.push(locked)
        return store

    @property
    def _dropped_path(self) -> str:
        return f"{paths.config_dir(self.config.root)}/{_DROPPED_TOPICS}"

    def _open(self, now_ms: int) -> None:
        recovery = Recovery(
            self.config, self._disk, self._log, self._queues, self._index, self._dispatch, self._marks, now_ms
        )
        self.recovery = recovery.run()
        if self.recovery.damages:
            _LOGGER.error("%s: damage in the log: %s", self.config.root, "; ".join(map(str, self.recovery.damages)))
        self._flusher.start(self._log.max_offset)
        self._background.force()
        self._background.start()

    # --- taking messages in -------------------------------------------------------------
    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        now_ms: int,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        store_host: bytes | None = None,
    ) -> PutResult:
        """Append one message. It is readable after the next ``dispatch``.

        Args:
            topic: of the message.
            queue_id: of its queue.
            body: as it is to be stored; not empty.
            properties: encoded.
            born_timestamp_ms: when the producer made it.
            born_host: the producer: 4 or 16 address bytes, and the port in 4.
            now_ms: the time, to be its store timestamp.
            flag: the user's own.
            sys_flag: bits of ``rmq_formats.layout``; those of the hosts are set here.
            reconsume_times: how often consuming it failed.
            prepared_transaction_offset: of a commit, where its half message stands.
            store_host: other than the store's own.

        Returns:
            PUT_OK and its place; or MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED, CREATE_MAPPED_FILE_FAILED (no
            room for a new file; try again), SERVICE_NOT_AVAILABLE (see ``refusals``). With SYNC_FLUSH it is
            stored for good when ``flushed_offset`` reaches its ``end_offset``.

        Source: ``CommitLog#asyncPutMessage``.
        """
        return self._appender.put(
            topic, queue_id, body, properties, born_timestamp_ms, born_host, now_ms, flag=flag, sys_flag=sys_flag,
            reconsume_times=reconsume_times, prepared_transaction_offset=prepared_transaction_offset,
            store_host=store_host,
        )  # fmt: skip

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        properties: bytes,
        born_timestamp_ms: int,
        born_host: bytes,
        now_ms: int,
        *,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        store_host: bytes | None = None,
    ) -> PutResult:
        """Append the messages of a client's batch, all or none.

        Args:
            topic: of all.
            queue_id: of all.
            batch: as it came over the wire.
            properties: of the batch, encoded; they follow those of each message.
            born_timestamp_ms: as in ``put``, like all that follow.
            born_host: likewise.
            now_ms: likewise.
            sys_flag: likewise; transactions cannot come in batches.
            reconsume_times: likewise.
            store_host: likewise.

        Source: ``CommitLog#asyncPutMessages``, ``MessageExtEncoder#encode(MessageExtBatch)``.
        """
        return self._appender.put_batch(
            topic, queue_id, batch, properties, born_timestamp_ms, born_host, now_ms, sys_flag=sys_flag,
            reconsume_times=reconsume_times, store_host=store_host,
        )  # fmt: skip

    def put_encoded(self, physical_offset: int, data: bytes | memoryview) -> bool:
        """Append bytes of a master's log, as a slave does; they may begin and end within records.

        Returns:
            False if they do not belong at the end of this log, or cannot be taken now.

        Source: ``DefaultMessageStore#appendToCommitLog``.
        """
        done = self._appender.put_encoded(physical_offset, data)
        self._appender.forget_all()  # numbers come with the records here
        return done

    def _roll(self) -> bool:
        """Have the log go on in a new file."""
        start = self._log.start + self.config.commitlog_file_bytes
        try:
            self._log.roll(self._background.take(start))
        except OSError as error:
            _LOGGER.error("%s: no new CommitLog file: %s", self.config.root, error)
            return False
        return True

    def dispatch(self) -> bool:
        """Make what has been appended readable, and have it forced. Call it once for each batch of appends.

        With SYNC_FLUSH only what is forced becomes readable: what a consumer has seen must not be lost. Call
        it again when ``on_flushed`` tells of more.

        Returns:
            False if the disk did not take it: it is tried again at the next call, and until then no message is
            taken.

        Source: ``DefaultMessageStore.ReputMessageService``.
        """
        log = self._log
        if log.position >= log.preallocate_at and self.config.preallocate:
            log.preallocate_at = log.file_bytes + 1
            self._background.prepare(log.start + log.file_bytes)
        if self._is_sync:
            self._flusher.request()
        limit = self._flusher.flushed_offset if self._is_sync else log.max_offset
        if self._dispatch.offset >= limit:
            return True
        rows: dict[int, list[int]] | None = {} if self._on_arrival else None
        try:
            self._dispatch.run(limit, rows)
        except OSError as error:  # what it needs may come: a full disk heals
            self._refuse("dispatch", f"ConsumeQueue or Index cannot be written: {error}")
            return False
        if self._refusals and "dispatch" in self._refusals:
            self._accept("dispatch")
        if rows:
            arrivals = self._dispatch.arrivals_of(rows)
            for listener in self._on_arrival:
                listener(arrivals)
        return True

    def on_dispatched(self, listener: ArrivalListener) -> None:
        """Have ``dispatch`` call a function with the queues that have new messages."""
        self._on_arrival.append(listener)

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
        return dict(self._refusals)

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
        self._refuse("fault", f"the disk failed: {error}; open the store again")

    def _refuse(self, cause: str, text: str) -> None:
        if cause not in self._refusals:
            _LOGGER.error("%s: takes no more messages: %s", self.config.root, text)
        self._refusals[cause] = text
        self._appender.refusal = _REFUSED

    def _accept(self, cause: str) -> None:
        if self._refusals.pop(cause, None) is not None:
            _LOGGER.warning("%s: %s is over", self.config.root, cause)
        if not self._refusals:
            self._appender.refusal = None

    # --- reads --------------------------------------------------------------------------
    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int = MAX_PULL_BYTES,
        tags_codes: Set[int] | None = None,
        matches: Matches | None = None,
    ) -> GetResult:
        """Messages of a queue, from an offset on.

        Args:
            topic: of the queue.
            queue_id: of the queue.
            queue_offset: of the first.
            max_count: at most so many; the settings bound count and bytes as well. The first is always given.
            max_bytes: at most so many bytes.
            tags_codes: only messages with one of these tags codes; None takes all.
            matches: only messages whose record this function accepts.

        Source: ``DefaultMessageStore#getMessage``.
        """
        return self._reader.get(
            topic, queue_id, queue_offset, max_count, max_bytes=max_bytes, tags_codes=tags_codes, matches=matches
        )

    def record(self, physical_offset: int) -> memoryview | None:
        """The stored record at a physical offset; None where none begins. Source: ``#selectOneMessageByOffset``."""
        return self._log.record(physical_offset)

    def message(self, physical_offset: int) -> StoredMessage | None:
        """The message at a physical offset, decoded; None where none begins. Source: ``#lookMessageByOffset``."""
        return self._reader.message(physical_offset)

    def message_by_id(self, msg_id: str) -> StoredMessage | None:
        """The message with an offset message id.

        Raises:
            DecodeError: not such an id.
        """
        return self._reader.message(decode_message_id(msg_id)[1])

    def log_stretch(self, physical_offset: int, most_bytes: int) -> memoryview | None:
        """Bytes of the log for a slave, from an offset to the end of its file at most; None where nothing stands."""
        return self._log.stretch(physical_offset, most_bytes)

    def query(
        self, topic: str, key: str, max_count: int, begin_ms: int = 0, end_ms: int = MAX_LONG, *, unique: bool = False
    ) -> QueryResult:
        """Messages of a topic with a key, newest first.

        Args:
            topic: of the messages.
            key: one of KEYS, or the UNIQ_KEY.
            max_count: at most so many; the settings bound it as well.
            begin_ms: earliest store time, to the second.
            end_ms: latest store time.
            unique: look for UNIQ_KEY only.

        Source: ``DefaultMessageStore#queryMessage``, which gives messages with other keys of the same hash too.
        """
        return self._reader.query(topic, key, max_count, begin_ms, end_ms, unique=unique)

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Queue offset for a store time.

        LOWER is the first message stored at that time or later (the maximum offset if none is), UPPER the
        last one stored at that time or earlier (the minimum offset if none is).

        Source: ``ConsumeQueueStore#getOffsetInQueueByTime``.
        """
        return self._reader.offset_by_time(topic, queue_id, time_ms, boundary)

    def store_timestamp_ms(self, topic: str, queue_id: int, queue_offset: int) -> int | None:
        """When a message of a queue was stored; None where there is none."""
        return self._reader.store_timestamp_ms(topic, queue_id, queue_offset)

    def is_in_memory(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether a message is likely still in memory."""
        return self._reader.is_in_memory(topic, queue_id, queue_offset)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """First readable queue offset; 0 for a queue that is not there."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset one past the newest readable message."""
        queue = self._queues.get(topic, queue_id)
        return 0 if queue is None else queue.max_offset

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset that the next message gets."""
        return self._appender.next_offset(topic, queue_id)

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
    def clean(self, now_ms: int, *, manually: bool = False) -> CleanReport:
        """Remove what is too old, or what the disk has no room for; call it every ten seconds.

        Args:
            now_ms: the time.
            manually: whatever the hour, as an operator asks.
        """
        pressure = self._retention.pressure()
        if pressure is Pressure.FULL:
            self._refuse("disk", "the disk is nearly full")
        elif "disk" in self._refusals:
            self._accept("disk")
        log = self._log
        done = min(self._dispatch.offset, self.flushed_offset)
        ended = [file.path for file in log.files if file.start + file.size <= done]
        last = [log.files[-1].path] if log.files else []
        count = self._retention.expired(ended + last, now_ms, pressure, manually=manually)
        for _ in range(count):
            self._background.remove_later(partial(self._remove_file, log.remove_first().path))
        queue_files, index_files = self._drop_expired() if count else (0, 0)
        return CleanReport(pressure, count, queue_files, index_files)

    def _remove_file(self, path: str) -> None:
        self._disk.remove(path)
        self._disk.sync_directory(str(Path(path).parent))

    def _drop_expired(self) -> tuple[int, int]:
        """Remove queue and Index files below the log's new beginning. Source: ``CleanConsumeQueueService``."""
        log_min = self._log.min_offset
        queue_files = 0
        for queue in self._queues:
            queue_files += queue.remove_expired(log_min)
            queue.correct_min(log_min)
        expired = [] if self._index is None else self._index.remove_expired(log_min)
        for file in expired:
            self._background.remove_later(partial(self._disk.remove, file.path))
        self._dispatch.note()
        return queue_files, len(expired)

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
        self._refuse_quietly()
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

    def _refuse_quietly(self) -> None:
        self._refusals["shutdown"] = "the store is shut down"
        self._appender.refusal = _REFUSED
