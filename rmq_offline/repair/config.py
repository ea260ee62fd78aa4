"""Makes ``topics.json`` and ``subscriptionGroup.json`` anew, where a store has lost them, from log, queues and offsets.

Topics are those with queues; in a store without any queue, those with messages in the log. Queue numbers are those that
occur, so that a topic may have had more queues. Groups are those that have consumed, or have a retry topic. System
topics and groups are left to the broker, which makes them at each start.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import DLQ_PREFIX, LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PATTERN
from rmq_formats.errors import StoreLayoutError, os_errors_as_store_errors
from rmq_formats.kernels.dispatch import MARK_BATCH
from rmq_formats.read.log_end import readable_segments
from rmq_formats.storage.contained import parent_directory, write_file
from rmq_formats.storage.queue_logs import CompactedLogs
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.storage.store_lock import store_lock
from rmq_offline.rebuild.changes import read_committed_offsets
from rmq_offline.rebuild.publication import DEFAULT_PUBLISHING, lock_if_there
from rmq_offline.rebuild.queue_views import open_tree
from rmq_offline.repair.journal import move_aside
from rmq_offline.repair.preconditions import open_repairable_store
from rmq_offline.repair.scan import dispatch_segment
from rmq_offline.tasks.quarantine import next_directory
from rmq_offline.verify.config_files import config_fault

TOPICS: Final = "topics.json"
GROUPS: Final = "subscriptionGroup.json"
_SYSTEM: Final = re.compile(SYSTEM_TOPIC_PATTERN)
_READ_AND_WRITE: Final = 6


@dataclass(frozen=True, slots=True)
class ConfigFileStep:
    """Config file that is written anew.

    Attributes:
        path: relative to the store's root.
        why: fault of the existing file, or that there is none.
        names: the topics, each with its number of queues, or the groups.
    """

    path: str
    why: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """Report of a repair of config files, or of its plan; replaced files are in the ``directory``."""

    store: str
    is_applied: bool
    steps: tuple[ConfigFileStep, ...] = ()
    directory: str | None = None

    @property
    def is_clean(self) -> bool:
        """True if the plan is applied or has no steps."""
        return self.is_applied or not self.steps

    def to_dict(self) -> dict[str, Any]:
        """Convert to the JSON report."""
        return {
            "job": "repair", "what": "config", "store": self.store, "applied": self.is_applied, "clean": self.is_clean,
            "files": [asdict(step) for step in self.steps], "quarantine": self.directory,
        }  # fmt: skip


def repair_config(store: str, *, apply: bool) -> ConfigReport:
    """Make the lost config files of a store anew; or, in a dry run, report what that would do.

    A file that parses stays as it is, and so does one with a ``.bak`` that parses: a broker reads that.

    Raises:
        StoreNotFoundError: there is no store.
        StoreLockedError: a running broker has the store.
        StoreLayoutError: its topics and groups are in RocksDB.
        OptionError: an object store.
        StoreError: a file that cannot be read or written.
    """
    files = open_repairable_store(store)
    if StoreLayout.ROCKSDB_CONFIG in files.layouts:
        raise StoreLayoutError(
            f"{files.layouts.evidence[StoreLayout.ROCKSDB_CONFIG]}: topics and groups are in this RocksDB"
        )
    with os_errors_as_store_errors(files.root):
        if not apply:
            with lock_if_there(files.root, DEFAULT_PUBLISHING):
                return ConfigReport(files.root, False, tuple(step for step, _ in _steps(files.root)))
        with store_lock(files.root):
            return _apply(Path(files.root))


def _apply(root: Path) -> ConfigReport:
    steps = list(_steps(str(root)))
    directory = next_directory(root)
    is_used = False
    for step, data in steps:
        if os.path.lexists(root / step.path):
            move_aside(root, step.path, str((directory / step.path).relative_to(root)))
            is_used = True
        with parent_directory(root, step.path, create=True):
            pass
        write_file(root, step.path, data)
    return ConfigReport(str(root), True, tuple(step for step, _ in steps), str(directory) if is_used else None)


def _steps(root: str) -> Iterator[tuple[ConfigFileStep, bytes]]:
    faults = {name: fault for name in (TOPICS, GROUPS) if (fault := _fault(root, name)) is not None}
    if not faults:
        return
    store = open_store(root)
    queues, batch = _queues(store)
    committed_offsets = read_committed_offsets(store)
    if TOPICS in faults:
        for committed in committed_offsets:
            if committed.group is not None:
                queues.setdefault(committed.topic, set()).add(committed.queue_id)
        compacted = {topic for topic, _ in CompactedLogs.of(store).queues_with_units()}
        topics = {
            topic: _make_topic_config(topic, ids, is_batch=topic in batch, is_compacted=topic in compacted)
            for topic, ids in sorted(_select_user_topics(queues).items())
        }
        texts = tuple(f"{topic} ({config['readQueueNums']})" for topic, config in topics.items())
        yield ConfigFileStep(f"config/{TOPICS}", faults[TOPICS], texts), _document("topicConfigTable", topics)
    if GROUPS in faults:
        names = {committed.group for committed in committed_offsets if committed.group}
        for prefix in (RETRY_PREFIX, DLQ_PREFIX):
            names |= {topic.removeprefix(prefix) for topic in queues if topic.startswith(prefix)}
        groups = {group: _make_group_config(group) for group in sorted(names)}
        step = ConfigFileStep(f"config/{GROUPS}", faults[GROUPS], tuple(groups))
        yield step, _document("subscriptionGroupTable", groups)


def _fault(root: str, name: str) -> str | None:
    """Return why a broker can read neither a config file nor its ``.bak``; None if a broker can read one of them."""
    faults = []
    config_file = f"{paths.config_dir(root)}/{name}"
    for path in (Path(config_file), Path(f"{config_file}.bak")):
        if os.path.lexists(path):
            fault = config_fault(config_file, path.read_bytes()) if path.is_file() else "no file"
            if fault is None:
                return None
            faults.append(fault)
    return faults[0] if faults else "neither it nor its .bak is there"


def _queues(store: StoreFiles) -> tuple[dict[str, set[int]], set[str]]:
    queues: dict[str, set[int]] = {}
    batch: set[str] = set()
    with open_tree(store.root) as tree:
        for queue in tree.names:
            queues.setdefault(queue.topic, set()).add(queue.queue_id)
            batch |= {queue.topic} if queue.is_batch else set()
    has_queues = bool(queues)
    for segment in readable_segments(store):
        dispatcher = dispatch_segment(store.storage, segment)
        for topic, queue_id in dispatcher.queue_names():
            if topic in queues or not has_queues:
                queues.setdefault(topic, set()).add(queue_id)
        batch |= set(dispatcher.marked_topics(MARK_BATCH))
    return queues, batch


def _select_user_topics(queues: dict[str, set[int]]) -> dict[str, set[int]]:
    """Select the topics that no broker makes by itself, and whose names are valid."""
    return {
        topic: ids
        for topic, ids in queues.items()
        if not _SYSTEM.fullmatch(topic) and not topic.startswith(LIGHT_QUEUE_PREFIX) and paths.is_safe_topic(topic)
    }


def _make_topic_config(topic: str, queue_ids: set[int], *, is_batch: bool, is_compacted: bool) -> dict[str, Any]:
    count = max(1, max(queue_ids) + 1)
    attributes = {"queue.type": "BatchCQ"} if is_batch else {}
    if is_compacted:
        attributes["cleanup.policy"] = "COMPACTION"
    return {
        "attributes": attributes, "order": False, "perm": _READ_AND_WRITE,
        "readQueueNums": count, "topicFilterType": "SINGLE_TAG", "topicName": topic, "topicSysFlag": 0,
        "writeQueueNums": count,
    }  # fmt: skip


def _make_group_config(group: str) -> dict[str, Any]:
    """Make a group's config with the defaults of ``SubscriptionGroupConfig``."""
    return {
        "attributes": {}, "brokerId": 0, "consumeBroadcastEnable": True, "consumeEnable": True,
        "consumeFromMinEnable": True, "consumeMessageOrderly": False, "consumeTimeoutMinute": 15, "groupName": group,
        "groupSysFlag": 0, "notifyConsumerIdsChangedEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }  # fmt: skip


def _document(member: str, table: dict[str, dict[str, Any]]) -> bytes:
    version = {"counter": 1, "stateVersion": 0, "timestamp": time.time_ns() // 1_000_000}
    return json.dumps({"dataVersion": version, member: table}, indent=1).encode()
