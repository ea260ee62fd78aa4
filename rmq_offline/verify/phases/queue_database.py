"""Reads a ConsumeQueue in a database for a verification: the list of queues, and the units of each."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from rmq_formats.errors import FormatError, StoreError, StoreLockedError
from rmq_formats.kernels.units import PHYSICAL_OFFSET
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.read.queue_units import QueueDatabase
from rmq_formats.storage.segments import Storage
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.consumequeue import QueueName
from rmq_offline.verify.delay_levels import sample_database_delays
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.phases.queue_layouts import PartitionState, QueueRecords
from rmq_offline.verify.queue_database import DatabaseQueueCheck, StoredQueue


@dataclass(frozen=True, slots=True)
class DatabaseReference:
    """Path of the database, and the physical offset up to which it has all records by its checkpoint."""

    path: str
    dispatched: int


@dataclass(frozen=True, slots=True)
class DatabaseContents:
    """Queues in the database, and delays of a few messages in ms by level from 0 on.

    There is no reference without a readable database.
    """

    reference: DatabaseReference | None = None
    queues: frozenset[tuple[str, int]] = frozenset()
    delays: Mapping[int, Sequence[int]] = field(default_factory=dict)


def inspect_database(store: StoreFiles, findings: FindingList) -> DatabaseContents:
    """Open a store's database of queues, and list its queues."""
    path = store.layouts.queue_database
    if path is None:
        return DatabaseContents()
    try:
        with open_queues(store.storage, path) as database:
            reference = DatabaseReference(path, database.checkpoint())
            queues = frozenset(database.queues())
            return DatabaseContents(reference, queues, sample_database_delays(database))
    except FormatError as error:
        findings.report(finding_kinds.QUEUE_DATABASE, error.reason, path)
    except StoreLockedError:
        findings.report(finding_kinds.NOT_CHECKED, "not checked, because a running broker has it open", path)
    except StoreError as error:
        findings.report(finding_kinds.NOT_CHECKED, f"not checked, because {error}", path)
    return DatabaseContents()


@contextmanager
def reopen_database(
    storage: Storage, reference: DatabaseReference | None, findings: FindingList
) -> Iterator[QueueDatabase | None]:
    """Open the database in a task; None without one, or where it has become unreadable, which is a finding."""
    with ExitStack() as stack:
        database = None
        if reference is not None:
            try:
                database = stack.enter_context(open_queues(storage, reference.path))
            except (FormatError, StoreError) as error:
                findings.report(finding_kinds.QUEUE_DATABASE, str(error), reference.path)
        yield database


@dataclass(frozen=True, slots=True)
class DatabaseQueueLayout:
    """ConsumeQueue in a database; ``dispatched`` is that of ``DatabaseReference``."""

    partition: PartitionState
    database: QueueDatabase
    dispatched: int

    def has(self, name: QueueName) -> bool:
        return name.topic not in self.partition.batch_topics

    def check(self, queue: QueueRecords) -> int | None:
        partition, name, rows, database = self.partition, queue.name, queue.rows, self.database
        partition.queue_count += 1
        check = DatabaseQueueCheck(name, rows, partition.facts, partition.findings, partition.race_findings)
        try:
            offsets, units = database.all_units(name.topic, name.queue_id)
            last = database.bound(name.topic, name.queue_id)
        except FormatError as error:
            kind = finding_kinds.with_rocksdb_remedy(finding_kinds.QUEUE_UNREADABLE)
            name.report(partition.findings, kind, error.reason, path=database.path)
            return check.end_offset
        if not len(offsets) and len(rows) and int(rows[-1, PHYSICAL_OFFSET]) < self.dispatched:
            kind = partition.absent_queues.classify(
                name.topic, rows, has_consumer_offset=queue.has_consumer_offset, has_bound=last is not None
            )
            if kind is not finding_kinds.QUEUE_MISSING:
                detail = f"{len(rows)} messages of the log, and no units"
                name.report(partition.findings, kind, detail, count=len(rows))
                return check.end_offset
        check.check(StoredQueue(database.path, offsets, units, last, self.dispatched))
        return check.end_offset
