"""The sizes of a store's files, its delay levels, and what its Index has, as a broker is configured with them."""

from dataclasses import dataclass

from rmq_formats.codecs import consumequeue
from rmq_formats.codecs.index import NO_TAGS
from rmq_formats.codecs.layout import (
    BATCH_FILE_BYTES,
    BATCH_UNIT_BYTES,
    COMMITLOG_FILE_BYTES,
    CONSUMEQUEUE_FILE_BYTES,
    DEFAULT_DELAY_LEVELS,
    EXT_MIN_FILE_BYTES,
    INDEX_ENTRIES,
    INDEX_SLOTS,
    UNIT_BYTES,
    index_file_bytes,
)
from rmq_formats.errors import StoreSizeError

_MAX_FILE_BYTES = (1 << 31) - 1  # sizes are ints of Java
_FILE_SIZES = (
    "commitlog_file_bytes", "consumequeue_file_bytes", "consumequeue_ext_file_bytes", "batchconsumequeue_file_bytes",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreSizes:
    """Configured sizes of a broker's store; the defaults are those of the original.

    Attributes:
        commitlog_file_bytes: ``mappedFileSizeCommitLog``.
        consumequeue_file_bytes: ``mappedFileSizeConsumeQueue``.
        consumequeue_ext_file_bytes: ``mappedFileSizeConsumeQueueExt``; 0 without ``enableConsumeQueueExt``.
        index_slots: ``maxHashSlotNum``.
        index_entries: ``maxIndexNum``; a file has one entry less.
        delay_levels_ms: ``messageDelayLevel``.
        tags_from: physical offset of the first message whose TAGS are indexed; ALL_TAGS or NO_TAGS, but in a store
            that was upgraded to 5.4 or later.
        batchconsumequeue_file_bytes: ``mapperFileSizeBatchConsumeQueue``.
    """

    commitlog_file_bytes: int = COMMITLOG_FILE_BYTES
    consumequeue_file_bytes: int = CONSUMEQUEUE_FILE_BYTES
    consumequeue_ext_file_bytes: int = 0
    index_slots: int = INDEX_SLOTS
    index_entries: int = INDEX_ENTRIES
    delay_levels_ms: tuple[int, ...] = consumequeue.delay_levels_ms(DEFAULT_DELAY_LEVELS)
    tags_from: int = NO_TAGS
    batchconsumequeue_file_bytes: int = BATCH_FILE_BYTES

    @property
    def index_file_bytes(self) -> int:
        """Size of an IndexFile."""
        return index_file_bytes(self.index_slots, self.index_entries)

    def check(self) -> None:
        """Refuse sizes that no broker could use. Raises StoreSizeError."""
        for name in _FILE_SIZES:
            value = getattr(self, name)
            if value > _MAX_FILE_BYTES:
                option = name.replace("_", "-")
                raise StoreSizeError(f"--{option} {value}: must be at most {_MAX_FILE_BYTES}, as in Java")
        if self.commitlog_file_bytes < 1:
            raise StoreSizeError(f"--commitlog-file-bytes {self.commitlog_file_bytes}: must be 1 or more")
        for option, size, unit_bytes in (
            ("--consumequeue-file-bytes", self.consumequeue_file_bytes, UNIT_BYTES),
            ("--batchconsumequeue-file-bytes", self.batchconsumequeue_file_bytes, BATCH_UNIT_BYTES),
        ):
            if size < unit_bytes or size % unit_bytes:
                raise StoreSizeError(f"{option} {size}: must be a multiple of {unit_bytes}")
        ext_size = self.consumequeue_ext_file_bytes
        if ext_size and ext_size < EXT_MIN_FILE_BYTES:
            raise StoreSizeError(f"--consumequeue-ext-file-bytes {ext_size}: no room for a unit")
        if self.index_slots < 1:
            raise StoreSizeError(f"--index-slots {self.index_slots}: must be 1 or more")
        if self.index_entries < 2:
            raise StoreSizeError(f"--index-entries {self.index_entries}: must be 2 or more (entry 0 is never used)")
        if self.index_file_bytes > _MAX_FILE_BYTES:
            raise StoreSizeError("--index-slots and --index-entries: an IndexFile above 2 GiB cannot be mapped by Java")
