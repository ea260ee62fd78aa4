"""Where a popped message stands: in a light queue (LMQ) that is not the queue offset of its record.

Source: ``MQClientAPIImpl#processPopResponse``, by which clients find the same place.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.store.commitlog.light_places import is_light_queue, light_names
from rmq_formats.codecs.layout import PROPERTY_LIGHT_NAMES, PROPERTY_LIGHT_OFFSETS
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_layout import head_struct
from rmq_formats.errors import FormatError

_QUEUE_OFFSET: Final = head_struct("queue_offset")


def place_of_record(record: memoryview, topic: str) -> int:
    """Place of a record in the queue of a topic, or of a light queue, that it was read from."""
    own = int(_QUEUE_OFFSET.unpack_from(record)[0])
    if not is_light_queue(topic):
        return own
    try:
        return place_of(decode_record(record, verify_crc=False).properties, topic, own)
    except FormatError:  # its consumer cannot read it either
        return own


def place_of(properties: Mapping[str, str], topic: str, queue_offset: int) -> int:
    """Place of a message in the queue that it was read from; its queue offset where that is its own queue."""
    if not is_light_queue(topic):
        return queue_offset
    names = light_names(properties.get(PROPERTY_LIGHT_NAMES, ""))
    places = light_names(properties.get(PROPERTY_LIGHT_OFFSETS, ""))
    if len(names) != len(places) or topic not in names:
        return queue_offset
    text = places[names.index(topic)]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else queue_offset
