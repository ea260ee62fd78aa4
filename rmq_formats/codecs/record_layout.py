"""The fixed fields of a CommitLog record: names, offsets, widths; all that reads or writes a record names these.

::

    version 1, IPv4 hosts
    0    4     8        12       16   20           28              36       40
    size magic body_crc queue_id flag queue_offset physical_offset sys_flag born_timestamp
    48        56              64         72              76                          84         88
    born_host store_timestamp store_host reconsume_times prepared_transaction_offset body_bytes body
    body | topic's length: 1 byte, 2 in version 2 | topic | properties' length: 2 bytes | properties

An IPv6 host takes 12 bytes more than an IPv4 one, and ``sys_flag`` says so. Kernels take the offsets as constants
when numba compiles them. Source: ``MessageDecoder#decode``, ``CommitLog#checkMessageAndReturnSize``.
"""

from struct import Struct, calcsize
from typing import Final, NamedTuple

from rmq_formats.codecs.layout import BLANK_BYTES, FLAG_BORN_HOST_V6, FLAG_STORE_HOST_V6, MAGIC_V1, MAGIC_V2

PORT_BYTES: Final = 4  # int32
HOST_V4_BYTES: Final = 4 + PORT_BYTES  # the address, then the port
HOST_V6_BYTES: Final = 16 + PORT_BYTES
HOST_V6_EXTRA_BYTES: Final = HOST_V6_BYTES - HOST_V4_BYTES
HOST_FLAGS: Final = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6
_HOST_BITS: Final = {"born_host": FLAG_BORN_HOST_V6, "store_host": FLAG_STORE_HOST_V6}

# The fields in front of the body, in order, as ``struct`` has them.
_FIELDS: Final = (
    ("size", "i"),  # of the whole record
    ("magic", "i"),
    ("body_crc", "i"),  # CRC-32 of the stored body & 0x7FFFFFFF
    ("queue_id", "i"),
    ("flag", "i"),
    ("queue_offset", "q"),
    ("physical_offset", "q"),
    ("sys_flag", "i"),
    ("born_timestamp", "q"),  # ms
    ("born_host", f"{HOST_V4_BYTES}s"),
    ("store_timestamp", "q"),  # ms
    ("store_host", f"{HOST_V4_BYTES}s"),
    ("reconsume_times", "i"),
    ("prepared_transaction_offset", "q"),
    ("body_bytes", "i"),
)


class HeadField(NamedTuple):
    """A field in front of the body: its offset in a record and its width, in bytes, and its code for ``struct``."""

    at: int
    width: int
    code: str


def _head_fields(sys_flag: int) -> dict[str, HeadField]:
    """Return the fields by name, in order, of a record with the host lengths in ``sys_flag``."""
    fields, at = {}, 0
    for name, v4_code in _FIELDS:
        code = f"{HOST_V6_BYTES}s" if sys_flag & _HOST_BITS.get(name, 0) else v4_code
        fields[name] = HeadField(at, calcsize(f">{code}"), code)
        at += fields[name].width
    return fields


def head_struct(*names: str) -> Struct:
    """Return the struct of some fields of a record with IPv4 hosts, in the head's order, from its first byte on."""
    codes, at = [], 0
    for name in names:
        field = HEAD[name]
        codes.append(f"{field.at - at}x{field.code}")
        at = field.at + field.width
    return Struct(">" + "".join(codes))


# By kind of hosts, see ``host_kind``.
HEAD_FIELDS: Final = tuple(_head_fields(kind * FLAG_BORN_HOST_V6) for kind in range(4))
HEAD: Final = HEAD_FIELDS[0]  # of a record with IPv4 hosts

