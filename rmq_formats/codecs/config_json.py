"""Parser of config files as fastjson 1.2.83 writes them, in two places not strict JSON.

Keys of a map may be bare integers (``{0:5}``), and they may be objects
(``{{"brokerName":"b","queueId":0,"topic":"T"}:1}``). Java reads standard JSON just as well, so
writing needs nothing special.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Final, TypeVar

from rmq_formats.errors import DecodeError

MAX_DEPTH: Final = 64  # RocketMQ's own files nest five deep
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,99})(\.[0-9]+)?([eE][+-]?[0-9]+)?(?![0-9])")
_BARE_KEY = re.compile(r"-?[0-9]+")
_LONG = re.compile(r"-?[0-9]{1,19}")
_STRINGS = json.JSONDecoder(strict=False)  # fastjson takes control characters as they are
_WORDS: Final = {"true": True, "false": False, "null": None}
_WORD = re.compile("|".join(_WORDS))
_T = TypeVar("_T", int, str, bool)


def loads(text: str) -> object:
    """Parse one JSON value.

    Bare integer keys become strings; an object as a key becomes its canonical JSON: members sorted, no
    spaces, as fastjson would write it. Of a repeated key the last counts.

    Raises:
        DecodeError: not such JSON, or nested more than 64 deep; its offset counts characters.
    """
    parser = _JsonParser(text)
    value, at = parser.value(parser.skip(0), MAX_DEPTH)
    if parser.skip(at) != len(text):
        raise parser.error("more text after the value", at)
    return value


class _JsonParser:
    """Recursive descent over one text; each method reads at a position, and returns the position after its value."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, reason: str, at: int) -> DecodeError:
        excerpt = self.text[at : at + 16]
        return DecodeError(f"bad JSON: {reason}", physical_offset=at, actual=repr(excerpt) if excerpt else "the end")

    def skip(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def starts(self, token: str, at: int) -> bool:
        return self.text.startswith(token, at)

    def value(self, at: int, depth: int) -> tuple[object, int]:
        if self.starts("{", at):
            return self.members(at, depth)
        if self.starts("[", at):
            return self.elements(at, depth)
        if self.starts('"', at):
            return self.string(at)
        word = _WORD.match(self.text, at)
        return (_WORDS[word[0]], word.end()) if word else self.number(at)

    def string(self, at: int) -> tuple[str, int]:
        try:
            text, at = _STRINGS.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            raise self.error(error.msg, error.pos) from error
        return str(text), at

    def number(self, at: int) -> tuple[int | float, int]:
        match = _NUMBER.match(self.text, at)
        if match is None:
            raise self.error("no value", at)
        if match[1] is None and match[2] is None:
            return int(match[0]), match.end()
        number = float(match[0])
        if not isfinite(number):
            raise self.error("number out of range", at)
        return number, match.end()

    def elements(self, at: int, depth: int) -> tuple[list[object], int]:
        if depth == 0:
            raise self.error("nested too deep", at)
        elements: list[object] = []
        at = self.skip(at + 1)
        if self.starts("]", at):
            return elements, at + 1
        while True:
            element, at = self.value(at, depth - 1)
            elements.append(element)
            at, more = self.separator(at, "]")
            if not more:
                return elements, at

    def members(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        if depth == 0:
            raise self.error("nested too deep", at)
        members: dict[str, object] = {}
        at = self.skip(at + 1)
        if self.starts("}", at):
            return members, at + 1
        while True:
            key, at = self.key(at, depth)
            at = self.skip(at)
            if not self.starts(":", at):
                raise self.error("no ':' after a key", at)
            members[key], at = self.value(self.skip(at + 1), depth - 1)
            at, more = self.separator(at, "}")
            if not more:
                return members, at

    def key(self, at: int, depth: int) -> tuple[str, int]:
        if self.starts('"', at):
            return self.string(at)
        if self.starts("{", at):
            members, at = self.members(at, depth - 1)
            return json.dumps(members, ensure_ascii=False, sort_keys=True, separators=(",", ":")), at
        bare = _BARE_KEY.match(self.text, at)
        if bare is None:
            raise self.error("no key", at)
        return bare[0], bare.end()

    def separator(self, at: int, end: str) -> tuple[int, bool]:
        """Read what follows an element: the position after the comma or the end, and whether it was a comma."""
        at = self.skip(at)
        if self.starts(end, at):
            return at + 1, False
        if not self.starts(",", at):
            raise self.error(f"neither ',' nor '{end}'", at)
        return self.skip(at + 1), True


@dataclass(frozen=True, slots=True)
class StoredTopicConfig:
    """Config of one topic of ``topics.json``. Defaults are Java's, for members that the file leaves out.

    Attributes:
        read_queue_nums: queues that consumers see.
        write_queue_nums: queues that producers see.
        perm: 4 read, 2 write, 1 inherit, 8 priority.
        topic_filter_type: SINGLE_TAG or MULTI_TAG.
        topic_sys_flag: 1 unit, 2 unit-sub.
        attributes: such as ``message.type`` or ``queue.type``.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def has_batch_queues(self) -> bool:
        """True if the topic's queues are BatchConsumeQueues."""
        return self.attributes.get("queue.type") == "BatchCQ"


def topic_configs(text: str) -> dict[str, StoredTopicConfig]:
    """Parse a ``topics.json`` to topic configs by name, in the file's order.

    Raises:
        DecodeError: not JSON, or a member of another type than it should be.

    Source: ``TopicConfigSerializeWrapper``, ``TopicConfig``.
    """
    table = _mapping(_mapping(loads(text), "topics.json").get("topicConfigTable"), "topicConfigTable")
    return {name: _topic_config(name, _mapping(config, f"topic {name}")) for name, config in table.items()}


def topic_config(name: str, text: str) -> StoredTopicConfig:
    """Parse the config of one topic, as config in RocksDB has it; Raises as ``topic_configs``."""
    return _topic_config(name, _mapping(loads(text), f"topic {name}"))


def topic_names(text: str) -> list[str]:
    """Parse the topic names of a ``topics.json``, in the file's order; Raises as ``topic_configs``."""
    return list(topic_configs(text))


def _topic_config(name: str, config: Mapping[str, object]) -> StoredTopicConfig:
    attributes = _mapping(config.get("attributes"), "attributes")
    return StoredTopicConfig(
        topic_name=_member(config, "topicName", name),
        read_queue_nums=_member(config, "readQueueNums", 16),
        write_queue_nums=_member(config, "writeQueueNums", 16),
        perm=_member(config, "perm", 6),
        topic_filter_type=_member(config, "topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=_member(config, "topicSysFlag", 0),
        order=_member(config, "order", False),
        attributes={key: _member(attributes, key, "") for key in attributes},
    )


@dataclass(frozen=True, slots=True)
class StoredGroupConfig:
    """Config of one consumer group of ``subscriptionGroup.json``. Defaults are Java's, for members that it leaves out.

    Attributes:
        consume_from_min_enable: whether a new member may begin with the first message.
        consume_broadcast_enable: whether its members may each get every message.
        retry_max_times: deliveries again of a message, before it becomes a dead letter.
        consume_timeout_minute: how long a listener may take for a message.
        attributes: such as ``lite.bind.topic``.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    consume_timeout_minute: int = 15
    group_sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)


def group_configs(text: str) -> dict[str, StoredGroupConfig]:
    """Parse a ``subscriptionGroup.json`` to group configs by name, in the file's order.

    Raises:
        DecodeError: not JSON, or a member of another type than it should be.

    Source: ``SubscriptionGroupManager``, ``SubscriptionGroupConfig``.
    """
    table = _mapping(_mapping(loads(text), "subscriptionGroup.json").get("subscriptionGroupTable"), "its table")
    return {name: _group_config(name, _mapping(config, f"group {name}")) for name, config in table.items()}


def group_config(name: str, text: str) -> StoredGroupConfig:
    """Parse the config of one consumer group, as config in RocksDB has it; Raises as ``group_configs``."""
    return _group_config(name, _mapping(loads(text), f"group {name}"))


def _group_config(name: str, config: Mapping[str, object]) -> StoredGroupConfig:
    attributes = _mapping(config.get("attributes"), "attributes")
    return StoredGroupConfig(
        group_name=_member(config, "groupName", name),
        consume_enable=_member(config, "consumeEnable", True),
        consume_from_min_enable=_member(config, "consumeFromMinEnable", True),
        consume_broadcast_enable=_member(config, "consumeBroadcastEnable", True),
        consume_message_orderly=_member(config, "consumeMessageOrderly", False),
        retry_queue_nums=_member(config, "retryQueueNums", 1),
        retry_max_times=_member(config, "retryMaxTimes", 16),
        consume_timeout_minute=_member(config, "consumeTimeoutMinute", 15),
        group_sys_flag=_member(config, "groupSysFlag", 0),
        attributes={key: _member(attributes, key, "") for key in attributes},
    )


TopicAndGroup = tuple[str, str]
_OFFSET_FILES: Final = frozenset({"consumerOffset.json", "lmqConsumerOffset.json", "delayOffset.json"})
_OFFSET_TABLES: Final = ("offsetTable", "lmqOffsetTable")


def config_document(path: str, text: str) -> object:
    """Parse a file of ``config/``, or its ``.bak``; those of committed offsets as ``offsets_document`` does."""
    name = path.rpartition("/")[2].removesuffix(".bak")
    return offsets_document(text) if name in _OFFSET_FILES else loads(text)


def offsets_document(text: str) -> dict[str, object]:
    """Parse a file of committed offsets; values that fastjson reads as Longs become integers.

    These are texts (``"99"``, ``"1,000"``), fractions, which it cuts, and booleans. Other values stay as they are.

    Raises:
        DecodeError: not a JSON object.

    Source: ``TypeUtils#castToLong`` of fastjson.
    """
    document = loads(text)
    if not isinstance(document, dict):
        raise DecodeError("the file is not a JSON object")
    tables = {name: _with_numbers(document[name]) for name in _OFFSET_TABLES if name in document}
    return {**document, **tables}


def _with_numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    if isinstance(value, str) and _LONG.fullmatch(value.replace(",", "")):
        return int(value.replace(",", ""))
    if isinstance(value, bool) or (isinstance(value, float) and abs(value) < 1 << 63):
        return int(value)
    return value


def check_consumer_offsets(document: Mapping[str, object]) -> None:
    """Refuse a parsed ``consumerOffset.json`` or ``lmqConsumerOffset.json`` whose offsets cannot be read.

    Raises:
        DecodeError: naming the first bad entry.
    """
    for name, queues in _mapping(document.get("offsetTable"), "offsetTable").items():
        _queue_offsets(name, queues)
    for name, value in _mapping(document.get("lmqOffsetTable"), "lmqOffsetTable").items():
        _integer(name, value)


def check_delay_offsets(document: Mapping[str, object]) -> None:
    """Refuse a parsed ``delayOffset.json`` whose offsets cannot be read; Raises as ``check_consumer_offsets``."""
    _queue_offsets("offsetTable", document.get("offsetTable"))


def consumer_offsets(text: str) -> dict[TopicAndGroup, dict[int, int]]:
    """Parse a ``consumerOffset.json`` to the next queue offsets of each group, by topic and group, and queue id.

    Keys of another form than ``topic@group`` are left out, as a broker does where it tells how far groups are: those
    of broadcasting groups have a third part.

    Raises:
        DecodeError: not JSON, or an offset that is none.

    Source: ``ConsumerOffsetManager#whichTopicByConsumer``.
    """
    table = _mapping(offsets_document(text).get("offsetTable"), "offsetTable")
    offsets_by_key = {}
    for name, queues in table.items():
        offsets = _queue_offsets(name, queues)
        key = topic_and_group(name)
        if key is not None:
            offsets_by_key[key] = offsets
    return offsets_by_key


def light_consumer_offsets(text: str) -> dict[TopicAndGroup, dict[int, int]]:
    """Parse a ``lmqConsumerOffset.json`` as ``consumer_offsets`` does; a light queue (LMQ) has the queue id 0.

    Raises:
        DecodeError: not JSON, or an offset that is none.

    Source: ``LmqConsumerOffsetManager``.
    """
    offsets_by_key = consumer_offsets(text)
    table = _mapping(offsets_document(text).get("lmqOffsetTable"), "lmqOffsetTable")
    for name, value in table.items():
        offset, key = _integer(name, value), topic_and_group(name)
        if key is not None:
            offsets_by_key[key] = {0: offset}
    return offsets_by_key


def group_offsets(name: str, text: str) -> dict[int, int]:
    """Parse the offsets of one ``topic@group``, as config in RocksDB has them; Raises as ``consumer_offsets``.

    Source: ``RocksDBOffsetSerializeWrapper``.
    """
    return _queue_offsets(name, _mapping(loads(text), name).get("offsetTable"))


def topic_and_group(name: str) -> TopicAndGroup | None:
    """Split a key ``topic@group``; None for keys of another form."""
    parts = name.split("@")
    return (parts[0], parts[1]) if len(parts) == 2 and all(parts) else None


def data_version_counter(text: str) -> int:
    """Parse the counter of a data version: of a config file, or the data version alone; 0 without one.

    Raises:
        DecodeError: not JSON, or no number.
    """
    members = _mapping(loads(text), "a data version")
    version = _mapping(members.get("dataVersion", members), "dataVersion")
    return _integer("counter", version.get("counter", 0))


def _queue_offsets(name: str, queues: object) -> dict[int, int]:
    return {_queue_id(name, key): _integer(f"{name}: {key}", value) for key, value in _mapping(queues, name).items()}


def _queue_id(name: str, key: str) -> int:
    queue_id = int(key) if _LONG.fullmatch(key) else 1 << 31
    if not -(1 << 31) <= queue_id < 1 << 31:
        raise DecodeError(f"{name} has a bad queue id", expected="an int of Java", actual=key)
    return queue_id


def _integer(name: str, value: object) -> int:
    """Return an integer, given as a number or text, as in fastjson."""
    if isinstance(value, str) and _LONG.fullmatch(value):
        value = int(value)
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise DecodeError(f"{name} has a bad value", expected="an integer", actual=value)
    return value


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DecodeError(f"{what} is not a JSON object")
    return value


def _member(members: Mapping[str, object], name: str, default: _T) -> _T:
    value = members.get(name)
    if value is None:
        return default
    if type(value) is not type(default):
        raise DecodeError(f"{name} has a bad value", expected=type(default).__name__, actual=value)
    if isinstance(value, int) and not -(1 << 31) <= value < 1 << 31:
        raise DecodeError(f"{name} has a bad value", expected="an int of Java", actual=value)
    return value
