"""Reads the tables of ``config/`` as a broker does: topics, consumer groups, consumer offsets."""

from collections.abc import Callable
from typing import Final, TypeVar

from rmq_formats.codecs import config_json, paths
from rmq_formats.codecs.config_json import StoredGroupConfig, StoredTopicConfig, TopicAndGroup
from rmq_formats.errors import DecodeError, StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.storage import store_variants
from rmq_formats.storage.segments import Storage, opened, read_range

MAX_CONFIG_BYTES: Final = 1 << 28  # limit: a file of 100,000 topics has some 30 MB; parsed it takes many times its size
_OFFSETS: Final = "consumerOffset.json"
_LIGHT_OFFSETS: Final = "lmqConsumerOffset.json"

_Table = TypeVar("_Table")


def stored_topics(storage: Storage, root: str) -> dict[str, StoredTopicConfig] | None:
    """Read the topics of a store, by name; None where it has no table of them.

    Raises:
        StoreNotFoundError: no such store.
        StoreLayoutError: the tables are in RocksDB.
        StoreError: neither the file nor its ``.bak`` can be read.
    """
    return _loaded(storage, root, "topics.json", config_json.topic_configs)


def stored_groups(storage: Storage, root: str) -> dict[str, StoredGroupConfig]:
    """Read the consumer groups of a store, by name; raises as ``stored_topics``."""
    return _loaded(storage, root, "subscriptionGroup.json", config_json.group_configs) or {}


def stored_offsets(storage: Storage, root: str) -> dict[TopicAndGroup, dict[int, int]]:
    """Read the consumer offsets of a store, by topic and group, and queue id; raises as ``stored_topics``.

    Raises:
        StoreLayoutError: a broker with light queues has kept them, in a file of its own.
    """
    light = f"{paths.config_dir(root)}/{_LIGHT_OFFSETS}"
    if storage.exists(light):
        raise StoreLayoutError(f"{light}: the offsets of a broker with light queues (LMQ), which rmq does not read")
    return _loaded(storage, root, _OFFSETS, config_json.consumer_offsets) or {}


def _loaded(storage: Storage, root: str, name: str, parse: Callable[[str], _Table]) -> _Table | None:
    """Read a table from its file, or from the ``.bak`` where that is missing, empty or does not parse.

    A broker killed while it wrote them leaves only the second one. Source: ``ConfigManager#load``.
    """
    if not storage.exists(root):
        raise StoreNotFoundError(f"{root}: no such store")
    store_variants.refuse(store_variants.no_topic_configs(store_variants.recognise(storage, root)))
    faults = []
    for path in (f"{paths.config_dir(root)}/{name}", f"{paths.config_dir(root)}/{name}.bak"):
        try:
            return parse(_text(storage, path))
        except StoreNotFoundError:
            continue
        except DecodeError as error:
            faults.append(f"{path}: {error}")
    if faults:
        raise StoreError(" and ".join(faults))
    return None


def _text(storage: Storage, path: str) -> str:
    with opened(storage, path) as file:
        if file.size_bytes > MAX_CONFIG_BYTES:
            raise DecodeError(f"it has {file.size_bytes} bytes, more than {MAX_CONFIG_BYTES}")
        text = read_range(file, 0, file.size_bytes).decode("utf-8", "replace")
    if not text.strip(" \t\r\n\0"):
        raise DecodeError("the file is empty")
    return text
