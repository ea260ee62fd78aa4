"""Reads and checks a store's config as a broker loads it: files of ``config/`` with their ``.bak``, and RocksDB."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from rmq_formats.codecs import tiered
from rmq_formats.codecs.consumer_offsets_json import check_consumer_offsets, check_delay_offsets, offsets_document
from rmq_formats.codecs.fastjson import loads
from rmq_formats.errors import DecodeError, FormatError, StoreError, StoreLockedError, StoreNotFoundError
from rmq_formats.read import broker_config
from rmq_formats.storage.segments import Entry, Storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.committed_offsets import CONSUMER_OFFSETS, LIGHT_CONSUMER_OFFSETS, CommittedOffset, list_offsets
from rmq_offline.verify.findings import Finding, FindingList

JSON_FILES: Final = (
    "topics.json", "subscriptionGroup.json", CONSUMER_OFFSETS, LIGHT_CONSUMER_OFFSETS, "delayOffset.json",
    "consumerFilter.json", "consumerOrderInfo.json", "messageRequestMode.json", "topicQueueMapping.json",
    "timermetrics", "transactionMetrics", tiered.METADATA,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A config file or its ``.bak``.

    Attributes:
        data: the bytes; None without a readable file.
        fault: why a broker does not load the file; None if a broker loads it, or there is none.
    """

    data: bytes | None
    fault: str | None

    @property
    def exists(self) -> bool:
        """True if the file exists, readable or not."""
        return self.data is not None or self.fault is not None


def check_config_file(path: str, config: ConfigFile, backup: ConfigFile) -> Iterator[Finding]:
    """Check that a broker can load a config file, or else its ``.bak``. Source: ``ConfigManager#load``."""
    if config.fault is None and (config.exists or backup.fault is None):
        return
    fault = config.fault or "it is not there"
    if not backup.exists:
        yield Finding(finding_kinds.CONFIG_LOST, f"{fault}; and there is no .bak", path)
    elif backup.fault is None:
        yield Finding(finding_kinds.CONFIG_UNPARSABLE, fault, path)
    else:
        yield Finding(finding_kinds.CONFIG_LOST, f"{fault}; nor is its .bak taken ({backup.fault})", path)


def select_config_data(config: ConfigFile, backup: ConfigFile) -> bytes | None:
    """Return the bytes that a broker loads: those of a config file or of its ``.bak``; None if neither is readable.

    A broker that is killed while it writes the two files leaves only the ``.bak``, and loads that when it starts.
    Source: ``MixAll#string2File``.
    """
    if config.data is None or (backup.data is not None and config.fault is not None):
        return backup.data
    return config.data


def config_fault(path: str, data: bytes) -> str | None:
    """Return why a broker does not load a config file; None if it does."""
    if not data.strip(b" \t\r\n\0"):
        return "the file is empty"
    name, text = path.rpartition("/")[2], data.decode("utf-8", "replace")
    try:
        value = loads(text)
        if not isinstance(value, dict):
            return "not a JSON object"
        if name in _OFFSET_CHECKS:
            _OFFSET_CHECKS[name](offsets_document(text))
    except DecodeError as error:
        return str(error)
    return _table_fault(value, _TABLES[name]) if name in _TABLES else None


def _table_fault(config: Mapping[str, object], name: str) -> str | None:
    """Return what is wrong with a table of a config file; None if nothing is, or there is no such table."""
    entries = config.get(name)
    if entries is None:
        return None
    if not isinstance(entries, dict):
        return f"{name} is not a JSON object"
    bad_keys = (key for key, item in entries.items() if not (item is None or isinstance(item, dict)))
    return next((f"{name} has a bad value at {key}" for key in bad_keys), None)


# The table that a broker needs in a config file; its values are objects.
_TABLES: Final = {"topics.json": "topicConfigTable", "subscriptionGroup.json": "subscriptionGroupTable"}
_OFFSET_CHECKS: Final[Mapping[str, Callable[[Mapping[str, object]], None]]] = {
    CONSUMER_OFFSETS: check_consumer_offsets,
    LIGHT_CONSUMER_OFFSETS: check_consumer_offsets,
    "delayOffset.json": check_delay_offsets,
}

