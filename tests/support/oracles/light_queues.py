"""What light queues (LMQ) a record goes to, in plain Python: the oracle of ``rmq_formats.kernels.light_queues``."""

import re

from rmq_formats.codecs.layout import SCHEDULE_TOPIC
from rmq_formats.codecs.record import StoredMessage

_JAVA_LONG = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BLANK = re.compile(r"[\t-\r\x1c- ]*", re.ASCII)


def light_places(message: StoredMessage) -> list[tuple[str, int, int]]:
    """Name, queue id and queue offset of each light queue of a record, each queue once, without its own.

    Source: ``MultiDispatchUtils#checkMultiDispatchQueue``, ``ConsumeQueue#multiDispatchLmqQueue``.
    """
    if message.topic.startswith(("%RETRY%", "rmq_sys_")) or message.topic == SCHEDULE_TOPIC:
        return []
    names = message.properties.get("INNER_MULTI_DISPATCH", "")
    offsets = message.properties.get("INNER_MULTI_QUEUE_OFFSET", "")
    if _BLANK.fullmatch(names) or _BLANK.fullmatch(offsets):
        return []
    queues, numbers = _java_split(names), _java_split(offsets)
    places: dict[tuple[str, int], int] = {(message.topic, message.queue_id): -1}
    if len(queues) == len(numbers):
        for name, number in zip(queues, numbers, strict=True):
            is_long = _JAVA_LONG.fullmatch(number) and -(1 << 63) <= int(number) < 1 << 63
            if "/" not in name and is_long:
                places.setdefault((name, 0 if name.startswith("%LMQ%") else message.queue_id), int(number))
    return [(*queue, offset) for queue, offset in list(places.items())[1:]]


def _java_split(text: str) -> list[str]:
    """``String#split(",")``: empty parts at the end are dropped."""
    parts = text.split(",")
    while parts and not parts[-1]:
        parts.pop()
    return parts
