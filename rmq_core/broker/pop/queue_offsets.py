"""Queue offset of a popped message: in a light queue (LMQ) different from the queue offset in its record.

Source: ``MQClientAPIImpl#processPopResponse``, the same rule in clients.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.store.commitlog.lmq_offsets import is_lmq, split_lmq_names
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.errors import FormatError

_QUEUE_OFFSET: Final = head_struct("queue_offset")


def read_queue_offset(record: memoryview, topic: str) -> int:
    """Read the offset of a record in the queue or light queue of a topic."""
    queue_offset = int(_QUEUE_OFFSET.unpack_from(record)[0])
    if not is_lmq(topic):
        return queue_offset
    try:
        return get_queue_offset(decode_record(record, verify_crc=False).properties, topic, queue_offset)
    except FormatError:  # its consumer cannot read it either
        return queue_offset


def get_queue_offset(properties: Mapping[str, str], topic: str, queue_offset: int) -> int:
    """Return the offset of a message in the queue of a topic; for a light queue, from the message's properties."""
    if not is_lmq(topic):
        return queue_offset
    lmq_names = split_lmq_names(properties.get(PROPERTY_INNER_MULTI_DISPATCH, ""))
    lmq_offsets = split_lmq_names(properties.get(PROPERTY_INNER_MULTI_QUEUE_OFFSET, ""))
    if len(lmq_names) != len(lmq_offsets) or topic not in lmq_names:
        return queue_offset
    text = lmq_offsets[lmq_names.index(topic)]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else queue_offset