RECORD_SIZE_AT: Final = HEAD["size"].at
RECORD_MAGIC_AT: Final = HEAD["magic"].at
RECORD_BODY_CRC_AT: Final = HEAD["body_crc"].at
RECORD_QUEUE_ID_AT: Final = HEAD["queue_id"].at
RECORD_FLAG_AT: Final = HEAD["flag"].at
RECORD_QUEUE_OFFSET_AT: Final = HEAD["queue_offset"].at
RECORD_PHYSICAL_OFFSET_AT: Final = HEAD["physical_offset"].at
RECORD_SYS_FLAG_AT: Final = HEAD["sys_flag"].at
RECORD_BORN_TIMESTAMP_AT: Final = HEAD["born_timestamp"].at
RECORD_BORN_HOST_AT: Final = HEAD["born_host"].at
# With IPv4 hosts; HOST_V6_EXTRA_BYTES more behind each IPv6 host.
RECORD_STORE_TIMESTAMP_AT: Final = HEAD["store_timestamp"].at
RECORD_STORE_HOST_AT: Final = HEAD["store_host"].at
RECORD_RECONSUME_TIMES_AT: Final = HEAD["reconsume_times"].at
RECORD_PREPARED_OFFSET_AT: Final = HEAD["prepared_transaction_offset"].at
RECORD_BODY_BYTES_AT: Final = HEAD["body_bytes"].at
RECORD_HEAD_BYTES: Final = RECORD_BODY_BYTES_AT + HEAD["body_bytes"].width

# By kind of hosts, like HEAD_FIELDS; the second without size and magic, which an appender writes last.
HEADS: Final = tuple(Struct(">" + "".join(field.code for field in head.values())) for head in HEAD_FIELDS)
HEADS_BEHIND_MAGIC: Final = tuple(Struct(head.format.replace(">ii", ">", 1)) for head in HEADS)
HEAD_BYTES: Final = tuple(head.size for head in HEADS)

SIZE_AND_MAGIC: Final = head_struct("size", "magic")  # all of a BLANK, too
SYS_FLAG: Final = head_struct("sys_flag")
TOPIC_LENGTH: Final = {MAGIC_V1: Struct(">b"), MAGIC_V2: Struct(">h")}
PROPERTIES_LENGTH: Final = Struct(">h")
MAX_TOPIC_BYTES_V1: Final = 127
MAX_TOPIC_BYTES_V2: Final = 32767  # what the field holds; a broker takes 255 at most

# An empty record: IPv4 hosts, no body, topic or properties.
RECORD_FIXED_BYTES_V1: Final = RECORD_HEAD_BYTES + TOPIC_LENGTH[MAGIC_V1].size + PROPERTIES_LENGTH.size
RECORD_FIXED_BYTES_V2: Final = RECORD_HEAD_BYTES + TOPIC_LENGTH[MAGIC_V2].size + PROPERTIES_LENGTH.size

# A message in a client's batch: these, then the body, the properties' length and the properties.
BATCH_FIELDS: Final = ("size", "magic", "body_crc", "flag", "body_bytes")
BATCH_HEAD: Final = Struct(">" + "".join(HEAD[name].code for name in BATCH_FIELDS))

assert SIZE_AND_MAGIC.size == BLANK_BYTES
assert HEAD_BYTES == (88, 100, 100, 112)
assert (RECORD_FIXED_BYTES_V1, RECORD_FIXED_BYTES_V2) == (91, 92)
assert HEADS_BEHIND_MAGIC[0].size == RECORD_HEAD_BYTES - BLANK_BYTES


def host_kind(sys_flag: int) -> int:
    """Which head a record has: 0 with IPv4 hosts, 1 with an IPv6 born host, 2 with an IPv6 store host, 3 with both."""
    return (sys_flag & HOST_FLAGS) // FLAG_BORN_HOST_V6


def store_timestamp_at(sys_flag: int) -> int:
    """Offset of the store timestamp in a record, in bytes: after the born host."""
    return RECORD_STORE_TIMESTAMP_AT + (HOST_V6_EXTRA_BYTES if sys_flag & FLAG_BORN_HOST_V6 else 0)
