"""Logs of single queues in a verification: the driver lists them, and the task of a queue's partition checks them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rmq_formats.codecs import fastjson, paths, tiered
from rmq_formats.errors import DecodeError, RmqError, StoreError
from rmq_formats.storage.queue_logs import QUEUE_LOGS, CompactedLogs, LogKind, QueueLogs, TieredLogs
from rmq_formats.storage.segments import open_storage
from rmq_formats.storage.store_files import StoreFiles
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
        kind: the layout of the log, a key of ``QUEUE_LOGS``.
        directory: the directory with the logs of this layout.
        sizes: size of each segment in a tier by its offset in decimal digits, as in the broker's metadata.
    """

    topic: str
    queue_id: int
    kind: str
    directory: str
    sizes: Mapping[str, int]

    def to_list(self) -> list[Any]:
        """Return the attributes in order, for JSON."""
        return [self.topic, self.queue_id, self.kind, self.directory, dict(self.sizes)]


def list_queue_logs(store: StoreFiles, tier: str | None, findings: FindingList) -> list[QueueLogInput]:
    """List the logs of single queues, also in tiered storage unless ``tier`` is None, and check their metadata."""
    logs = list(_list_compacted_logs(store, findings))
    if tier is not None:
        logs += _list_tiered_logs(store, tier, findings)
    return logs


def _list_compacted_logs(store: StoreFiles, findings: FindingList) -> Iterator[QueueLogInput]:
    logs = CompactedLogs.of(store)
    try:
        queues = logs.queues_with_units()
    except StoreError as error:
        findings.report(layout_finding_kinds.QUEUE_LOG_RECORD, str(error), logs.directory)
        return
    for queue in queues:
        yield QueueLogInput(*queue, LogKind.COMPACTED, logs.directory, {})


def _list_tiered_logs(store: StoreFiles, tier: str, findings: FindingList) -> Iterator[QueueLogInput]:
    sizes = _segment_sizes(store, findings)
    try:
        logs = TieredLogs.open(store, tier)
        queues = list(logs.queues())
    except StoreError as error:
        findings.report(layout_finding_kinds.TIER_MISSING, str(error), tier)
        return
    broker = logs.directory.rpartition("/")[2]
    for topic, queue_id in queues:
        segments = sizes.pop((broker, topic, queue_id), {})
        yield QueueLogInput(topic, queue_id, LogKind.TIERED, logs.directory, segments)
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
    kind = LogKind(own_log.kind)
    logs = QUEUE_LOGS[kind](*open_storage(own_log.directory))
    name = QueueName(own_log.topic, own_log.queue_id)
    try:
        log = logs.log(own_log.topic, own_log.queue_id)
    except StoreError as error:
        name.report(findings, layout_finding_kinds.QUEUE_LOG_RECORD, str(error), path=logs.directory)
        return
    findings.extend(check_metadata_segments(name, log, {int(base): size for base, size in own_log.sizes.items()}))
    end_offset = QueueLogCheck(name, logs.storage, log, findings, race_findings).check(local)
    check_own_files = _CHECKS_OF_OWN_FILES.get(kind)
    if check_own_files is not None:
        check_own_files(logs, name, end_offset, findings)


def _check_position(logs: QueueLogs, name: QueueName, end_offset: int, findings: FindingList) -> None:
    """Compare a compacted queue's entry in ``position-checkpoint`` with the queue's last message."""
    path = f"{logs.directory}/position-checkpoint"
    try:
        value = fastjson.loads(read_text(logs.storage, path, _MAX_POSITIONS_BYTES))
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


_CHECKS_OF_OWN_FILES: Final = {LogKind.COMPACTED: _check_position}
