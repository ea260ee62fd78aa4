"""Reads topics, consumer groups and consumer offsets out of config in RocksDB, of both versions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from rmq_formats.codecs import consumer_offsets_json, paths, subscription_groups_json, topics_json
from rmq_formats.codecs import rocksdb_config as codec
from rmq_formats.codecs.consumer_offsets_json import TopicAndGroup
from rmq_formats.codecs.rocksdb_config import Table
from rmq_formats.codecs.subscription_groups_json import StoredGroupConfig
from rmq_formats.codecs.topics_json import StoredTopicConfig
from rmq_formats.errors import DecodeError, FormatError, StoreLayoutError
from rmq_formats.storage.rocksdb import DEFAULT_FAMILY, RocksDb, open_rocksdb
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import is_rocksdb

_Row = TypeVar("_Row")
_Rows = TypeVar("_Rows")
_END: Final = b"\xff"  # behind all keys with a prefix

Offsets = dict[TopicAndGroup, dict[int, int]]


@dataclass(frozen=True, slots=True)
class StoredTable(Generic[_Rows]):
    """A table of config in RocksDB. A config file with a higher counter of the data version is newer."""

    rows: _Rows
    counter: int | None = None  # None in v2, for which brokers read no files


def stored_topics(store: StoreFiles) -> StoredTable[dict[str, StoredTopicConfig]] | None:
    """Read the topics; None if no RocksDB has them. In v2 those are missing that the broker created at a send.

    Raises:
        StoreLayoutError: databases of two kinds.
        StoreLockedError: a running broker has the database open.
        StoreError: rocksdict is not installed.
        FormatError: a damaged database.
    """
    return _table_by_name(store, codec.TOPICS_V1, Table.TOPICS, topics_json.topic_config)


def stored_groups(store: StoreFiles) -> StoredTable[dict[str, StoredGroupConfig]] | None:
    """Read the consumer groups, as ``stored_topics``."""
    return _table_by_name(store, codec.GROUPS_V1, Table.GROUPS, subscription_groups_json.group_config)


def stored_offsets(store: StoreFiles) -> StoredTable[Offsets] | None:
    """Read the consumer offsets, by topic and group, and queue id; as ``stored_topics``."""
    return _table(store, codec.OFFSETS_V1, _offsets_v1, offsets_v2)


def is_v2(store: StoreFiles) -> bool:
    """Return whether the config is in RocksDB of v2, which lacks some topics."""
    return is_rocksdb(store.storage, _directory(store.root, codec.DATABASE_V2))


def _directory(root: str, name: str) -> str:
    return f"{paths.config_dir(root)}/{name}"


def config_database(store: StoreFiles, name: str) -> str | None:
    """Return the RocksDB with a table, by the name of its database in v1; None if a file has the table.

    Raises StoreLayoutError: databases of two kinds, of which a broker's settings tell the one that it uses.
    """
    kinds = {name: "v1", codec.DATABASE_OF_ALL: "v1 with one database for all", codec.DATABASE_V2: "v2"}
    databases = [database for database in kinds if is_rocksdb(store.storage, _directory(store.root, database))]
    if len(databases) > 1:
        first, second, *_ = databases
        raise StoreLayoutError(
            f"{_directory(store.root, first)}: config in RocksDB of {kinds[first]} beside {second} of {kinds[second]}; "
            "move the one that the broker does not use out of the store"
        )
    return _directory(store.root, databases[0]) if databases else None


def _table_by_name(
    store: StoreFiles, name: str, table_v2: Table, parse: Callable[[str, str], _Row]
) -> StoredTable[dict[str, _Row]] | None:
    def parse_rows(rows: list[tuple[str, str]]) -> dict[str, _Row]:
        return {key: parse(key, text) for key, text in rows}

    return _table(store, name, parse_rows, lambda database: parse_rows(named_v2(database, table_v2)))


def _table(
    store: StoreFiles,
    name: str,
    parse_v1: Callable[[list[tuple[str, str]]], _Rows],
    read_v2: Callable[[RocksDb], _Rows],
) -> StoredTable[_Rows] | None:
    path = config_database(store, name)
    if path is None:
        return None
    with open_rocksdb(store.storage, path, store.root) as database:
        try:
            if path == _directory(store.root, codec.DATABASE_V2):
                return StoredTable(read_v2(database))
            version = version_v1(database, name)
            counter = 0 if version is None else topics_json.data_version_counter(version)
            return StoredTable(parse_v1(named_v1(database, name)), counter)
        except DecodeError as error:
            raise FormatError(str(error), path=path) from error


def _families_v1(database: RocksDb, name: str) -> tuple[str, str]:
    """Return the families of a table's rows and of its data version."""
    is_of_all = database.path.rpartition("/")[2] == codec.DATABASE_OF_ALL
    return codec.FAMILIES_OF_ALL[name] if is_of_all else (DEFAULT_FAMILY, codec.VERSION_FAMILY_V1)


def version_v1(database: RocksDb, name: str) -> str | None:
    """Read the data version of a table of v1, JSON; None without one. Raises FormatError."""
    version = database.get(_families_v1(database, name)[1], codec.VERSION_KEY_V1)
    return None if version is None else version.decode("utf-8", "replace")


def named_v1(database: RocksDb, name: str) -> list[tuple[str, str]]:
    """Read the pairs of a table of v1: a name, and JSON; ``name`` is that of its own database. Raises FormatError."""
    pairs = database.pairs(_families_v1(database, name)[0])
    return [(key.decode("utf-8", "replace"), value.decode("utf-8", "replace")) for key, value in pairs]


def named_v2(database: RocksDb, table: Table) -> list[tuple[str, str]]:
    """Read the pairs of a table of v2 whose keys are names: a name, and JSON. Raises FormatError, DecodeError."""
    prefix = codec.table_prefix(table)
    pairs = database.pairs(DEFAULT_FAMILY, prefix, prefix + _END)
    return [(codec.decode_name_key(key), codec.decode_json_value(value)) for key, value in pairs]


def _offsets_v1(rows: list[tuple[str, str]]) -> Offsets:
    offsets_by_group: Offsets = {}
    for name, text in rows:
        offsets = consumer_offsets_json.group_offsets(name, text)
        key = consumer_offsets_json.topic_and_group(name)
        if key is not None:
            offsets_by_group[key] = offsets
    return offsets_by_group


def offsets_v2(database: RocksDb) -> Offsets:
    """Read the consumer offsets of a database of v2. Raises FormatError, DecodeError."""
    prefix = codec.table_prefix(Table.CONSUMER_OFFSETS)
    offsets_by_group: Offsets = {}
    for key, value in database.pairs(DEFAULT_FAMILY, prefix, prefix + _END):
        queue = codec.decode_offset_key(key)
        offsets_by_group.setdefault((queue.topic, queue.group), {})[queue.queue_id] = codec.decode_offset(value)
    return offsets_by_group
