"""Offsets, widths and magic numbers of every file type; readers and writers share them.

All integers on disk are big-endian and signed. Sources: Apache RocketMQ 5.3.3,
``MessageDecoder``, ``CommitLog``, ``ConsumeQueue``, ``ConsumeQueueExt``, ``IndexHeader``,
``IndexFile``, ``StoreCheckpoint``. The pages under ``docs/formats/`` draw each layout.
"""

from struct import Struct
from struct import error as struct_error
from typing import Final

from rmq_formats.errors import LengthError

# --- CommitLog record -------------------------------------------------------------------
MAGIC_V1: Final = -626843481  # 0xDAA320A7, topic length is one byte
MAGIC_V2: Final = -626843477  # 0xDAA320AB, topic length is two bytes
RECORD_VERSIONS: Final = {MAGIC_V1: 1, MAGIC_V2: 2}  # by magic; what is not in it is no record
MAGIC_BLANK: Final = -875286124  # 0xCBD43194, fills a file from here to its end

BLANK_BYTES: Final = 8  # size and magic; every file keeps room for one

COMMITLOG_FILE_BYTES: Final = 1 << 30
MAX_BODY_BYTES: Final = 4 << 20
MAX_RECORD_BYTES: Final = MAX_BODY_BYTES + (64 << 10)  # MessageStoreConfig#maxMessageSize + 64 KiB
MAX_PROPERTIES_BYTES: Final = 32767
MAX_FRAME_BYTES: Final = 256 << 20  # a size field above this is damage, whatever maxMessageSize was

# --- sys_flag bits ----------------------------------------------------------------------
FLAG_COMPRESSED: Final = 0x1
FLAG_MULTI_TAGS: Final = 0x2
FLAG_TRANSACTION_MASK: Final = 0xC
FLAG_TRANSACTION_PREPARED: Final = 0x4
FLAG_TRANSACTION_COMMIT: Final = 0x8
FLAG_TRANSACTION_ROLLBACK: Final = 0xC
FLAG_BORN_HOST_V6: Final = 0x10
FLAG_STORE_HOST_V6: Final = 0x20
FLAG_NEED_UNWRAP: Final = 0x40
FLAG_INNER_BATCH: Final = 0x80
FLAG_COMPRESSION_MASK: Final = 0x700
FLAG_COMPRESSION_LZ4: Final = 0x100
FLAG_COMPRESSION_ZSTD: Final = 0x200
FLAG_COMPRESSION_ZLIB: Final = 0x300

# --- properties -------------------------------------------------------------------------
NAME_VALUE_SEPARATOR: Final = 0x01
PROPERTY_SEPARATOR: Final = 0x02
PROPERTY_TAGS: Final = "TAGS"
PROPERTY_KEYS: Final = "KEYS"
PROPERTY_UNIQ_KEY: Final = "UNIQ_KEY"
PROPERTY_DELAY: Final = "DELAY"
PROPERTY_WAIT: Final = "WAIT"  # the sender waits for flush and replication
PROPERTY_RETRY_TOPIC: Final = "RETRY_TOPIC"  # where a message to retry comes from
PROPERTY_REAL_TOPIC: Final = "REAL_TOPIC"  # of a message that waits in a topic of the broker
PROPERTY_REAL_QUEUE_ID: Final = "REAL_QID"
PROPERTY_ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
PROPERTY_TRANSACTION_PREPARED: Final = "TRAN_MSG"
PROPERTY_PRODUCER_GROUP: Final = "PGROUP"
PROPERTY_CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PROPERTY_TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
PROPERTY_TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
PROPERTY_TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
PROPERTY_SHARDING_KEY: Final = "__SHARDINGKEY"  # the message group of FIFO messages
PROPERTY_PRIORITY: Final = "_SYS_MSG_PRIORITY_"
PROPERTY_POP_CK: Final = "POP_CK"  # the receipt handle of a popped message
PROPERTY_MSG_REGION: Final = "MSG_REGION"
PROPERTY_TRACE_SWITCH: Final = "TRACE_ON"
PROPERTY_CLUSTER: Final = "CLUSTER"
PROPERTY_CORRELATION_ID: Final = "CORRELATION_ID"
PROPERTY_REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
PROPERTY_INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"  # names of light queues (LMQ)
PROPERTY_INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"  # a message's places in them
PROPERTY_LITE_TOPIC: Final = "__LITE_TOPIC"  # the child of a topic of the type LITE (5.5)
PROPERTY_INNER_NUM: Final = "INNER_NUM"  # messages of an inner batch
PROPERTY_INNER_BASE: Final = "INNER_BASE"  # queue offset of the first of them
PROPERTY_CRC: Final = "__CRC32#"
CRC_PROPERTY_BYTES: Final = 20  # name 8, 0x01, ten digits least significant first, 0x02

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
DEFAULT_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

