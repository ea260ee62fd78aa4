"""Logs of single queues in a verification: the driver lists them, and the task of a queue's partition checks them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmq_formats.codecs import fastjson, paths, tiered
from rmq_formats.errors import DecodeError, RmqError, StoreError
from rmq_formats.read.stores import read_broker_names
from rmq_formats.storage.queue_logs import (
    COMPACTION,
    broker_directory,
    compacted_queue_log,
    compacted_queues,
    tiered_queue_log,
    tiered_queues,
)
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.consumequeue import QueueName
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.log_facts import Longs
from rmq_offline.verify.queue_log import QueueLogCheck, check_metadata_segments
from rmq_offline.verify.tier_metadata import COMMIT_LOG_SEGMENTS, SegmentsByQueue, read_text, read_tier_segments

_MAX_POSITIONS_BYTES: Final = 1 << 26  # limit: some million queues


@dataclass(frozen=True, slots=True)
class QueueLogInput:
    """The log of a queue, for the task that checks it.

    Attributes:
        root: the store's root, or the broker's directory in tiered storage.
        is_tiered: whether ``root`` is in tiered storage.
        sizes: size of each segment in a tier by its offset in decimal digits, as in the broker's metadata.
    """

    topic: str
    queue_id: int
    root: str
    is_tiered: bool
    sizes: Mapping[str, int]

    def to_list(self) -> list[Any]:
        """Return the attributes in order, for JSON."""
        return [self.topic, self.queue_id, self.root, self.is_tiered, dict(self.sizes)]


def list_queue_logs(store: StoreFiles, tier: str | None, findings: FindingList) -> list[QueueLogInput]:
    """List the logs of single queues, also in tiered storage unless ``tier`` is None, and check their metadata."""
    logs: list[QueueLogInput] = []
    try:
        logs += [QueueLogInput(*queue, store.root, False, {}) for queue in compacted_queues(store)]
    except StoreError as error:
        findings.report(layout_finding_kinds.QUEUE_LOG_RECORD, str(error), f"{store.root}/{COMPACTION}")
    if tier is not None:
        logs += _list_tiered_logs(store, tier, findings)
    return logs


def _list_tiered_logs(store: StoreFiles, tier: str, findings: FindingList) -> Iterator[QueueLogInput]:
    sizes = _segment_sizes(store, findings)
    try:
        tier_storage, place = open_storage(tier)
        directory = broker_directory(tier_storage, place, *read_broker_names(store.root))
        queues = list(tiered_queues(tier_storage, directory))
    except StoreError as error:
        findings.report(layout_finding_kinds.TIER_MISSING, str(error), tier)
        return
    broker = directory.rpartition("/")[2]
    for topic, queue_id in queues:
        yield QueueLogInput(topic, queue_id, directory, True, sizes.pop((broker, topic, queue_id), {}))
    for (name, topic, queue_id), segments in sorted(sizes.items()):
        if name == broker and segments and topic != tiered.INDEX_TOPIC:
            detail = f"{len(segments)} segments of the metadata, and none is there"
            QueueName(topic, queue_id).report(
                findings, layout_finding_kinds.QUEUE_LOG_SEGMENT_MISSING, detail, count=len(segments)
            )


def _segment_sizes(store: StoreFiles, findings: FindingList) -> SegmentsByQueue:
    """Read the sizes of segments by broker, topic and queue; empty where the metadata does not parse."""
    try:
        return read_tier_segments(store, COMMIT_LOG_SEGMENTS)
    except (RmqError, OSError) as error:
        path = f"{paths.config_dir(store.root)}/{tiered.METADATA}"
        findings.report(layout_finding_kinds.TIER_METADATA, str(error), path)
        return {}


def check_queue_log(own_log: QueueLogInput, local: Longs, findings: FindingList, race_findings: FindingList) -> None:
    """Check the log of a queue against its records in the CommitLog, int64[n, ROW_COLUMNS] of ``kernels.units``."""
    store = open_store(own_log.root)
    name = QueueName(own_log.topic, own_log.queue_id)
    try:
        if own_log.is_tiered:
            log = tiered_queue_log(store.storage, store.root, own_log.topic, own_log.queue_id)
        else:
            log = compacted_queue_log(store, own_log.topic, own_log.queue_id)
    except StoreError as error:
        name.report(findings, layout_finding_kinds.QUEUE_LOG_RECORD, str(error), path=store.root)
        return
    findings.extend(check_metadata_segments(name, log, {int(base): size for base, size in own_log.sizes.items()}))
    end_offset = QueueLogCheck(name, store.storage, log, findings, race_findings).check(local)
    if not own_log.is_tiered:
        _check_position(store, name, end_offset, findings)


def _check_position(store: StoreFiles, name: QueueName, end_offset: int, findings: FindingList) -> None:
    """Compare a compacted queue's entry in ``position-checkpoint`` with the queue's last message."""
    path = f"{store.root}/{COMPACTION}/position-checkpoint"
    try:
        value = fastjson.loads(read_text(store.storage, path, _MAX_POSITIONS_BYTES))
        table = value.get("queueOffsetMap") if isinstance(value, dict) else None
        if not isinstance(table, dict):
            raise DecodeError("no queueOffsetMap")
        position = table.get(f"{name.topic}_{name.queue_id}", -1)
        if not isinstance(position, int):
            raise DecodeError(f"no number of {name.topic}_{name.queue_id}")
    except (RmqError, OSError) as error:
        name.report(findings, layout_finding_kinds.COMPACTION_CHECKPOINT, str(error), path=path)
        return
    if position >= end_offset:
        name.report(
            findings,
            layout_finding_kinds.COMPACTION_CHECKPOINT,
            "beyond the last message of the queue's log",
            path=path,
            expected=f"less than {end_offset}",
            actual=str(position),
        )
