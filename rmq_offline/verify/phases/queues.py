"""Second wave of a verification: each task compares the ConsumeQueues of one partition with the units of the log."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, is_broker_topic
from rmq_formats.kernels import units as unit_kernel
from rmq_formats.kernels.live_dispatch_tables import LIGHT_UNIT
from rmq_formats.read.variants.rocksdb_queues import QueueDatabase
from rmq_formats.storage.store_files import open_store
from rmq_offline.tasks import batch_queues, spill
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.tasks.waves import write_text
from rmq_offline.tasks.workspace import WorkArea, read_longs, write_longs
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.absent_queues import AbsentQueues, is_deleted
from rmq_offline.verify.checkpoint_and_config import Claim
from rmq_offline.verify.facts import LogFacts
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.offset_claims import check_claim, check_queueless_claim
from rmq_offline.verify.phases.own_logs import OwnLog, check_own_log
from rmq_offline.verify.phases.queue_directories import QueuesByPartition, is_named_topic
from rmq_offline.verify.phases.rocksdb_queues import DatabaseReference, check_stored_queue, reopen_database
from rmq_offline.verify.phases.stored_files import StoredFiles
from rmq_offline.verify.queue import QueueCheck, QueueName
from rmq_offline.verify.variants.batch_queue import BatchQueueCheck

_NO_ROWS = np.empty((0, unit_kernel.ROW_COLUMNS), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PartResult:
    """Result of verifying one partition.

    Attributes:
        findings: what is wrong.
        excused: findings that are none if a broker wrote on meanwhile.
        queue_count: queues compared.
        unit_count: messages that should be in them.
    """

    findings: FindingList
    excused: FindingList
    queue_count: int
    unit_count: int


@dataclass(frozen=True, slots=True)
class QueueClaims:
    """Topics and committed offsets of a store's queues, by its config files.

    Attributes:
        known_topics: of ``config/topics.json``; None without one.
        batch_topics: topics whose queues are BatchConsumeQueues.
        offsets: those of consumer groups and delay levels, by the path of their file.
    """

    known_topics: frozenset[str] | None
    batch_topics: frozenset[str]
    offsets: Mapping[str, Sequence[Claim]]


def write_facts(work: WorkArea, facts: LogFacts) -> None:
    """Write the facts of the log for the tasks of the second wave."""
    numbers = [facts.start, facts.end, facts.largest_record_bytes, facts.is_cut, facts.dispatched_end]
    bounds = np.array(numbers, dtype=np.int64)
    write_longs(work, "facts.msgpack", bounds=bounds, begins=facts.lost_begins, ends=facts.lost_ends)


def read_facts(work: WorkArea) -> LogFacts:
    """Read the facts of the log that ``write_facts`` wrote."""
    arrays = read_longs(work, "facts.msgpack")
    start, end, largest, is_cut, dispatched = arrays["bounds"].tolist()
    return LogFacts(start, end, arrays["begins"], arrays["ends"], largest, bool(is_cut), dispatched)


def write_queue_inputs(
    work: WorkArea,
    directories: QueuesByPartition,
    claims: QueueClaims,
    database: DatabaseReference | None = None,
    logs: Sequence[OwnLog] = (),
    *,
    has_files: bool = True,
) -> None:
    """Write the store's queue directories and claimed offsets for the tasks, one file a partition.

    Args:
        work: the work directory.
        directories: the queues that have a directory.
        claims: topics and offsets by the config files.
        database: the ConsumeQueue in RocksDB; None without one that can be read.
        has_files: whether there are ConsumeQueue files, too.
        logs: those of single queues.
    """
    facts = {
        "database": None if database is None else [database.path, database.dispatched],
        "has_files": has_files,
        "known_topics": None if claims.known_topics is None else sorted(claims.known_topics),
        "batch_topics": sorted(claims.batch_topics),
    }
    write_text(work, "topics.json", json.dumps(facts))
    parts: list[list[Any]] = [[] for _ in range(len(directories))]
    for path, file_claims in claims.offsets.items():
        for claim in file_claims:
            partition = spill.queue_partition(claim.topic, claim.queue_id, len(directories))
            parts[partition].append([path, claim.topic, claim.queue_id, claim.queue_offset, claim.group])
    own_logs: list[list[Any]] = [[] for _ in range(len(directories))]
    for log in logs:
        own_logs[spill.queue_partition(log.topic, log.queue_id, len(directories))].append(log.to_list())
    for partition in range(len(directories)):
        queues = directories.of(partition)
        text = json.dumps({"directories": queues, "claims": parts[partition], "logs": own_logs[partition]})
        write_text(work, f"queues-{partition:06d}.json", text)


def check_queues(partition: int, root: str, split_count: int, sizes: StoreSizes, work: WorkArea) -> PartResult:
    """Task: compare the queues of one partition.

    Args:
        partition: which.
        root: of the store.
        split_count: of the first wave.
        sizes: the broker's sizes.
        work: the work directory.
    """
    queues: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
    for number in range(split_count):
        for topic, queue_id, rows in spill.read_partition(work.path(f"spill/units-{number:06d}.arrow"), partition):
            if len(rows):
                queues.setdefault((topic, queue_id), []).append(rows)
    inputs = json.loads(work.read_text(f"queues-{partition:06d}.json"))
    for topic, queue_id in inputs["directories"]:
        queues.setdefault((topic, queue_id), [])
    logs: dict[tuple[str, int], list[OwnLog]] = {}
    for item in inputs["logs"]:
        log = OwnLog(*item)
        logs.setdefault((log.topic, log.queue_id), []).append(log)
    claims: dict[tuple[str, int], list[tuple[str, Claim]]] = {}
    for path, topic, queue_id, queue_offset, group in inputs["claims"]:
        claims.setdefault((topic, queue_id), []).append((path, Claim(topic, queue_id, queue_offset, group)))
    task = _PartitionCheck(root, split_count, sizes, work)
    unit_count, checked = 0, frozenset(queues)
    with reopen_database(task.store.storage, task.database_reference, task.findings) as database:
        for name in sorted(queues):
            parts = queues.pop(name)
            rows = np.concatenate(parts) if parts else _NO_ROWS
            unit_count += len(rows)
            task.check(QueueName(*name), rows, claims.get(name, ()), database)
            for log in logs.pop(name, ()):
                check_own_log(log, rows, task.findings, task.excused)
    for name in sorted(claims.keys() - checked):
        task.check_queueless_claims(claims[name])
    for log in (log for queue_logs in logs.values() for log in queue_logs):
        check_own_log(log, _NO_ROWS, task.findings, task.excused)
    return PartResult(task.findings, task.excused, task.queue_count, unit_count)


class _PartitionCheck:
    """State that the checks of one partition's queues share."""

    def __init__(self, root: str, split_count: int, sizes: StoreSizes, work: WorkArea) -> None:
        self.store = open_store(root)
        self.sizes = sizes
        self.facts = read_facts(work)
        self.findings = FindingList()
        self.excused = FindingList()
        self.queue_count = 0
        topics = json.loads(work.read_text("topics.json"))
        self.known_topics = None if topics["known_topics"] is None else frozenset(topics["known_topics"])
        self.stored = StoredFiles(self.store, sizes, self.findings)
        self.absent_queues = AbsentQueues(self.store, self.known_topics)
        self.batch_topics = frozenset(topics["batch_topics"])
        self.database_reference = None if topics["database"] is None else DatabaseReference(*topics["database"])
        self.has_files = topics["has_files"]
        self._inner_batches = functools.cache(lambda: batch_queues.read_batches(work, split_count))

    def check(
        self,
        name: QueueName,
        rows: NDArray[np.int64],
        claims: Sequence[tuple[str, Claim]],
        database: QueueDatabase | None,
    ) -> None:
        """Verify one queue."""
        if not is_named_topic(name.topic):
            self._report_light_name(name, rows)
            return
        if name.topic in self.batch_topics:
            self._check_batch_queue(name, rows, claims)
            return
        if database is not None and self.database_reference is not None:
            self._check_in_database(name, rows, claims, database, self.database_reference.dispatched)
        if self.has_files and (database is None or not name.topic.startswith(LIGHT_QUEUE_PREFIX)):
            self._check_files(name, rows, claims)

    def _check_in_database(
        self,
        name: QueueName,
        rows: NDArray[np.int64],
        claims: Sequence[tuple[str, Claim]],
        database: QueueDatabase,
        dispatched: int,
    ) -> None:
        self.queue_count += 1
        is_claimed = any(claim.queue_offset > 0 for _, claim in claims)
        end_offset = check_stored_queue(
            name, rows, database, dispatched, self.facts, self.findings, self.excused,
            absent=self.absent_queues, is_claimed=is_claimed,
        )  # fmt: skip
        if not self.has_files:
            self._check_claims(claims, rows, end_offset)

    def _check_files(self, name: QueueName, rows: NDArray[np.int64], claims: Sequence[tuple[str, Claim]]) -> None:
        directory = paths.queue_dir(paths.consumequeue_dir(self.store.root), name.topic, name.queue_id)
        files = self.stored.files(
            name,
            directory,
            finding_kinds.QUEUE_UNREADABLE,
            finding_kinds.QUEUE_FOREIGN,
            self.sizes.consumequeue_file_bytes,
        )
        if files is None:
            return
        if not files and len(rows) and is_broker_topic(name.topic) and is_deleted(name.topic, self.known_topics):
            detail = f"{len(rows)} messages of the log"
            self.findings.add(name.finding(finding_kinds.OWN_TOPIC_MISSING, detail, count=len(rows)))
            self._check_claims(claims, rows, int(rows[:, unit_kernel.QUEUE_OFFSET].max()) + 1)
            return
        missing_kind = finding_kinds.QUEUE_MISSING
        if not files and len(rows):
            is_claimed = any(claim.queue_offset > 0 for _, claim in claims)
            missing_kind = self.absent_queues.classify(name.topic, rows, is_claimed=is_claimed)
        if missing_kind in {finding_kinds.TOPIC_DELETED, finding_kinds.QUEUE_ABSENT}:
            detail = f"{len(rows)} messages of the log, and no files"
            self.findings.add(name.finding(missing_kind, detail, count=len(rows)))
            return
        self.queue_count += 1
        check = QueueCheck(
            name, rows, self.facts, self.findings, self.excused, self.stored.ext(name),
            is_known=not is_deleted(name.topic, self.known_topics), log_file_bytes=self.sizes.commitlog_file_bytes,
        )  # fmt: skip
        check.check(files, self.sizes.consumequeue_file_bytes)
        self._check_claims(claims, rows, check.end_offset)

    def _report_light_name(self, name: QueueName, rows: NDArray[np.int64]) -> None:
        """Report a light queue's name that no directory can have; the scan has done so for each record of a topic."""
        light = rows[rows[:, unit_kernel.STORE_TIMESTAMP] == LIGHT_UNIT]
        if len(light):
            detail = "a light queue's name that is no directory name"
            offset = int(light[0, unit_kernel.PHYSICAL_OFFSET])
            self.findings.add(name.finding(finding_kinds.LOG_TOPIC, detail, physical_offset=offset, count=len(light)))

    def _check_batch_queue(self, name: QueueName, rows: NDArray[np.int64], claims: Sequence[tuple[str, Claim]]) -> None:
        plain = paths.queue_dir(paths.consumequeue_dir(self.store.root), name.topic, name.queue_id)
        if self.store.storage.exists(plain):
            self.findings.add(name.finding(finding_kinds.QUEUE_OF_OTHER_KIND, "a plain queue's directory", path=plain))
        directory = paths.queue_dir(paths.batch_consumequeue_dir(self.store.root), name.topic, name.queue_id)
        file_bytes = self.sizes.batchconsumequeue_file_bytes
        files = self.stored.files(
            name, directory, finding_kinds.QUEUE_UNREADABLE, finding_kinds.QUEUE_FOREIGN, file_bytes
        )  # fmt: skip
        if files is None:
            return
        self.queue_count += 1
        units = batch_queues.units_of(rows, self._inner_batches()) if len(rows) else batch_queues.units_of(rows, rows)
        check = BatchQueueCheck(
            name, units, self.facts, self.findings, self.excused,
            is_known=not is_deleted(name.topic, self.known_topics),
        )  # fmt: skip
        check.check(files, file_bytes)
        self._check_claims(claims, rows, check.end_offset)

    def _check_claims(self, claims: Sequence[tuple[str, Claim]], rows: NDArray[np.int64], end_offset: int) -> None:
        least_offset = int(rows[:, unit_kernel.QUEUE_OFFSET].min()) if len(rows) else end_offset
        for path, claim in claims:
            for finding in check_claim(claim, path, least_offset, end_offset):
                self.excused.add(finding)

    def check_queueless_claims(self, claims: Sequence[tuple[str, Claim]]) -> None:
        """Verify the offsets that are committed in one queue without files and messages."""
        for path, claim in claims:
            finding = check_queueless_claim(claim, path, self.known_topics)
            if finding is not None:
                self.excused.add(finding)
