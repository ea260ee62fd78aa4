"""Decoder of half messages for the end of their transaction, with only the properties used there.

``rmq_formats.codecs.record.decode_record`` is the oracle: the same values, several times as slow.
"""

import re
from struct import error as StructError  # a class by its lower-case name
from typing import Final, NamedTuple

from isal import isal_zlib

from rmq_core.broker.tables import names
from rmq_formats.codecs.layout import MAGIC_V1, PROPERTY_SEPARATOR
from rmq_formats.codecs.properties import decode_properties
from rmq_formats.codecs.record_frame import CRC_MASK
from rmq_formats.codecs.record_layout import HEAD_BYTES, HEADS, PROPERTIES_LENGTH, SYS_FLAG, TOPIC_LENGTH, host_kind

_TOPIC: Final = TOPIC_LENGTH[MAGIC_V1].pack(len(names.HALF_TOPIC)) + names.HALF_TOPIC.encode()
_SEPARATOR: Final = bytes([PROPERTY_SEPARATOR])
# After a separator: faster than an alternative with the beginning.
_END_PROPERTIES: Final = re.compile(
    rb"\x02(PGROUP|REAL_TOPIC|REAL_QID|CHECK_IMMUNITY_TIME_IN_SECONDS|TIMER_\w+)\x01([^\x02]+)"
)


class HalfRecord(NamedTuple):
    """The fields of a stored half message.

    Attributes:
        physical_offset: in the log, in bytes.
        queue_offset: in the half topic.
        flag: of the user.
        sys_flag: as stored.
        born_timestamp_ms: creation time at the producer.
        born_host: of the producer, 8 or 20 bytes.
        reconsume_times: number of failed consumptions.
        body: as stored; a slice of the mapped log.
        properties_bytes: encoded.
    """

    physical_offset: int
    queue_offset: int
    flag: int
    sys_flag: int
    born_timestamp_ms: int
    born_host: bytes
    reconsume_times: int
    body: memoryview
    properties_bytes: bytes

    def end_properties(self) -> dict[str, str]:
        """Return the properties used at the end of a transaction."""
        matches = _END_PROPERTIES.findall(_SEPARATOR + self.properties_bytes)
        return {name.decode(): value.decode("utf-8", "replace") for name, value in matches}

    @property
    def properties(self) -> dict[str, str]:
        """All properties."""
        return decode_properties(self.properties_bytes)


def decode_half_record(record: memoryview) -> HalfRecord | None:
    """Decode a record as a half message; None for damage or another record.

    Args:
        record: as returned by ``MessageStore.record``.
    """
    kind = host_kind(SYS_FLAG.unpack_from(record)[0])
    try:
        (_, _, crc, _, flag, queue_offset, physical_offset, sys_flag, born_ms, born_host, _, _, reconsume_times, _,
         body_bytes) = HEADS[kind].unpack_from(record)  # fmt: skip
        body_at = HEAD_BYTES[kind]
        topic_at = body_at + body_bytes
        length_at = topic_at + len(_TOPIC)
        properties_at = length_at + PROPERTIES_LENGTH.size
        if body_bytes <= 0 or record[topic_at:length_at] != _TOPIC:
            return None
        if properties_at + PROPERTIES_LENGTH.unpack_from(record, length_at)[0] != len(record):
            return None
    except StructError:  # a length is wrong
        return None
    body = record[body_at:topic_at]
    if isal_zlib.crc32(body) & CRC_MASK != crc:
        return None
    return HalfRecord(
        physical_offset, queue_offset, flag, sys_flag, born_ms, born_host, reconsume_times, body,
        bytes(record[properties_at:]),
    )  # fmt: skip