# --- ConsumeQueue -----------------------------------------------------------------------
UNIT_BYTES: Final = 20
UNIT_PHYSICAL_OFFSET_AT: Final = 0  # int64
UNIT_SIZE_AT: Final = 8  # int32
UNIT_TAGS_CODE_AT: Final = 12  # int64
CONSUMEQUEUE_FILE_BYTES: Final = 300_000 * UNIT_BYTES
PRE_BLANK_SIZE: Final = 0x7FFFFFFF  # size field of the filler before a queue's first unit
LOST_UNIT_SIZE: Final = 80  # size field of the unit of a lost message; no record is that small

# --- BatchConsumeQueue ------------------------------------------------------------------
BATCH_UNIT_BYTES: Final = 46
BATCH_FILE_BYTES: Final = 300_000 * BATCH_UNIT_BYTES  # mapperFileSizeBatchConsumeQueue
MAX_BATCH_COUNT: Final = 32_767  # messages of a unit, and of a client's batch: the original counts them in a short

# --- ConsumeQueueExt --------------------------------------------------------------------
EXT_UNIT_MIN_BYTES: Final = 20  # size 2, tags code 8, store time 8, bit map size 2
EXT_UNIT_MAX_BYTES: Final = 32767
EXT_FILE_BYTES: Final = 48 << 20
EXT_END_BYTES: Final = 4  # room each file keeps for the end mark, a short -1
EXT_MIN_FILE_BYTES: Final = EXT_UNIT_MIN_BYTES + EXT_END_BYTES  # room for one unit
EXT_MAX_ADDRESS: Final = -(1 << 31) - 1  # tags codes at or below this are addresses

# --- IndexFile --------------------------------------------------------------------------
INDEX_HEADER_BYTES: Final = 40
INDEX_BEGIN_TIMESTAMP_AT: Final = 0  # int64, ms
INDEX_END_TIMESTAMP_AT: Final = 8  # int64, ms
INDEX_BEGIN_PHYSICAL_OFFSET_AT: Final = 16  # int64
INDEX_END_PHYSICAL_OFFSET_AT: Final = 24  # int64
INDEX_SLOT_COUNT_AT: Final = 32  # int32, slots in use
INDEX_COUNT_AT: Final = 36  # int32, starts at 1: entry 0 is never used
INDEX_SLOT_BYTES: Final = 4
INDEX_ENTRY_BYTES: Final = 20
INDEX_ENTRY_PHYSICAL_OFFSET_AT: Final = 4  # int64
INDEX_ENTRY_SECONDS_AT: Final = 12  # int32, since the header's begin timestamp
INDEX_ENTRY_PREVIOUS_AT: Final = 16  # int32
INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000

# --- checkpoint -------------------------------------------------------------------------
CHECKPOINT_FILE_BYTES: Final = 4096
CHECKPOINT_USED_BYTES: Final = 40  # by all brokers …
CHECKPOINT_SIXTH_END: Final = 48  # … and by those from 5.5 on

assert INDEX_COUNT_AT + 4 == INDEX_HEADER_BYTES
assert CONSUMEQUEUE_FILE_BYTES == 6_000_000
assert len(PROPERTY_CRC) + 1 + 10 + 1 == CRC_PROPERTY_BYTES


def index_file_bytes(slots: int, entries: int) -> int:
    """Compute the size in bytes of an IndexFile with that many slots and entries (entry 0 included)."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + entries * INDEX_ENTRY_BYTES


def pack_fields(layout: Struct, *values: int | bytes) -> bytes:
    """Return the values in a layout's fields. Raises LengthError if a value is out of its field's range."""
    try:
        return layout.pack(*values)
    except struct_error as error:
        raise LengthError(f"a number does not fit into its field: {error}", actual=values) from error
