"""Raw table of an export on one machine: tasks in processes write the files, as the tasks of the job do."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rmq_lakehouse.comments import COMMENTS
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_with_retry
from rmq_lakehouse.exports import ExportCounts, ExportTables
from rmq_lakehouse.files import may_write_apart
from rmq_lakehouse.local.table_log import LocalTableLog
from rmq_lakehouse.raw_files import TaskRows, matching_rows, write_and_commit
from rmq_lakehouse.raw_table import RawTable, check_partition_columns
from rmq_lakehouse.records import PendingRecords
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, RowRange, TableSpec
from rmq_lakehouse.undecoded import resolve_undecoded
from rmq_offline.tasks.runner import ProcessRunner

CODEC: Final = "snappy"  # as in a session of Spark
_ONE_TASK_BYTES = 1 << 59  # the largest power of two that the option splitBytes takes


class LocalRunner(ProcessRunner):
    """Runner on processes of this machine, which all see the table's directory."""

    def check_shared(self, option: str, directory: str) -> None:
        """Do nothing."""


class LocalExport(ExportTables, Protocol):
    """Export on one machine, which commits a selection of a store's messages to its own tables."""

    def commit_pending(self, records: PendingRecords) -> ExportCounts:
        """Commit the records that the tables lack."""


@dataclass(frozen=True, slots=True)
class UncommittedRows:
    """Rows of a task without those whose physical offsets are ``committed`` in the table."""

    rows: TaskRows
    committed: npt.NDArray[np.int64]

    def batches(self, columns: Sequence[str], *, by_topic: bool = False) -> Iterator[pa.RecordBatch]:
        committed = pa.array(self.committed, pa.int64())
        for batch in self.rows.batches(columns, by_topic=by_topic):
            yield matching_rows(batch, pc.invert(pc.is_in(batch.column("physical_offset"), committed)))


class LocalExactlyOnceTable(ExactlyOnceTable):
    """Table that this process writes without Spark; arguments as of ``ExactlyOnceTable``."""

    log: LocalTableLog

    def committed_offsets(
        self, attempt: CommitAttempt, texts: Mapping[str, str] = MappingProxyType({})
    ) -> npt.NDArray[np.int64]:
        """Read the physical offsets of an attempt's rows, with ``texts`` in columns, that the table has already."""
        offsets = RowRange(self.offset, attempt.begin, attempt.end - 1, texts={**self.broker_texts, **texts})
        return self.log.values(attempt.transaction.snapshot.version, offsets)


class LocalRawExport(RawTable):
    """Export of messages to a raw table by processes of this machine; arguments as of ``RawTable``."""

    table: LocalExactlyOnceTable

    def __init__(
        self,
        path: str,
        log: LocalTableLog,
        runner: LocalRunner,
        selection: ExportSelection,
        columns: Sequence[str] | None,
        table_spec: TableSpec,
        *,
        decompresses: bool = False,
    ) -> None:
        super().__init__(path, selection, columns, table_spec, decompresses=decompresses)
        check_partition_columns(table_spec.partitions, self.file_schema)
        self._runner = runner
        self.table = LocalExactlyOnceTable(path, log, selection, self.table_spec)

    def check(self) -> None:
        self.table.log.check_writable(self.file_schema.names, self.table_spec)
        super().check()

    def table_schemas(self) -> Iterator[tuple[ExactlyOnceTable, pa.Schema]]:
        fields = [field.with_metadata({"comment": COMMENTS[field.name]}) for field in self.file_schema]
        yield self.table, pa.schema(fields)

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        return resolve_undecoded(self.table, None, accepted)

    def commit_pending(self, records: PendingRecords) -> ExportCounts:
        counts = ExportCounts()

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            nonlocal counts
            layout = self.table.log.layout(self.table_spec, CODEC, self.file_schema.names)
            tasks = self.files_tasks(self._pending_rows(records, attempts[0]), layout)
            result, counts = write_and_commit(self._runner, attempts[0], tasks, layout)
            return result

        result = commit_with_retry(self.table.path, self.table.log, [records.start_attempt(self.table)], write)
        return counts if result.committed else ExportCounts()

    def _pending_rows(self, records: PendingRecords, attempt: CommitAttempt) -> Sequence[TaskRows]:
        """Return the rows of an attempt by task: of one task where several would write many small files."""
        rows, scanned_bytes = records.tasks(attempt)
        if not may_write_apart(records.topics, scanned_bytes, len(rows)):
            rows, _ = records.tasks(attempt, _ONE_TASK_BYTES)
        if not attempt.needs_dedup:
            return rows
        committed = self.table.committed_offsets(attempt)
        return [UncommittedRows(task_rows, committed) for task_rows in rows]
