"""Raw table: the columns of ``rmq_commitlog`` unchanged, and the date of the store time."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from rmq_formats.errors import OptionError, RmqError, StoreError
from rmq_formats.lakehouse.comments import with_comments
from rmq_formats.lakehouse.exactly_once import ExactlyOnceTable, commit_files, commit_with_retry, with_high_watermark
from rmq_formats.lakehouse.files import may_write_apart
from rmq_formats.lakehouse.parquet import CODECS, Layout
from rmq_formats.lakehouse.raw_files import (
    DATE,
    ERROR,
    FilesTask,
    TaskFiles,
    TaskRows,
    write_files,
    write_files_of_brokers,
)
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.store_log import StoreLog
from rmq_formats.lakehouse.table_log import (
    CommitAttempt,
    CommitResult,
    StartAttempt,
    TableLog,
    TableSpec,
    TableTransaction,
)
from rmq_formats.spark.job import spark_cause
from rmq_formats.spark.options import schemas

_NEEDED: Final = ("physical_offset", "size", "store_timestamp", ERROR)
# Columns with statistics, which cost a look at each value: those that rows are looked up by.
_STATS: Final[tuple[str, ...]] = ("physical_offset", "store_timestamp", "queue_id", "queue_offset", "uniq_key")
# Types whose text in the table's log is as Arrow's cast to string.
_PLAIN_PARTITIONS: Final = (StringType(), IntegerType(), LongType(), DateType())


@dataclass(frozen=True, slots=True)
class ExportCounts:
    """Counts of the messages that an export has committed.

    Attributes:
        messages: rows committed.
        bytes: bytes of these messages in the log.
        damaged: ranges of the log without a sound record, and bodies that do not inflate.
        undecoded: messages whose body does not decode by the spec.
        files: files added to the tables.
    """

    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    undecoded: int = 0
    files: int = 0

    def to_dict(self) -> dict[str, int]:
        """Convert to the members of the JSON report that a broker and the whole run have in common."""
        return {name: getattr(self, name) for name in ("messages", "bytes", "damaged", "undecoded")}

    def with_missing_as_damaged(self, messages: int | None) -> "ExportCounts":
        """Count expected messages without a record as damaged; None if the expected number is unknown."""
        lost = 0 if messages is None else messages - self.messages - self.damaged - self.undecoded
        return replace(self, damaged=self.damaged + max(0, lost))

    def __add__(self, other: "ExportCounts") -> "ExportCounts":
        return ExportCounts(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


Counted = tuple[CommitResult, ExportCounts]


class PendingMessages(Protocol):
    """Messages that an export has to commit: records of a store's log, or messages of a broker's queues."""

    @property
    def spark(self) -> SparkSession:
        """The session."""
        ...

    @property
    def topics(self) -> int:
        """Largest possible number of topics, which decides the size of files."""
        ...

    def start_attempt(self, table: ExactlyOnceTable) -> StartAttempt:
        """Return the function that starts an attempt to commit the rows that the table lacks."""
        ...

    def tasks(self, attempt: CommitAttempt) -> tuple[Sequence[TaskRows], int]:
        """Plan the rows of an attempt as tasks, topics not yet excluded; also return the bytes that the tasks read."""
        ...

    def attempt_frame(self, attempt: CommitAttempt) -> DataFrame:
        """Read the rows of an attempt as a DataFrame."""
        ...

    def union_frame(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        """Read the rows that are pending for any of the tables as one DataFrame."""
        ...

    def belongs_to_attempt(self, attempt: CommitAttempt) -> Column:
        """Return the condition that a row of ``union_frame`` belongs to an attempt."""
        ...

    def expected_messages(self, attempt: CommitAttempt) -> int | None:
        """Return the number of messages of an attempt, if it is known before they are read; else None."""
        ...


class Export(Protocol):
    """Interface of an export, which commits a selection of a store's messages to its own tables."""

    name: str
    tables: dict[str, str]
    """Their paths, each with its column of store times."""
    selection: ExportSelection

    def source_options(self) -> dict[str, str]:
        """Return options of the source, in addition to the options of the selection."""
        ...

    def check(self) -> None:
        """Refuse existing tables that do not fit the export. Raises StoreError."""
        ...

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log other than the one that the tables were exported from. Raises StoreError."""
        ...

    def prepare(self) -> None:
        """Create the tables that do not exist. Raises StoreError."""
        ...

    def resume_offset(self) -> int:
        """Return the physical offset of the first pending row; -1 if nothing was committed. Raises StoreError."""
        ...

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        """Tables of the export."""
        ...

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        """Commit the messages that the tables lack."""
        ...

    def resolve_undecoded(self, accepted: Collection[str]) -> int:
        """Return how many messages are undecoded at the end of a run, counting those of former runs.

        Messages that are in the dead-letter table now, and messages of accepted topics, count no longer.
        """
        ...


class RawExport:
    """Export of all columns, or of some, to one table.

    Args:
        path: path of the table.
        log: log of the table.
        selection: selection of the messages.
        columns: columns of the source, in the order of the table; None is all.
        table_spec: of the table.
        decompresses: whether bodies are written as they were sent, with a ``sys_flag`` that says so.
    """

    def __init__(
        self,
        path: str,
        log: TableLog,
        selection: ExportSelection,
        columns: Sequence[str] | None,
        table_spec: TableSpec,
        *,
        decompresses: bool = False,
    ) -> None:
        self._decompresses = decompresses
        broker_columns = () if selection.broker is None else (schemas.CLUSTER, schemas.BROKER_NAME)
        table_columns = [
            name for name in (*table_spec.partitions, *table_spec.clusters) if name not in (DATE, *broker_columns)
        ]
        requested = [name for name in columns or () if name not in broker_columns]
        read_columns = (
            None if columns is None else tuple(dict.fromkeys([*requested, *_NEEDED, "topic", *table_columns]))
        )
        source = schemas.project(schemas.COMMITLOG, read_columns)
        self.name = "raw"
        self.tables = {path: "store_timestamp"}
        self.selection = selection
        self._source = source
        row_columns = [field for field in source if field.name != ERROR]
        brokers = [StructField(name, StringType()) for name in broker_columns]
        self._schema = with_comments(StructType([*row_columns, *brokers, StructField(DATE, DateType())]))
        for name in table_spec.partitions + table_spec.clusters:
            if name not in self._schema.fieldNames():
                raise OptionError(f"unknown column {name!r}; there are {', '.join(self._schema.fieldNames())}")
        for name in table_spec.partitions:
            kind = self._schema[name].dataType
            if isinstance(kind, BinaryType | ArrayType | MapType):
                raise OptionError(f"--partition-by {name}: its type {kind.simpleString()} makes no partitions")
        stats: tuple[str, ...] = tuple(
            name for name in _STATS if name in source.fieldNames() and name not in table_spec.partitions
        )
        stats += tuple(name for name in table_spec.clusters if name not in stats)
        self._table_spec = replace(table_spec, stats=stats)
        self.table = ExactlyOnceTable(path, log, selection, self._table_spec)

    def resolve_undecoded(self, accepted: Collection[str]) -> int:  # noqa: ARG002 # bodies are as they are
        return 0

    def source_options(self) -> dict[str, str]:
        """Return the options that select the wanted columns."""
        columns = {"columns": ",".join(self._source.fieldNames())}
        return {**columns, "decompress": "true"} if self._decompresses else columns

    def check(self) -> None:
        """Refuse a table of another store, or of other columns. Raises StoreError."""
        self.table.check(self._schema)

    def check_log(self, log: StoreLog) -> None:
        self.table.check_log(log)

    def prepare(self) -> None:
        """Create the table."""
        self.table.prepare(self._schema)

    def resume_offset(self) -> int:
        return self.table.resume_offset()

    @property
    def exactly_once_tables(self) -> Sequence[ExactlyOnceTable]:
        return [self.table]

    def commit_pending(self, records: PendingMessages) -> ExportCounts:
        counts = ExportCounts()
        expected_messages: int | None = None

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            nonlocal counts, expected_messages
            expected_messages = records.expected_messages(attempts[0])
            result, counts = self._write_by_tasks(records, attempts[0]) or self._write_by_spark(records, attempts[0])
            return result

        result = commit_with_retry(self.table.path, self.table.log, [records.start_attempt(self.table)], write)
        total = replace(counts, messages=result.rows, files=result.files)
        return total.with_missing_as_damaged(expected_messages) if result.committed else ExportCounts()

    def _write_by_tasks(self, records: PendingMessages, attempt: CommitAttempt) -> Counted | None:
        """Write Parquet files in tasks and commit them; None if Spark has to write the rows."""
        spark, layout = records.spark, None if attempt.needs_dedup else self.layout(records.spark)
        if layout is None:
            return None
        tasks, scanned_bytes = self.tasks(records, attempt, layout)
        if not may_write_apart(records.topics, scanned_bytes, len(tasks)):
            return None
        written = write_files(spark, tasks, layout)
        committed = _commit({0: attempt}, {0: written})
        return committed, _count_files(written)

    def tasks(self, records: PendingMessages, attempt: CommitAttempt, layout: Layout) -> tuple[list[FilesTask], int]:
        """Plan the tasks that write the rows of an attempt as files; also return the bytes that the tasks scan."""
        rows, scanned_bytes = records.tasks(attempt)
        columns, selection = tuple(self._source.fieldNames()), self.selection
        tasks = [
            FilesTask(rows_of_task, columns, selection.broker, selection.excluded_topics, layout)
            for rows_of_task in rows
        ]
        return tasks, scanned_bytes

    def layout(self, spark: SparkSession) -> Layout | None:
        """Return where and how tasks write files; None if Spark has to write the rows."""
        codec = CODECS.get(str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower())
        plain = all(self._schema[name].dataType in _PLAIN_PARTITIONS for name in self._table_spec.partitions)
        return None if codec is None or not plain else self.table.layout(codec)

    def _write_by_spark(self, records: PendingMessages, attempt: CommitAttempt) -> Counted:
        """Write the rows by Spark and commit them."""
        observation = Observation()

        def build_columns(frame: DataFrame) -> DataFrame:
            sound = F.col(ERROR).isNull()
            bytes_, damaged = F.sum(F.when(sound, F.col("size"))).alias("bytes"), F.count_if(~sound).alias("damaged")
            dated = frame.withColumn(DATE, F.to_date("store_timestamp"))
            return dated.observe(observation, bytes_, damaged).where(sound).drop(ERROR)

        committed = self.table.append(attempt, records.attempt_frame(attempt), build_columns)
        return committed, ExportCounts(
            bytes=int(observation.get["bytes"] or 0), damaged=int(observation.get["damaged"])
        )


def commit_all(parts: Sequence[tuple[Export, PendingMessages]]) -> list[ExportCounts | RmqError]:
    """Commit the messages of several brokers to their common tables; see ``commit_raw``."""
    raw = [(export, records) for export, records in parts if isinstance(export, RawExport)]
    return commit_raw(raw) if raw else [_attempt(export, records) for export, records in parts]


def _attempt(export: Export, records: PendingMessages) -> ExportCounts | RmqError:
    """Commit the messages of one broker; return an error of its tasks, so that the other brokers go on."""
    try:
        return export.commit_pending(records)
    except PySparkException as error:
        return StoreError(spark_cause(error))


def commit_raw(parts: Sequence[tuple[RawExport, PendingMessages]]) -> list[ExportCounts | RmqError]:
    """Commit the messages of several brokers to their common table: in one job and one commit if tasks write files.

    Args:
        parts: export and pending messages of each broker.

    Returns:
        For each broker its counts, or the error that failed it: an unreadable log does not stop the other brokers.

    Raises:
        StoreError: the table cannot be written, or lacks rows that were committed.
    """
    outcomes: dict[int, ExportCounts | RmqError] = _commit_files(parts) if parts else {}
    for number, (export, records) in enumerate(parts):
        if number not in outcomes:
            outcomes[number] = _attempt(export, records)
    return [outcomes[number] for number in range(len(parts))]


def _commit_files(parts: Sequence[tuple[RawExport, PendingMessages]]) -> dict[int, ExportCounts | RmqError]:
    """Commit the rows that tasks may write, in one job and one commit; skip brokers whose rows Spark has to write."""
    first, first_pending = parts[0]
    spark, layout = first_pending.spark, first.layout(first_pending.spark)
    outcomes: dict[int, ExportCounts | RmqError] = {}
    if layout is None:
        return outcomes

    def start_without_dedup(export: RawExport, pending: PendingMessages) -> StartAttempt:
        start = pending.start_attempt(export.table)

        def start_if_no_dedup(transaction: TableTransaction) -> CommitAttempt | None:
            attempt = start(transaction)
            return None if attempt is None or attempt.needs_dedup else attempt

        return start_if_no_dedup

    def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
        counts: dict[int, ExportCounts | RmqError] = {}
        planned: dict[int, list[FilesTask]] = {}
        for number, attempt in attempts.items():
            export, pending = parts[number]
            try:
                tasks, scanned_bytes = export.tasks(pending, attempt, layout)
            except RmqError as error:
                counts[number] = error
                continue
            if may_write_apart(pending.topics, scanned_bytes, len(tasks)):
                planned[number] = tasks
        written = dict(zip(planned, write_files_of_brokers(spark, list(planned.values()), layout), strict=True))
        written_files = {number: files for number, files in written.items() if not isinstance(files, RmqError)}
        for number, files in written.items():
            expected = parts[number][1].expected_messages(attempts[number])
            counts[number] = (
                files if isinstance(files, RmqError) else _count_files(files).with_missing_as_damaged(expected)
            )
        result = _commit(attempts, written_files) if written_files else CommitResult()
        outcomes.update(counts)  # not of an attempt that has lost a race
        return result

    commit_with_retry(first.table.path, first.table.log, [start_without_dedup(*part) for part in parts], write)
    return outcomes


def _commit(attempts: Mapping[int, CommitAttempt], written_files: Mapping[int, Sequence[TaskFiles]]) -> CommitResult:
    """Commit the files of the tasks of several attempts."""
    written = [task for tasks in written_files.values() for task in tasks]
    files = [file for task in written for file in task.files]
    result = CommitResult(sum(file.rows for file in files), len(files), committed=True)
    metrics = {
        "numFiles": result.files,
        "numOutputRows": result.rows,
        "numOutputBytes": sum(file.bytes for file in files),
    }
    committing = [with_high_watermark(attempts[number], _last_offset(tasks)) for number, tasks in written_files.items()]
    commit_files(committing, [file.action for file in files], metrics)
    return result


def _last_offset(written: Sequence[TaskFiles]) -> int | None:
    return max((task.last_offset for task in written if task.last_offset is not None), default=None)


def _count_files(written: Sequence[TaskFiles]) -> ExportCounts:
    files = [file for task in written for file in task.files]
    bytes_, damaged = sum(task.bytes for task in written), sum(task.damaged for task in written)
    return ExportCounts(sum(file.rows for file in files), bytes_, damaged, files=len(files))
