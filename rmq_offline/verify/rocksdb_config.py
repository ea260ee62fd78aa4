"""Reads config in RocksDB for a verification: what cannot be read is a finding, or is not checked."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from rmq_formats.errors import FormatError, StoreError, StoreLockedError
from rmq_formats.read import broker_config
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.committed_offsets import CommittedOffset
from rmq_offline.verify.findings import Finding, FindingList

_Table = TypeVar("_Table")


@dataclass(frozen=True, slots=True)
class RocksDbConfig:
    """Topics and committed offsets by config in RocksDB; empty for a store without that.

    Attributes:
        known_topics: topics that the broker knows; None where that is not known.
        batch_topics: topics whose queues are BatchConsumeQueues.
        committed_offsets: offsets of consumer groups; None where they are in no RocksDB.
        offsets_path: where they are.
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
            findings.add(Finding(finding_kinds.CONFIG_DATABASE, error.reason, error.path or place))
        except StoreLockedError:
            findings.add(_not_checked("a running broker has it open", place))
        except StoreError as error:
            findings.add(_not_checked(str(error), place))
        return None

    is_whole = broker_config.lists_all_topics(store)
    topics = read(broker_config.stored_topics)
    if topics is None and not is_whole:  # the others are in the same database
        return RocksDbConfig(committed_offsets=[], offsets_path=place)
    read(broker_config.stored_groups)
    offsets = read(broker_config.stored_offsets) or {}
    return RocksDbConfig(
        known_topics=frozenset(topics) if topics is not None and is_whole else None,
        batch_topics=frozenset(name for name, item in (topics or {}).items() if item.has_batch_queues),
        committed_offsets=[
            CommittedOffset(topic, queue_id, offset, group)
            for (topic, group), queues in offsets.items()
            for queue_id, offset in queues.items()
        ],
        offsets_path=place,
    )


def _not_checked(reason: str, path: str) -> Finding:
    return Finding(finding_kinds.CONFIG_NOT_CHECKED, f"not checked, because {reason}", path)