MAX_CONFIG_BYTES: Final = 1 << 28  # limit: a file of 100,000 topics has some 30 MB; parsed it takes many times its size


def read_config_texts(storage: Storage, directory: str, findings: FindingList) -> dict[str, str]:
    """Read each config file that exists as a broker does, from it or its ``.bak``; empty if neither is readable."""
    try:
        entries = {entry.name: entry for entry in storage.entries(directory)}
    except StoreError as error:
        findings.report(finding_kinds.CONFIG_LOST, str(error), directory)
        return dict.fromkeys(JSON_FILES, "")
    texts = {}
    for name in JSON_FILES:
        path = f"{directory}/{name}"
        config = _read(storage, path, path, entries.get(name))
        backup = _read(storage, f"{path}.bak", path, entries.get(f"{name}.bak"))
        findings.extend(check_config_file(path, config, backup))
        if config.exists or backup.exists:
            texts[name] = (select_config_data(config, backup) or b"").decode("utf-8", "replace")
    return texts


def _read(storage: Storage, path: str, config_path: str, entry: Entry | None) -> ConfigFile:
    """Read a config file, or the ``.bak`` of the one at ``config_path``."""
    if entry is None:
        return ConfigFile(None, None)
    if entry.is_directory:
        return ConfigFile(None, "it is a directory")
    if entry.size_bytes > MAX_CONFIG_BYTES:
        return ConfigFile(None, f"it has {entry.size_bytes} bytes, more than {MAX_CONFIG_BYTES}")
    try:
        data = storage.read_bytes(path)
    except StoreNotFoundError:  # a broker deleted it since it was listed, to rewrite it
        return ConfigFile(None, None)
    except (StoreError, OSError):
        return ConfigFile(None, "it cannot be read")
    return ConfigFile(data, config_fault(config_path, data))


_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class RocksDbConfig:
    """Topics and committed offsets by config in RocksDB; empty for a store without config in RocksDB.

    Attributes:
        known_topics: the broker's topics; None without a list of all.
        batch_topics: topics whose queues are BatchConsumeQueues.
        committed_offsets: offsets of consumer groups; None where no RocksDB has offsets.
    """

    known_topics: frozenset[str] | None = None
    batch_topics: frozenset[str] = frozenset()
    committed_offsets: list[CommittedOffset] | None = None
    offsets_path: str | None = None


def read_rocksdb_config(store: StoreFiles, findings: FindingList) -> RocksDbConfig:
    """Read the tables of config in RocksDB, if the store has it."""
    if StoreLayout.ROCKSDB_CONFIG not in store.layouts:
        return RocksDbConfig()
    place = store.layouts.evidence[StoreLayout.ROCKSDB_CONFIG]

    def read(table: Callable[[StoreFiles], _Table | None]) -> _Table | None:
        try:
            return table(store)
        except FormatError as error:
            findings.report(finding_kinds.CONFIG_DATABASE, error.reason, error.path or place)
        except StoreLockedError:
            kind, detail = finding_kinds.CONFIG_NOT_CHECKED, "not checked, because a running broker has it open"
            findings.report(kind, detail, place)
        except StoreError as error:
            findings.report(finding_kinds.CONFIG_NOT_CHECKED, f"not checked, because {error}", place)
        return None

    is_whole = broker_config.lists_all_topics(store)
    topics = read(broker_config.stored_topics)
    if topics is None and not is_whole:  # groups and offsets are in the same database
        return RocksDbConfig(committed_offsets=[], offsets_path=place)
    read(broker_config.stored_groups)
    return RocksDbConfig(
        known_topics=frozenset(topics) if topics is not None and is_whole else None,
        batch_topics=frozenset(name for name, item in (topics or {}).items() if item.has_batch_queues),
        committed_offsets=list_offsets(read(broker_config.stored_offsets) or {}),
        offsets_path=place,
    )
