"""Reads topics, consumer groups and consumer offsets of ``config/`` as a broker does."""

from collections.abc import Callable
from typing import Final, TypeVar

from rmq_formats.codecs import consumer_offsets_json, paths, subscription_groups_json, topics_json
from rmq_formats.codecs.consumer_offsets_json import TopicAndGroup
from rmq_formats.codecs.subscription_groups_json import StoredGroupConfig
from rmq_formats.codecs.topics_json import StoredTopicConfig
from rmq_formats.errors import DecodeError, StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.read import rocksdb_config
from rmq_formats.read.rocksdb_config import StoredTable
from rmq_formats.storage import store_layouts
from rmq_formats.storage.segments import Storage, read_range
from rmq_formats.storage.store_files import StoreFiles

MAX_CONFIG_BYTES: Final = 1 << 28  # limit: a file of 100,000 topics has some 30 MB; parsed it takes many times its size
OFFSETS: Final = "consumerOffset.json"
LIGHT_OFFSETS: Final = "lmqConsumerOffset.json"

_Key = TypeVar("_Key")
_Row = TypeVar("_Row")
_Parsed = TypeVar("_Parsed")


def stored_topics(store: StoreFiles) -> dict[str, StoredTopicConfig] | None:
    """Read the topics of a store, by name; None for a store without a table. See also ``lists_all_topics``.

    Raises:
        StoreNotFoundError: no such store.
        StoreError: neither the file nor its ``.bak`` can be read, or the RocksDB cannot be opened.
        FormatError: a damaged RocksDB.
    """
    return _load_table(store, "topics.json", topics_json.topic_configs, rocksdb_config.stored_topics)


def lists_all_topics(store: StoreFiles) -> bool:
    """Return whether ``stored_topics`` lists every topic: False for config in RocksDB of v2."""
    return not rocksdb_config.is_v2(store)


def stored_batch_topics(store: StoreFiles) -> frozenset[str]:
    """Return the topics with BatchConsumeQueues, by the store's directories and config; raises as ``stored_topics``."""
    layouts = store.layouts
    if store_layouts.StoreLayout.ROCKSDB_CONFIG not in layouts:
        return layouts.batch_topics
    configs = (stored_topics(store) or {}).items()
    return layouts.batch_topics | {name for name, item in configs if item.has_batch_queues}


def stored_groups(store: StoreFiles) -> dict[str, StoredGroupConfig]:
    """Read the consumer groups of a store, by name; raises as ``stored_topics``."""
    parse = subscription_groups_json.group_configs
    return _load_table(store, "subscriptionGroup.json", parse, rocksdb_config.stored_groups) or {}


def stored_offsets(store: StoreFiles) -> dict[TopicAndGroup, dict[int, int]]:
    """Read the consumer offsets, by topic and group, and queue id; raises as ``stored_topics`` and ``offsets_file``."""
    name = offsets_file(store)
    is_light = name == LIGHT_OFFSETS
    parse = consumer_offsets_json.light_consumer_offsets if is_light else consumer_offsets_json.consumer_offsets
    return _load_table(store, name, parse, rocksdb_config.stored_offsets) or {}


def offsets_file(store: StoreFiles) -> str:
    """Return the name of the file of consumer offsets, which need not exist; a broker with LMQ has another file.

    Raises StoreLayoutError: both files exist, of which the setting ``enableLmq`` tells the one that the broker reads.
    """
    light, other = (f"{paths.config_dir(store.root)}/{name}" for name in (LIGHT_OFFSETS, OFFSETS))
    has_light, has_other = (any(store.storage.exists(path + end) for end in ("", ".bak")) for path in (light, other))
    if has_light and has_other:
        reason = f"consumer offsets of a broker with light queues (LMQ), and {OFFSETS} has those of one without"
        raise StoreLayoutError(f"{light}: {reason}; move away the file that the broker does not read (enableLmq)")
    return LIGHT_OFFSETS if has_light else OFFSETS


def _load_table(
    store: StoreFiles,
    name: str,
    parse: Callable[[str], dict[_Key, _Row]],
    from_rocksdb: Callable[[StoreFiles], StoredTable[dict[_Key, _Row]] | None],
) -> dict[_Key, _Row] | None:
    """Read a table from RocksDB, else from its file or the file's ``.bak``, see ``read_config``.

    Rows of a file override those of a RocksDB of v1 with a lower data version.
    Source: ``ConfigManager#load``, ``RocksDBTopicConfigManager#merge``.
    """
    if not store.storage.exists(store.root):
        raise StoreNotFoundError(f"{store.root}: no such store")
    stored = from_rocksdb(store)
    if stored is not None and stored.counter is None:
        return stored.rows

    def rows_of(text: str) -> dict[_Key, _Row]:
        rows = parse(text)
        if stored is None:
            return rows
        is_newer = topics_json.data_version_counter(text) > (stored.counter or 0)
        return stored.rows | rows if is_newer else stored.rows

    rows = read_config(store, name, rows_of)
    return stored.rows if rows is None and stored is not None else rows


def read_config(store: StoreFiles, name: str, parse: Callable[[str], _Parsed]) -> _Parsed | None:
    """Read a config file, or its ``.bak`` if the file is missing, empty or does not parse; None without both files.

    A broker that is killed while it writes a config file may leave only the ``.bak``. Raises StoreError: neither file
    parses, or a file cannot be read.
    """
    faults = []
    for path in (f"{paths.config_dir(store.root)}/{name}", f"{paths.config_dir(store.root)}/{name}.bak"):
        try:
            return parse(_config_text(store.storage, path))
        except StoreNotFoundError:
            continue
        except DecodeError as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise StoreError(f"{' and '.join(faults)}. Correct it, or restore it from a backup")
    return None


def _config_text(storage: Storage, path: str) -> str:
    """Read a config file; DecodeError for an empty or too large file."""
    with storage.open(path) as file:
        if file.size_bytes > MAX_CONFIG_BYTES:
            raise DecodeError(f"it has {file.size_bytes} bytes, more than {MAX_CONFIG_BYTES}")
        text = read_range(file, 0, file.size_bytes).decode("utf-8", "replace")
    if not text.strip(" \t\r\n\0"):
        raise DecodeError("the file is empty")
    return text
