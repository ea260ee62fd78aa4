"""Settings of a store, and their names in RocketMQ's ``broker.conf``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.index import AUTO, INDEX_TAGS
from rmq_formats.codecs.layout import (
    BATCH_FILE_BYTES,
    BATCH_UNIT_BYTES,
    BLANK_BYTES,
    COMMITLOG_FILE_BYTES,
    CONSUMEQUEUE_FILE_BYTES,
    DEFAULT_DELAY_LEVELS,
    EXT_FILE_BYTES,
    EXT_MIN_FILE_BYTES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    MAX_BODY_BYTES,
    UNIT_BYTES,
)
from rmq_formats.codecs.paths import commitlog_dir
from rmq_formats.codecs.record_layout import RECORD_FIXED_BYTES_V2
from rmq_formats.errors import OptionError


class FlushDiskType(Enum):
    """Time at which an append counts as stored: at once (ASYNC), or after the flush to the disk (SYNC)."""

    ASYNC = "ASYNC_FLUSH"
    SYNC = "SYNC_FLUSH"


def _java_property(java_name: str) -> dict[str, Any]:
    return {"java": java_name}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one store; the defaults are those of ``MessageStoreConfig``.

    A store does not record its file sizes: every program that opens the store must use the same settings.

    Attributes:
        commitlog_path: directory of the CommitLog; ``<root>/commitlog`` by default.
        consumequeue_file_bytes: size of a ConsumeQueue file, rounded up to whole units.
        batchconsumequeue_file_bytes: size of a BatchConsumeQueue file, a multiple of a unit's.
        consumequeue_ext_enabled: write tags codes and store times to ConsumeQueueExt; units hold their addresses.
        index_entries: entries of an IndexFile, the unused number 0 included.
        index_tags: index TAGS, as the original does from 5.4 on: ``yes``, ``no``, or ``auto``: only if the end of the
            store's Index has TAGS; a new store has none. The original has no such setting.
        flush_disk_type: ASYNC answers at once; SYNC waits for a flush, which many appends share.
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
        max_transfer_count_in_memory: maximal messages of one read.
        max_transfer_bytes_on_disk: maximal bytes of a read of messages that are probably no longer in memory.
        max_transfer_count_on_disk: maximal messages of such a read.
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

    root: str = field(metadata=_java_property("storePathRootDir"))
    commitlog_path: str = field(default="", metadata=_java_property("storePathCommitLog"))
    commitlog_file_bytes: int = field(default=COMMITLOG_FILE_BYTES, metadata=_java_property("mappedFileSizeCommitLog"))
    consumequeue_file_bytes: int = field(
        default=CONSUMEQUEUE_FILE_BYTES, metadata=_java_property("mappedFileSizeConsumeQueue")
    )
    batchconsumequeue_file_bytes: int = field(
        default=BATCH_FILE_BYTES, metadata=_java_property("mapperFileSizeBatchConsumeQueue")
    )
    consumequeue_ext_enabled: bool = field(default=False, metadata=_java_property("enableConsumeQueueExt"))
    consumequeue_ext_file_bytes: int = field(
        default=EXT_FILE_BYTES, metadata=_java_property("mappedFileSizeConsumeQueueExt")
    )
    index_enabled: bool = field(default=True, metadata=_java_property("messageIndexEnable"))
    index_slots: int = field(default=INDEX_SLOTS, metadata=_java_property("maxHashSlotNum"))
    index_entries: int = field(default=INDEX_ENTRIES, metadata=_java_property("maxIndexNum"))
    index_tags: str = field(default=AUTO, metadata=_java_property("indexTags"))
    flush_disk_type: FlushDiskType = field(default=FlushDiskType.ASYNC, metadata=_java_property("flushDiskType"))
    flush_interval_ms: int = field(default=500, metadata=_java_property("flushIntervalCommitLog"))
    flush_consumequeue_interval_ms: int = field(default=1000, metadata=_java_property("flushIntervalConsumeQueue"))
    flush_thorough_interval_ms: int = field(
        default=60_000, metadata=_java_property("flushConsumeQueueThoroughInterval")
    )
    flush_least_pages: int = field(default=0, metadata=_java_property("flushCommitLogLeastPages"))
    flush_log_thorough_interval_ms: int = field(
        default=10_000, metadata=_java_property("flushCommitLogThoroughInterval")
    )
    flush_timed: bool = field(default=True, metadata=_java_property("flushCommitLogTimed"))
    flush_consumequeue_least_pages: int = field(default=0, metadata=_java_property("flushConsumeQueueLeastPages"))
    delete_log_interval_ms: int = field(default=100, metadata=_java_property("deleteCommitLogFilesInterval"))
    delete_queue_interval_ms: int = field(default=100, metadata=_java_property("deleteConsumeQueueFilesInterval"))
    destroy_forcibly_interval_ms: int = field(
        default=120_000, metadata=_java_property("destroyMapedFileIntervalForcibly")
    )
    redelete_interval_ms: int = field(default=0, metadata=_java_property("redeleteHangedFileInterval"))
    os_page_cache_busy_timeout_ms: int = field(default=1000, metadata=_java_property("osPageCacheBusyTimeOutMills"))
    flush_index_interval_ms: int = 10_000
    delay_levels: str = field(default=DEFAULT_DELAY_LEVELS, metadata=_java_property("messageDelayLevel"))
    max_message_bytes: int = field(default=MAX_BODY_BYTES, metadata=_java_property("maxMessageSize"))
    append_crc_property: bool = field(default=False, metadata=_java_property("enabledAppendPropCRC"))
    check_crc_on_recover: bool = field(default=True, metadata=_java_property("checkCRCOnRecover"))
    preallocate: bool = True
    file_reserved_hours: int = field(default=72, metadata=_java_property("fileReservedTime"))
    delete_when: str = field(default="04", metadata=_java_property("deleteWhen"))
    disk_max_used_ratio: int = field(default=75, metadata=_java_property("diskMaxUsedSpaceRatio"))
    disk_clean_forcibly_ratio: int = field(default=85, metadata=_java_property("diskSpaceCleanForciblyRatio"))
    disk_warning_ratio: int = field(default=90, metadata=_java_property("diskSpaceWarningLevelRatio"))
    clean_forcibly: bool = field(default=True, metadata=_java_property("cleanFileForciblyEnable"))
    delete_batch: int = field(default=10, metadata=_java_property("deleteFileBatchMax"))
    max_transfer_bytes_in_memory: int = field(
        default=256 << 10, metadata=_java_property("maxTransferBytesOnMessageInMemory")
    )
    max_transfer_count_in_memory: int = field(default=32, metadata=_java_property("maxTransferCountOnMessageInMemory"))
    max_transfer_bytes_on_disk: int = field(
        default=64 << 10, metadata=_java_property("maxTransferBytesOnMessageInDisk")
    )
    max_transfer_count_on_disk: int = field(default=8, metadata=_java_property("maxTransferCountOnMessageInDisk"))
    memory_ratio: int = field(default=40, metadata=_java_property("accessMessageInMemoryMaxRatio"))
    max_filter_bytes: int = field(default=16_000, metadata=_java_property("maxFilterMessageSize"))
    max_query_count: int = field(default=64, metadata=_java_property("maxMsgsNumBatch"))
    lmq_enabled: bool = field(default=False, metadata=_java_property("enableLmq"))
    multi_dispatch_enabled: bool = field(default=False, metadata=_java_property("enableMultiDispatch"))
    max_lmq_queues: int = field(default=20_000, metadata=_java_property("maxLmqConsumeQueueNum"))
    slave: bool = False
    offset_check_in_slave: bool = field(default=False, metadata=_java_property("offsetCheckInSlave"))

    def __post_init__(self) -> None:
        rounded_bytes = -(-self.consumequeue_file_bytes // UNIT_BYTES) * UNIT_BYTES
        object.__setattr__(self, "consumequeue_file_bytes", rounded_bytes)
        if not self.commitlog_path:
            object.__setattr__(self, "commitlog_path", commitlog_dir(self.root))
        self._check()

    def _check(self) -> None:
        """Refuse a setting beyond its bounds with an OptionError that names the setting and its value."""
        lower_bounds = {
            "commitlog_file_bytes": RECORD_FIXED_BYTES_V2 + BLANK_BYTES,
            "consumequeue_file_bytes": UNIT_BYTES,
            "batchconsumequeue_file_bytes": BATCH_UNIT_BYTES,
            "consumequeue_ext_file_bytes": EXT_MIN_FILE_BYTES,
            "index_slots": 1,
            "index_entries": 2,
            "flush_interval_ms": 1,
            "flush_consumequeue_interval_ms": 1,
            "flush_thorough_interval_ms": 1,
            "flush_index_interval_ms": 1,
            "flush_least_pages": 0,
            "flush_log_thorough_interval_ms": 1,
            "flush_consumequeue_least_pages": 0,
            "delete_log_interval_ms": 0,
            "delete_queue_interval_ms": 0,
            "destroy_forcibly_interval_ms": 0,
            "redelete_interval_ms": 0,
            "os_page_cache_busy_timeout_ms": 1,
            "max_message_bytes": 1,
            "file_reserved_hours": 0,
            "delete_batch": 1,
            "max_query_count": 1,
            "max_lmq_queues": 0,
        }
        for name, bound in lower_bounds.items():
            if getattr(self, name) < bound:
                raise OptionError(f"{JAVA_NAMES.get(name, name)} must be at least {bound}, not {getattr(self, name)}")
        for name in ("disk_max_used_ratio", "disk_clean_forcibly_ratio", "disk_warning_ratio", "memory_ratio"):
            if not 0 <= getattr(self, name) <= 100:
                raise OptionError(f"{JAVA_NAMES[name]} is a percentage, not {getattr(self, name)}")
        if not self.root:
            raise OptionError("storePathRootDir is empty")
        if self.batchconsumequeue_file_bytes % BATCH_UNIT_BYTES:
            raise OptionError(
                f"mapperFileSizeBatchConsumeQueue must be a multiple of {BATCH_UNIT_BYTES}, not "
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
        """Return the settings of the properties of a ``broker.conf``; other properties are ignored.

        Raises:
            OptionError: no root, or a value that cannot be used.
        """
        values = {STORE_PROPERTIES[name][0]: text for name, text in properties.items() if name in STORE_PROPERTIES}
        if "root" not in values:
            raise OptionError("storePathRootDir is not set")
        return cls(**{name: parse_property(JAVA_NAMES[name], text) for name, text in values.items()})


def parse_property(java_name: str, text: str) -> Any:
    """Parse the value of a ``broker.conf`` property.

    Raises:
        OptionError: the text is no value of the property's type.
    """
    _, parse = STORE_PROPERTIES[java_name]
    try:
        return parse(text.strip())
    except ValueError:
        raise OptionError(f"{java_name} has a bad value: {text!r}") from None


def delete_hours(delete_when: str) -> frozenset[int]:
    """Parse the hours of the day in a ``deleteWhen``, such as ``04;16``.

    Raises:
        OptionError: a part is no hour from 0 to 23.

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
    attribute.name: attribute.metadata["java"]
    for attribute in StoreConfig.__dataclass_fields__.values()
    if "java" in attribute.metadata
}
STORE_PROPERTIES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    java_name: (name, _PARSERS[StoreConfig.__dataclass_fields__[name].type]) for name, java_name in JAVA_NAMES.items()
}
