"""Keys and values of a broker's config in RocksDB, of both versions.

v1 (``storeType=defaultRocksDB``) has a database each for topics, groups and consumer offsets: a key is a name, a value
JSON, and the family ``kvDataVersion`` has the data version. With ``useSingleRocksDBForAllConfigs=true``, of 5.4 and
later, all three are in one database, in families of their own. v2 (``configManagerVersion=v2``) has one database with
numbered tables.

Source: ``RocksDBConfigManager``, ``RocksDBTopicConfigManager`` and its neighbours; for v2 ``ConfigHelper``, ``TableId``
and ``RecordPrefix`` of ``broker.config.v2``.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct, error
from typing import Final

from rmq_formats.errors import DecodeError

TOPICS_V1: Final = "topics"
GROUPS_V1: Final = "subscriptionGroups"
OFFSETS_V1: Final = "consumerOffsets"
DATABASES_V1: Final = (TOPICS_V1, GROUPS_V1, OFFSETS_V1)
DATABASE_V2: Final = "rdb"
DATABASE_OF_ALL: Final = "metadata"
DATABASES: Final = (*DATABASES_V1, DATABASE_OF_ALL, DATABASE_V2)
VERSION_FAMILY_V1: Final = "kvDataVersion"
VERSION_KEY_V1: Final = b"kvDataVersionKey"
FORBIDDEN_FAMILY_V1: Final = "forbidden"  # of the groups: topics that a group must not read, a bit each

FAMILIES_OF_ALL: Final = {
    TOPICS_V1: ("topic", "topicVersion"),
    GROUPS_V1: ("subscriptionGroup", "subscriptionGroupVersion"),
    OFFSETS_V1: ("consumerOffset", "consumerOffsetVersion"),
}
"""Of the database of all three: the families of rows and of the data version, by the database that has them else."""

_VERSION: Final = 1  # of the layout of keys
_SEPARATOR: Final = 1
_JSON: Final = b"\x01"  # how a value is serialized
_PREFIX: Final = Struct(">BHB")
_LENGTH: Final = Struct(">H")
_QUEUE: Final = Struct(">Bi")
_OFFSET: Final = Struct(">q")
_DATA_VERSION: Final = Struct(">qqq")
_DATA_VERSION_KEY: Final = b"data_version"


class Table(IntEnum):
    """Tables of v2."""

    CONSUMER_OFFSETS = 1
    PULL_OFFSETS = 2
    TOPICS = 3
    GROUPS = 4


class Kind(IntEnum):
    """Kind of a pair in a table."""

    DATA_VERSION = 1
    DATA = 2


@dataclass(frozen=True, slots=True)
class OffsetKey:
    """Key of a consumer group's offset in a queue."""

    group: str
    topic: str
    queue_id: int

    def encode(self) -> bytes:
        """Return the key's bytes."""
        return (
            table_prefix(Table.CONSUMER_OFFSETS)
            + _name(self.group)
            + bytes([_SEPARATOR])
            + _name(self.topic)
            + _QUEUE.pack(_SEPARATOR, self.queue_id)
        )


def table_prefix(table: Table, kind: Kind = Kind.DATA) -> bytes:
    """Return the prefix of a table's keys."""
    return _PREFIX.pack(_VERSION, table, kind)


def version_key(table: Table) -> bytes:
    """Key of a table's data version."""
    return table_prefix(table, Kind.DATA_VERSION) + _DATA_VERSION_KEY


def decode_data_version(value: bytes) -> dict[str, int]:
    """Decode a table's data version, to the members that it has in JSON. Raises DecodeError."""
    if len(value) != _DATA_VERSION.size:
        raise DecodeError("a value that is no data version", expected=f"{_DATA_VERSION.size} bytes", actual=len(value))
    state, timestamp_ms, counter = _DATA_VERSION.unpack(value)
    return {"stateVersion": state, "timestamp": timestamp_ms, "counter": counter}


def _name(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def decode_name_key(key: bytes) -> str:
    """Return the name in a key of the tables of topics and groups. Raises DecodeError."""
    text, at = _read_name(key, _PREFIX.size)
    _check_used(key, at)
    return text


def decode_offset_key(key: bytes) -> OffsetKey:
    """Decode a key of the table of consumer offsets. Raises DecodeError."""
    group, at = _read_name(key, _PREFIX.size)
    _check_separator(key, at)
    topic, at = _read_name(key, at + 1)
    try:
        _, queue_id = _QUEUE.unpack_from(key, at)
    except error as cause:
        raise _bad(key, "it is too short") from cause
    _check_separator(key, at)
    _check_used(key, at + _QUEUE.size)
    return OffsetKey(group, topic, queue_id)


def decode_json_value(value: bytes) -> str:
    """Return the JSON in a value of the tables of topics and groups. Raises DecodeError."""
    if value[:1] != _JSON:
        raise DecodeError("a value of no known serialization", expected=_JSON.hex(), actual=value[:1].hex())
    return value[1:].decode("utf-8", "replace")


def decode_offset(value: bytes) -> int:
    """Return the queue offset in a value of the table of consumer offsets. Raises DecodeError."""
    if len(value) != _OFFSET.size:
        raise DecodeError("a value that is no offset", expected=f"{_OFFSET.size} bytes", actual=len(value))
    offset: int = _OFFSET.unpack(value)[0]
    return offset


def _read_name(key: bytes, at: int) -> tuple[str, int]:
    try:
        (length,) = _LENGTH.unpack_from(key, at)
    except error as cause:
        raise _bad(key, "it is too short") from cause
    end = at + _LENGTH.size + length
    if end > len(key):
        raise _bad(key, "it is too short")
    return key[at + _LENGTH.size : end].decode("utf-8", "replace"), end


def _check_separator(key: bytes, at: int) -> None:
    if key[at : at + 1] != bytes([_SEPARATOR]):
        raise _bad(key, f"no separator at {at}")


def _check_used(key: bytes, end: int) -> None:
    if end != len(key):
        raise _bad(key, "more bytes than it should have")


def _bad(key: bytes, reason: str) -> DecodeError:
    return DecodeError(f"a bad key of RocksDB: {reason}", actual=key.hex())
