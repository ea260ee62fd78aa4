"""Results of the store: statuses with the original's names, and results as tuples."""

from collections.abc import Iterable, Iterator
from enum import Enum
from struct import Struct
from typing import Final, NamedTuple

from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.message_id import encode_message_id
from rmq_formats.codecs.record_layout import HOST_V4_BYTES

_SIZE: Final = Struct(">i")


class PutStatus(Enum):
    """Outcome of an append. Source: ``PutMessageStatus``, without the statuses of other parts of a broker."""

    PUT_OK = "PUT_OK"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"

    @property
    def is_permanent(self) -> bool:
        """True if the same message would be refused again."""
        return self in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class GetStatus(Enum):
    """Outcome of a read of a queue, and the remark of the response to a pull. Source: ``GetMessageStatus``."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


class KeyKind(Enum):
    """Kind of a query's key."""

    ANY = "K"  # one of KEYS, or the UNIQ_KEY
    UNIQUE = "U"  # the UNIQ_KEY
    TAGS = "T"  # TAGS, all of them as one text: in the Index of brokers from 5.4 on


class Boundary(Enum):
    """Which of two queue offsets a search by store time returns. Source: ``BoundaryType``."""

    LOWER = "lower"
    UPPER = "upper"


class PutResult(NamedTuple):
    """Result of an append. A tuple, as creating a dataclass costs a third of an append.

    Attributes:
        status: PUT_OK, or why nothing was stored.
        physical_offset: physical offset of the record, or of a batch's first record; -1 if nothing was stored.
        size: bytes of all appended records.
        queue_offset: of the message, or of a batch's first message.
        physical_offsets: one for each message of a batch; empty for a single message.
        store_host: address and port as in the record.
    """

    status: PutStatus
    physical_offset: int = -1
    size: int = 0
    queue_offset: int = -1
    message_count: int = 0
    physical_offsets: tuple[int, ...] = ()
    store_host: bytes = b""

    @property
    def end_offset(self) -> int:
        """Physical offset after the records; durable once ``flushed_offset`` has reached it."""
        return self.physical_offset + self.size

    @property
    def msg_id(self) -> str:
        """Offset message id; for a batch, all ids separated by commas."""
        host = Host.from_bytes(self.store_host, 0, len(self.store_host) != HOST_V4_BYTES)
        offsets = self.physical_offsets or (self.physical_offset,)
        return ",".join(encode_message_id(host, offset) for offset in offsets)


class GetResult(NamedTuple):
    """Result of a read from a queue.

    Attributes:
        status: FOUND, or why there are no records.
        slices: slices of the mapped log with whole records; neighbouring records share a slice.
        is_far: the last record is so far from the log's end that it is probably no longer in memory.
    """

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    slices: list[memoryview]
    message_count: int
    size: int
    is_far: bool = False


class Arrival(NamedTuple):
    """Messages that became readable in one queue.

    Attributes:
        tags_codes: tags codes of the new messages, in order; None with inner batches, which may have any tags.
    """

    topic: str
    queue_id: int
    max_offset: int
    tags_codes: list[int] | None


class QueryResult(NamedTuple):
    """Messages found by key.

    Attributes:
        records: stored records, the newest first, as slices of the mapped log.
        last_update_timestamp_ms: store timestamp of the newest message with a key in the Index.
    """

    records: list[memoryview]
    last_update_timestamp_ms: int
    last_update_physical_offset: int


def split_records(slices: Iterable[memoryview]) -> Iterator[memoryview]:
    """Split slices of the log, as in a ``GetResult``, into records."""
    for data in slices:
        position = 0
        while position < len(data):
            (size,) = _SIZE.unpack_from(data, position)
            yield data[position : position + size]
            position += size


class StoredUnit(NamedTuple):
    """A ConsumeQueue unit and its queue offset."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
