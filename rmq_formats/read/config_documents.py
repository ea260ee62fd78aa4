"""Topics, consumer groups and consumer offsets of a store as documents: all members that their JSON files would have.

Of config in RocksDB they are what ``mqadmin rocksDBConfigToJson`` writes. ``read/broker_config.py`` reads only the
members that the tools need.
"""

from dataclasses import dataclass
from typing import Final

from rmq_formats.codecs import consumer_offsets_json, fastjson
from rmq_formats.codecs import rocksdb_config as codec
from rmq_formats.codecs.rocksdb_config import Table
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import DecodeError, FormatError
from rmq_formats.read import broker_config, rocksdb_config
from rmq_formats.read.broker_config import LIGHT_OFFSETS, offsets_file, read_config
from rmq_formats.storage.rocksdb import RocksDb, open_rocksdb
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_files import StoreFiles

Document = dict[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a document."""

    files: tuple[str, ...]  # JSON files, of which a broker has one
    table: str  # the main member, by name of a topic, of a group, or ``topic@group``
    database: str  # directory in RocksDB v1
    numbered: Table  # in RocksDB v2


LIGHT_TABLE: Final = "lmqOffsetTable"
TOPICS: Final = Kind(("topics.json",), "topicConfigTable", codec.TOPICS_V1, Table.TOPICS)
GROUPS: Final = Kind(("subscriptionGroup.json",), "subscriptionGroupTable", codec.GROUPS_V1, Table.GROUPS)
OFFSETS: Final = Kind((LIGHT_OFFSETS, broker_config.OFFSETS), "offsetTable", codec.OFFSETS_V1, Table.CONSUMER_OFFSETS)
KINDS: Final = (TOPICS, GROUPS, OFFSETS)
FORBIDDEN: Final = "forbiddenTable"


def stored_document(store: StoreFiles, kind: Kind) -> Document | None:
    """Read a document of a store; None for a store without the document. Raises as ``broker_config.stored_offsets``.

    As at a broker's start, a file with a higher data version overrides rows of a RocksDB of v1. Offsets of light queues
    (LMQ) are in ``offsetTable`` with the queue id 0.
    """
    path, stored = rocksdb_config.config_database(store, kind.database), None
    if path is not None:
        with open_rocksdb(store.storage, path, store.root) as database:
            stored = _database_document(database, kind)
    if stored is not None and rocksdb_config.is_v2(store):
        return stored
    file = offsets_file(store) if kind is OFFSETS else kind.files[0]
    from_files = read_config(store, file, lambda text: _parse_document(text, kind))
    if stored is None or from_files is None:
        return stored or from_files
    if _counter(from_files) <= _counter(stored):
        return stored
    return {**stored, **from_files, kind.table: {**table_of(stored, kind), **table_of(from_files, kind)}}


def table_of(document: Document, kind: Kind) -> dict[str, object]:
    """Return the main member of a document."""
    table = document.get(kind.table)
    return table if isinstance(table, dict) else {}


def forbidden_of(document: Document) -> dict[str, object]:
    """Return which topics each group must not read; of a document of groups."""
    table = document.get(FORBIDDEN)
    return table if isinstance(table, dict) else {}


def with_light_table(document: Document) -> Document:
    """Convert a document of offsets to that of a broker with light queues (LMQ).

    Offsets of groups with such a name have a table of their own. Source: ``LmqConsumerOffsetManager#commitOffset``.
    """
    plain, light = {}, {}
    for name, queues in table_of(document, OFFSETS).items():
        if name.partition("@")[2].startswith(LIGHT_QUEUE_PREFIX) and isinstance(queues, dict):
            light[name] = queues.get("0", 0)
        else:
            plain[name] = queues
    return {**document, OFFSETS.table: plain, LIGHT_TABLE: light}


def _counter(document: Document) -> int:
    version = document.get("dataVersion")
    counter = version.get("counter") if isinstance(version, dict) else 0
    return counter if isinstance(counter, int) else 0


def _parse_document(text: str, kind: Kind) -> Document:
    document = consumer_offsets_json.offsets_document(text) if kind is OFFSETS else fastjson.loads(text)
    if not isinstance(document, dict) or not isinstance(document.get(kind.table, {}), dict):
        raise DecodeError(f"it has no table {kind.table}")
    light = document.pop(LIGHT_TABLE, None)
    if isinstance(light, dict):
        queues = {key: {"0": offset} for key, offset in light.items()}
        document[kind.table] = {**table_of(document, kind), **queues}
    return document


def _database_document(database: RocksDb, kind: Kind) -> Document:
    """Read a document from an open RocksDB of config, of either version. Raises FormatError."""
    try:
        if database.path.rpartition("/")[2] == codec.DATABASE_V2:
            return _document_v2(database, kind)
        return _document_v1(database, kind)
    except DecodeError as error:
        raise FormatError(str(error), path=database.path) from error


def documents_at(storage: Storage, path: str) -> Document:
    """Read a RocksDB of config by path: its document, or of a database of all tables the documents by file name.

    Raises:
        StoreLockedError: a running broker has the database open.
        StoreError: rocksdict is not installed.
        FormatError: a damaged RocksDB.
    """
    name = path.rpartition("/")[2]
    with open_rocksdb(storage, path, path.rpartition("/config/")[0]) as database:
        if name in {codec.DATABASE_V2, codec.DATABASE_OF_ALL}:
            return {kind.files[-1]: _database_document(database, kind) for kind in KINDS}
        return _database_document(database, next(kind for kind in KINDS if kind.database == name))


def _document_v1(database: RocksDb, kind: Kind) -> Document:
    version = rocksdb_config.version_v1(database, kind.database)
    rows = {name: fastjson.loads(text) for name, text in rocksdb_config.named_v1(database, kind.database)}
    if kind is OFFSETS:
        rows = {name: value.get("offsetTable", {}) for name, value in rows.items() if isinstance(value, dict)}
    document: Document = {kind.table: rows}
    if version is not None:
        document["dataVersion"] = fastjson.loads(version)
    if kind is GROUPS:
        document[FORBIDDEN] = {
            key.decode("utf-8", "replace"): fastjson.loads(value.decode("utf-8", "replace"))
            for key, value in database.pairs(codec.FORBIDDEN_FAMILY_V1)
        }
    return document


def _document_v2(database: RocksDb, kind: Kind) -> Document:
    version = database.get("default", codec.version_key(kind.numbered))
    rows: dict[str, object] = {}
    if kind is OFFSETS:
        for key, queues in rocksdb_config.offsets_v2(database).items():
            rows["@".join(key)] = {str(queue_id): offset for queue_id, offset in queues.items()}
    else:
        rows = {name: fastjson.loads(text) for name, text in rocksdb_config.named_v2(database, kind.numbered)}
    document: Document = {kind.table: rows}
    if version is not None:
        document["dataVersion"] = codec.decode_data_version(version)
    return document
