"""Reads topics, consumer groups and consumer offsets out of config in RocksDB, of both versions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rmq_formats.codecs import config_json, paths
from rmq_formats.codecs.config_json import StoredGroupConfig, StoredTopicConfig, TopicAndGroup
from rmq_formats.codecs.variants import rocksdb_config as codec
from rmq_formats.codecs.variants.rocksdb_config import Table
from rmq_formats.errors import DecodeError, FormatError, StoreLayoutError
from rmq_formats.storage.rocksdb import DEFAULT_FAMILY, RocksDb, opened_rocksdb
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_variants import holds_rocksdb

_Rows = TypeVar("_Rows")
_END: Final = b"\xff"  # behind all keys with a prefix

Offsets = dict[TopicAndGroup, dict[int, int]]


@dataclass(frozen=True, slots=True)
class StoredTable(Generic[_Rows]):
    """A table of config in RocksDB.

    Attributes:
        path: of its database.
        rows: by name.
        counter: of its data version, by which a config file beside it is older or newer; None in v2, beside which
            brokers read no files.
    """

    path: str
    rows: _Rows
    counter: int | None = None


def stored_topics(storage: Storage, root: str) -> StoredTable[dict[str, StoredTopicConfig]] | None:
    """Read the topics; None where they are in no RocksDB.

    Of v2 they are not all: it has none of the topics that the broker made by itself at a send.

    Raises:
        StoreLayoutError: databases of both versions.
        StoreLockedError: a running broker has the database open.
        StoreError: rocksdict is not installed.
        FormatError: a damaged database.
    """
    return _table(
        storage, root, codec.TOPICS_V1,
        lambda database: {name: config_json.topic_config(name, text) for name, text in _named_v1(database)},
        lambda database: {
            name: config_json.topic_config(name, text) for name, text in _named_v2(database, Table.TOPICS)
        },
    )  # fmt: skip


def stored_groups(storage: Storage, root: str) -> StoredTable[dict[str, StoredGroupConfig]] | None:
    """Read the consumer groups, as ``stored_topics``."""
    return _table(
        storage, root, codec.GROUPS_V1,
        lambda database: {name: config_json.group_config(name, text) for name, text in _named_v1(database)},
        lambda database: {
            name: config_json.group_config(name, text) for name, text in _named_v2(database, Table.GROUPS)
        },
    )  # fmt: skip


def stored_offsets(storage: Storage, root: str) -> StoredTable[Offsets] | None:
    """Read the consumer offsets, by topic and group, and queue id; as ``stored_topics``."""
    return _table(storage, root, codec.OFFSETS_V1, _offsets_v1, _offsets_v2)


def is_v2(storage: Storage, root: str) -> bool:
    """Return whether the config is in RocksDB of v2, whose topics are not all."""
    return holds_rocksdb(storage, _directory(root, codec.DATABASE_V2))


def plain_tables(storage: Storage, path: str) -> dict[str, object]:
    """Read a database of config by its path, as values of JSON: of v1 by name, of v2 by table and name."""
    with opened_rocksdb(storage, path, path.rpartition("/config/")[0]) as database:
        try:
            if path.rpartition("/")[2] != codec.DATABASE_V2:
                return {name: config_json.loads(text) for name, text in _named_v1(database)}
            return {
                "topics": {name: config_json.loads(text) for name, text in _named_v2(database, Table.TOPICS)},
                "subscriptionGroups": {
                    name: config_json.loads(text) for name, text in _named_v2(database, Table.GROUPS)
                },
                "consumerOffsets": {"@".join(key): queues for key, queues in _offsets_v2(database).items()},
            }
        except DecodeError as error:
            raise FormatError(str(error), path=path) from error


def _directory(root: str, name: str) -> str:
    return f"{paths.config_dir(root)}/{name}"


def _table(
    storage: Storage, root: str, name: str, read_v1: Callable[[RocksDb], _Rows], read_v2: Callable[[RocksDb], _Rows]
) -> StoredTable[_Rows] | None:
    path = _directory(root, name)
    has_v1 = holds_rocksdb(storage, path)
    if is_v2(storage, root):
        if has_v1:
            raise StoreLayoutError(
                f"{path}: config in RocksDB of v1 beside {codec.DATABASE_V2} of v2; move the one that the broker does "
                "not use out of the store"
            )
        path = _directory(root, codec.DATABASE_V2)
    elif not has_v1:
        return None
    with opened_rocksdb(storage, path, root) as database:
        try:
            if not has_v1:
                return StoredTable(path, read_v2(database))
            version = database.get(codec.VERSION_FAMILY_V1, codec.VERSION_KEY_V1)
            counter = 0 if version is None else config_json.data_version_counter(version.decode("utf-8", "replace"))
            return StoredTable(path, read_v1(database), counter)
        except DecodeError as error:
            raise FormatError(str(error), path=path) from error


def _named_v1(database: RocksDb) -> list[tuple[str, str]]:
    """The pairs of a database of v1: a name, and JSON."""
    pairs = database.pairs(DEFAULT_FAMILY)
    return [(key.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for key, value in pairs]


def _named_v2(database: RocksDb, table: Table) -> list[tuple[str, str]]:
    """The pairs of a table of v2 whose keys are names: a name, and JSON."""
    prefix = codec.table_prefix(table)
    pairs = database.pairs(DEFAULT_FAMILY, prefix, prefix + _END)
    return [(codec.decode_name_key(key), codec.decode_json_value(value)) for key, value in pairs]


def _offsets_v1(database: RocksDb) -> Offsets:
    found: Offsets = {}
    for name, text in _named_v1(database):
        offsets = config_json.group_offsets(name, text)
        key = config_json.topic_and_group(name)
        if key is not None:
            found[key] = offsets
    return found


def _offsets_v2(database: RocksDb) -> Offsets:
    prefix = codec.table_prefix(Table.CONSUMER_OFFSETS)
    found: Offsets = {}
    for key, value in database.pairs(DEFAULT_FAMILY, prefix, prefix + _END):
        place = codec.decode_offset_key(key)
        found.setdefault((place.topic, place.group), {})[place.queue_id] = codec.decode_offset(value)
    return found
