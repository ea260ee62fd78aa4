"""Settings of a store, and their names in RocketMQ's ``broker.conf``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, Final

from rmq_formats.codecs import layout
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.index import AUTO, INDEX_TAGS
from rmq_formats.codecs.paths import commitlog_dir
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V2
from rmq_formats.errors import OptionError


class FlushDiskType(Enum):
    """Time at which an append counts as stored: at once (ASYNC), or after a flush that many appends share (SYNC)."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


def _setting(default: Any, java_name: str | None = None, *, low: int | None = None) -> Any:
    """Declare a setting with its name in ``broker.conf``, and its least value."""
    return field(default=default, metadata={"java": java_name, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one store; the defaults are those of ``MessageStoreConfig``.

    A store does not record its file sizes: every program that opens the store must use the same settings.

    Attributes:
        commitlog_path: directory of the CommitLog; ``<root>/commitlog`` by default.
        consumequeue_file_bytes: rounded up to whole units.
        batchconsumequeue_file_bytes: a multiple of a unit's.
        consumequeue_ext_enabled: write tags codes and store times to ConsumeQueueExt; units hold their addresses.
        index_entries: entries of an IndexFile, the unused number 0 included.
        index_tags: index TAGS, as the original does from 5.4 on: ``yes``, ``no``, or ``auto``: only if the end of the
            store's Index has TAGS; a new store has none. The original has no such setting.
        flush_interval_ms: ASYNC: interval between flushes of the log.
        flush_consumequeue_interval_ms: how often busy ConsumeQueues are flushed, and checkpoint and watermark written.
        flush_thorough_interval_ms: interval after which all ConsumeQueues are flushed, however few units are new.
        flush_least_pages: new pages of 4 KiB that a flush of the log waits for, unless a flush is requested or the
            thorough interval is over. 0 here, so that few bytes are flushed as soon; 4 in the original.
        flush_log_thorough_interval_ms: interval after which the log is flushed, however few pages are new.
        flush_timed: ASYNC: flush the log by the clock alone; if false, after each batch of appends as well.
        flush_consumequeue_least_pages: new pages of all ConsumeQueues together that their flush waits for; 0 here.
            The original counts the pages of each queue, and waits for 2.
        delete_log_interval_ms: pause after each CommitLog file that is deleted.
        delete_queue_interval_ms: pause after each ConsumeQueue of which files are deleted.
        destroy_forcibly_interval_ms: maximal time for which a reader delays the removal of a CommitLog file.
        redelete_interval_ms: pause after a failed removal of a file. 0 retries in the next run of the background
            thread, a second later at most; 120,000 in the original.
        os_page_cache_busy_timeout_ms: how long an append may take before the store counts as busy.
        flush_index_interval_ms: how often the Index is flushed. Ours: the original flushes an IndexFile when it is
            full, and loses the last ones in a crash.
        delay_levels: delays of the levels 1, 2, …: number and unit (s, m, h, d), separated by a space.
        max_message_bytes: largest body; a record may be 64 KiB larger.
        append_crc_property: end each record with a checksum over all of it.
        preallocate: create the next CommitLog file before it is needed. The original always does.
        file_reserved_hours: age at which a CommitLog file that is not the last is deleted.
        delete_when: hours of the day, local time, two digits separated by ``;``, in which expired files are deleted.
        disk_max_used_ratio: percent of the disk in use above which old files are deleted at any hour.
        disk_clean_forcibly_ratio: percent above which files are deleted before their time.
        disk_warning_ratio: percent above which the store refuses appends.
        delete_batch: CommitLog files that one round of cleaning deletes at most.
        max_transfer_bytes_in_memory: maximal bytes of one read, not counting the first message.
        max_transfer_bytes_on_disk: maximal bytes of a read of messages that are probably no longer in memory.
        memory_ratio: percent of the machine's memory that the newest part of the log is estimated to fill.
        max_filter_bytes: ConsumeQueue bytes that one filtered read scans, at least.
        max_query_count: maximal messages that one query by key returns.
        lmq_enabled: assign offsets in light queues (LMQ) to messages that name light queues.
        multi_dispatch_enabled: write the units of light queues; must be equal to ``lmq_enabled``.
        max_lmq_queues: maximal number of light queues; a message that names a further one is refused. The original
            has had the setting since 5.0 and ignores it.
        slave: this is a slave's store, to which only the master's log is appended.
        offset_check_in_slave: a slave corrects queue offsets that are out of range, as a master does.
    """

    root: str = field(metadata={"java": "storePathRootDir"})
    commitlog_path: str = _setting("", "storePathCommitLog")
    commitlog_file_bytes: int = _setting(
        layout.COMMITLOG_FILE_BYTES, "mappedFileSizeCommitLog", low=RECORD_FIXED_BYTES_V2 + layout.BLANK_BYTES
    )
    consumequeue_file_bytes: int = _setting(
        layout.CONSUMEQUEUE_FILE_BYTES, "mappedFileSizeConsumeQueue", low=layout.UNIT_BYTES
    )
    batchconsumequeue_file_bytes: int = _setting(
        layout.BATCH_FILE_BYTES, "mapperFileSizeBatchConsumeQueue", low=layout.BATCH_UNIT_BYTES
    )
    consumequeue_ext_enabled: bool = _setting(False, "enableConsumeQueueExt")
    consumequeue_ext_file_bytes: int = _setting(
        layout.EXT_FILE_BYTES, "mappedFileSizeConsumeQueueExt", low=layout.EXT_MIN_FILE_BYTES
    )
    index_enabled: bool = _setting(True, "messageIndexEnable")
    index_slots: int = _setting(layout.INDEX_SLOTS, "maxHashSlotNum", low=1)
    index_entries: int = _setting(layout.INDEX_ENTRIES, "maxIndexNum", low=2)
    index_tags: str = _setting(AUTO, "indexTags")
    flush_disk_type: FlushDiskType = field(default=FlushDiskType.ASYNC, metadata={"java": "flushDiskType"})
    flush_interval_ms: int = _setting(500, "flushIntervalCommitLog", low=1)
    flush_consumequeue_interval_ms: int = _setting(1000, "flushIntervalConsumeQueue", low=1)
    flush_thorough_interval_ms: int = _setting(60_000, "flushConsumeQueueThoroughInterval", low=1)
    flush_least_pages: int = _setting(0, "flushCommitLogLeastPages", low=0)
    flush_log_thorough_interval_ms: int = _setting(10_000, "flushCommitLogThoroughInterval", low=1)
    flush_timed: bool = _setting(True, "flushCommitLogTimed")
    flush_consumequeue_least_pages: int = _setting(0, "flushConsumeQueueLeastPages", low=0)
    delete_log_interval_ms: int = _setting(100, "deleteCommitLogFilesInterval", low=0)
    delete_queue_interval_ms: int = _setting(100, "deleteConsumeQueueFilesInterval", low=0)
    destroy_forcibly_interval_ms: int = _setting(120_000, "destroyMapedFileIntervalForcibly", low=0)
    redelete_interval_ms: int = _setting(0, "redeleteHangedFileInterval", low=0)
    os_page_cache_busy_timeout_ms: int = _setting(1000, "osPageCacheBusyTimeOutMills", low=1)
    flush_index_interval_ms: int = _setting(10_000, low=1)
    delay_levels: str = _setting(layout.DEFAULT_DELAY_LEVELS, "messageDelayLevel")
    max_message_bytes: int = _setting(layout.MAX_BODY_BYTES, "maxMessageSize", low=1)
    append_crc_property: bool = _setting(False, "enabledAppendPropCRC")
    check_crc_on_recover: bool = _setting(True, "checkCRCOnRecover")
    preallocate: bool = True
    file_reserved_hours: int = _setting(72, "fileReservedTime", low=0)
    delete_when: str = _setting("04", "deleteWhen")
    disk_max_used_ratio: int = _setting(75, "diskMaxUsedSpaceRatio")
    disk_clean_forcibly_ratio: int = _setting(85, "diskSpaceCleanForciblyRatio")
    disk_warning_ratio: int = _setting(90, "diskSpaceWarningLevelRatio")
    clean_forcibly: bool = _setting(True, "cleanFileForciblyEnable")
    delete_batch: int = _setting(10, "deleteFileBatchMax", low=1)
    max_transfer_bytes_in_memory: int = _setting(256 << 10, "maxTransferBytesOnMessageInMemory")
    max_transfer_count_in_memory: int = _setting(32, "maxTransferCountOnMessageInMemory")
    max_transfer_bytes_on_disk: int = _setting(64 << 10, "maxTransferBytesOnMessageInDisk")
    max_transfer_count_on_disk: int = _setting(8, "maxTransferCountOnMessageInDisk")
    memory_ratio: int = _setting(40, "accessMessageInMemoryMaxRatio")
    max_filter_bytes: int = _setting(16_000, "maxFilterMessageSize")
    max_query_count: int = _setting(64, "maxMsgsNumBatch", low=1)
    lmq_enabled: bool = _setting(False, "enableLmq")
    multi_dispatch_enabled: bool = _setting(False, "enableMultiDispatch")
    max_lmq_queues: int = _setting(20_000, "maxLmqConsumeQueueNum", low=0)
    slave: bool = False
    offset_check_in_slave: bool = _setting(False, "offsetCheckInSlave")

    def __post_init__(self) -> None:
        rounded_bytes = -(-self.consumequeue_file_bytes // layout.UNIT_BYTES) * layout.UNIT_BYTES
        object.__setattr__(self, "consumequeue_file_bytes", rounded_bytes)
        if not self.commitlog_path:
            object.__setattr__(self, "commitlog_path", commitlog_dir(self.root))
        for setting in fields(self):
            low, value = setting.metadata.get("low"), getattr(self, setting.name)
            if low is not None and value < low:
                raise OptionError(f"{setting.metadata['java'] or setting.name} must be at least {low}, not {value}")
        for name in ("disk_max_used_ratio", "disk_clean_forcibly_ratio", "disk_warning_ratio", "memory_ratio"):
            if not 0 <= getattr(self, name) <= 100:
                raise OptionError(f"{JAVA_NAMES[name]} is a percentage, not {getattr(self, name)}")
        if not self.root:
            raise OptionError("storePathRootDir is empty")
        if self.batchconsumequeue_file_bytes % layout.BATCH_UNIT_BYTES:
            raise OptionError(
                f"mapperFileSizeBatchConsumeQueue must be a multiple of {layout.BATCH_UNIT_BYTES}, not "
                f"{self.batchconsumequeue_file_bytes}"
            )
        if self.lmq_enabled != self.multi_dispatch_enabled:
            raise OptionError("enableLmq and enableMultiDispatch go together: light queues (LMQ) need both")
        if "," in self.commitlog_path:
            raise OptionError("storePathCommitLog names several directories; one is supported")
        try:
            delay_levels_ms(self.delay_levels)
        except OptionError as error:
            raise OptionError(f"messageDelayLevel: {error}") from None
        delete_hours(self.delete_when)
        if self.index_tags not in INDEX_TAGS:
            raise OptionError(f"indexTags is one of {', '.join(INDEX_TAGS)}, not {self.index_tags!r}")

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "StoreConfig":
        """Return the settings of a ``broker.conf``; raise OptionError without a root, or for a bad value.

        Other properties are ignored.
        """
        if "storePathRootDir" not in properties:
            raise OptionError("storePathRootDir is not set")
        values = {}
        for java_name, text in properties.items():
            if java_name in STORE_PROPERTIES:
                name, parse = STORE_PROPERTIES[java_name]
                try:
                    values[name] = parse(text.strip())
                except ValueError:
                    raise OptionError(f"{java_name} has a bad value: {text!r}") from None
        return cls(**values)


def delete_hours(delete_when: str) -> frozenset[int]:
    """Parse the hours in a ``deleteWhen``, such as ``04;16``; raise OptionError for a part that is no hour.

    Source: ``UtilAll#isItTimeToDo``.
    """
    hours = [part.strip() for part in delete_when.split(";") if part.strip()]
    if not all(hour.isascii() and hour.isdigit() and int(hour) < 24 for hour in hours):
        raise OptionError(f"deleteWhen has a bad value: {delete_when!r}")
    return frozenset(int(hour) for hour in hours)


def _parse_bool(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


_PARSERS: dict[Any, Callable[[str], Any]] = {int: int, bool: _parse_bool, str: str, FlushDiskType: FlushDiskType}

# Java's name of each setting; the broker's loader of settings uses the table, too.
JAVA_NAMES: Final[Mapping[str, str]] = {
    setting.name: setting.metadata["java"] for setting in fields(StoreConfig) if setting.metadata.get("java")
}
STORE_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    java_name: (name, _PARSERS[StoreConfig.__dataclass_fields__[name].type]) for name, java_name in JAVA_NAMES.items()
}
