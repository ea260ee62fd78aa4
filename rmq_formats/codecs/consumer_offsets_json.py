"""Committed offsets, as in ``consumerOffset.json``, ``lmqConsumerOffset.json`` and ``delayOffset.json``.

Functions raise DecodeError for a text that is no JSON object, and for an offset that is none. Source:
``ConsumerOffsetManager#whichTopicByConsumer``, ``LmqConsumerOffsetManager``, ``RocksDBOffsetSerializeWrapper``;
``TypeUtils#castToLong`` of fastjson.
"""

from collections.abc import Mapping
from typing import Final

from rmq_formats.codecs.fastjson import LONG, as_integer, as_mapping, loads
from rmq_formats.errors import DecodeError

TopicAndGroup = tuple[str, str]
_OFFSET_FILES: Final = frozenset({"consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json"})
_OFFSET_TABLES: Final = ("offsetTable", "lmqOffsetTable")


def config_document(path: str, text: str) -> object:
    """Parse a file of ``config/``, or its ``.bak``; those of committed offsets as ``offsets_document`` does."""
    name = path.rpartition("/")[2].removesuffix(".bak")
    return offsets_document(text) if name in _OFFSET_FILES else loads(text)


def offsets_document(text: str) -> dict[str, object]:
    """Parse a file of committed offsets; values that fastjson reads as Longs become integers.

    These are texts (``"99"``, ``"1,000"``), fractions, which are cut, and booleans. Other values stay as they are.
    """
    document = loads(text)
    if not isinstance(document, dict):
        raise DecodeError("the file is not a JSON object")
    tables = {name: _with_numbers(document[name]) for name in _OFFSET_TABLES if name in document}
    return {**document, **tables}


def _with_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, str) and LONG.fullmatch(value.replace(",", "")):
        return int(value.replace(",", ""))
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1 << 63):
        return int(value)
    return value


def check_consumer_offsets(document: Mapping[str, object]) -> None:
    """Refuse a parsed ``consumerOffset.json`` or ``lmqConsumerOffset.json`` with bad offsets."""
    for name, queues in as_mapping(document.get("offsetTable"), "offsetTable").items():
        _queue_offsets(name, queues)
    for name, value in as_mapping(document.get("lmqOffsetTable"), "lmqOffsetTable").items():
        as_integer(name, value)


def check_delay_offsets(document: Mapping[str, object]) -> None:
    """Refuse a parsed ``delayOffset.json`` with bad offsets."""
    _queue_offsets("offsetTable", document.get("offsetTable"))


def consumer_offsets(text: str) -> dict[TopicAndGroup, dict[int, int]]:
    """Parse a ``consumerOffset.json`` to the next queue offsets of each group, by topic and group, and queue id.

    Keys of another form than ``topic@group`` are left out, as in a broker's statistics: those of broadcasting groups
    have a third part.
    """
    table = as_mapping(offsets_document(text).get("offsetTable"), "offsetTable")
    offsets_by_key = {}
    for name, queues in table.items():
        offsets = _queue_offsets(name, queues)
        key = topic_and_group(name)
        if key is not None:
            offsets_by_key[key] = offsets
    return offsets_by_key


def light_consumer_offsets(text: str) -> dict[TopicAndGroup, dict[int, int]]:
    """Parse a ``lmqConsumerOffset.json`` as ``consumer_offsets`` does; a light queue (LMQ) has the queue id 0."""
    offsets_by_key = consumer_offsets(text)
    table = as_mapping(offsets_document(text).get("lmqOffsetTable"), "lmqOffsetTable")
    for name, value in table.items():
        offset, key = as_integer(name, value), topic_and_group(name)
        if key is not None:
            offsets_by_key[key] = {0: offset}
    return offsets_by_key


def group_offsets(name: str, text: str) -> dict[int, int]:
    """Parse the offsets of one ``topic@group``, as config in RocksDB has them."""
    return _queue_offsets(name, as_mapping(loads(text), name).get("offsetTable"))


def topic_and_group(name: str) -> TopicAndGroup | None:
    """Split a key ``topic@group``; None for keys of another form."""
    parts = name.split("@")
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def _queue_offsets(name: str, queues: object) -> dict[int, int]:
    return {
        _queue_id(name, key): as_integer(f"{name}: {key}", value) for key, value in as_mapping(queues, name).items()
    }


def _queue_id(name: str, key: str) -> int:
    queue_id = int(key) if LONG.fullmatch(key) else 1 << 31
    if not -(1 << 31) <= queue_id < 1 << 31:
        raise DecodeError(f"{name} has a bad queue id", expected="an int of Java", actual=key)
    return queue_id
