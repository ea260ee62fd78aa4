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
from rmq_formats.lakehouse.comments import commented
from rmq_formats.lakehouse.files import may_write_apart
from rmq_formats.lakehouse.log import StoreLog
from rmq_formats.lakehouse.once import Choose, ExactlyOnceTable, Turn, commit_files, land_together
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
from rmq_formats.lakehouse.table_log import Appended, AppendTransaction, Shape, TableLog
from rmq_formats.spark.job import spark_cause
from rmq_formats.spark.options import schemas

_NEEDED: Final = ("physical_offset", "size", "store_timestamp", ERROR)
# Columns with statistics, which cost a look at each value: those that rows are looked up by.
_STATS: Final[tuple[str, ...]] = ("physical_offset", "store_timestamp", "queue_id", "queue_offset", "uniq_key")
# Types whose text in the table's log is as Arrow's cast to string.
_PLAIN_PARTITIONS: Final = (StringType(), IntegerType(), LongType(), DateType())


@dataclass(frozen=True, slots=True)
class Landed:
    """Counts of what an export has added to its tables.

    Attributes:
        messages: rows.
        bytes: bytes of these messages in the log.
        damaged: stretches of the log without a sound record, and bodies that do not inflate.
        undecoded: messages whose body does not decode by the spec.
        files: files added to the tables.
    """

    messages: int = 0
    bytes: int = 0
    damaged: int = 0
    undecoded: int = 0
    files: int = 0

    def to_dict(self) -> dict[str, int]:
        """Convert to the members of a JSON report that a broker's part has as well as the whole."""
        return {name: getattr(self, name) for name in ("messages", "bytes", "damaged", "undecoded")}

    def of_expected(self, messages: int | None) -> "Landed":
        """Count those of so many messages, if that is known, that there was no record of as damaged."""
        lost = 0 if messages is None else messages - self.messages - self.damaged - self.undecoded
        return replace(self, damaged=self.damaged + max(0, lost))

    def __add__(self, other: "Landed") -> "Landed":
        return Landed(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


Counted = tuple[Appended, Landed]


class Owed(Protocol):
    """What an export is to land: rows of a store's log, or of a broker's queues."""

    @property
    def spark(self) -> SparkSession:
        """The session."""
        ...

    @property
    def topics(self) -> int:
        """Number of topics at most, for the size of files."""
        ...

    def choose(self, table: ExactlyOnceTable) -> Choose:
        """Return what begins an attempt to land those rows that the table does not have."""
        ...

    def tasks(self, turn: Turn) -> tuple[Sequence[TaskRows], int]:
        """Plan the turn's rows as tasks, and the bytes that these read; no topics are left out yet."""
        ...

    def frame_of(self, turn: Turn) -> DataFrame:
        """Read the turn's rows as a DataFrame."""
        ...

    def frame_for(self, tables: Sequence[ExactlyOnceTable]) -> DataFrame:
        """Read the rows that any of some tables is owed."""
        ...

    def is_of(self, turn: Turn) -> Column:
        """Return the condition under which a row of ``frame_for`` is the turn's."""
        ...

    def expected(self, turn: Turn) -> int | None:
        """Return how many messages the turn has, where that is known without a look at them."""
        ...


class Export(Protocol):
    """Interface of an export, which lands a selection of a store's messages in tables of its own."""

    name: str
    tables: dict[str, str]
    """Their paths, each with its column of store times."""
    selection: ExportSelection

    def source_options(self) -> dict[str, str]:
        """Return the source's options beyond those of the selection."""
        ...

    def check(self) -> None:
        """Refuse existing tables that do not fit. Raises StoreError."""
        ...

    def check_log(self, log: StoreLog) -> None:
        """Refuse a log that is not the one that the tables were exported from. Raises StoreError."""
        ...

    def prepare(self) -> None:
        """Create the tables that do not exist. Raises StoreError."""
        ...

    def exported_end(self) -> int:
        """Return the physical offset where the rows to land begin; -1 if nothing has landed. Raises StoreError."""
        ...

    @property
    def exactly_once(self) -> Sequence[ExactlyOnceTable]:
        """The tables, as ``once`` has them."""
        ...

    def land(self, records: Owed) -> Landed:
        """Land those of the records that have not landed yet."""
        ...

    def settle_undecoded(self, accepted: Collection[str]) -> int:
        """Return how many messages are undecoded at the end of a run, in this one and former ones.

        Those that are in a dead-letter table by now count no more, nor do those of topics that are accepted.
        """
        ...


class RawExport:
    """Export of all columns, or some, to one table.

    Args:
        path: of the table.
        log: of the table.
        selection: which messages.
        columns: of the source, in the wanted order; None is all.
        shape: of the table.
    """

    def __init__(
        self, path: str, log: TableLog, selection: ExportSelection, columns: Sequence[str] | None, shape: Shape
    ) -> None:
        told = () if selection.broker is None else (schemas.CLUSTER, schemas.BROKER_NAME)
        layout = [name for name in (*shape.partitions, *shape.clusters) if name not in (DATE, *told)]
        asked = [name for name in columns or () if name not in told]
        wanted = None if columns is None else tuple(dict.fromkeys([*asked, *_NEEDED, "topic", *layout]))
        source = schemas.project(schemas.COMMITLOG, wanted)
        self.name = "raw"
        self.tables = {path: "store_timestamp"}
        self.selection = selection
        self._source = source
        kept = [field for field in source if field.name != ERROR]
        brokers = [StructField(name, StringType()) for name in told]
        self._schema = commented(StructType([*kept, *brokers, StructField(DATE, DateType())]))
        for name in shape.partitions + shape.clusters:
            if name not in self._schema.fieldNames():
                raise OptionError(f"unknown column {name!r}; there are {', '.join(self._schema.fieldNames())}")
        for name in shape.partitions:
            kind = self._schema[name].dataType
            if isinstance(kind, BinaryType | ArrayType | MapType):
                raise OptionError(f"--partition-by {name}: its type {kind.simpleString()} makes no partitions")
        stats: tuple[str, ...] = tuple(
            name for name in _STATS if name in source.fieldNames() and name not in shape.partitions
        )
        stats += tuple(name for name in shape.clusters if name not in stats)
        self._shape = replace(shape, stats=stats)
        self.table = ExactlyOnceTable(path, log, selection, self._shape)

    def settle_undecoded(self, accepted: Collection[str]) -> int:  # noqa: ARG002 # bodies are as they are
        """See ``Export``."""
        return 0

    def source_options(self) -> dict[str, str]:
        """Return the options that select the wanted columns."""
        return {"columns": ",".join(self._source.fieldNames())}

    def check(self) -> None:
        """Refuse a table of another store, or of other columns. Raises StoreError."""
        self.table.check(self._schema)

    def check_log(self, log: StoreLog) -> None:
        """See ``Export``."""
        self.table.check_log(log)

    def prepare(self) -> None:
        """Create the table."""
        self.table.prepare(self._schema)

    def exported_end(self) -> int:
        """See ``Export``."""
        return self.table.exported_end()

    @property
    def exactly_once(self) -> Sequence[ExactlyOnceTable]:
        """See ``Export``."""
        return [self.table]

    def land(self, records: Owed) -> Landed:
        """See ``Export``."""
        counted = Landed()
        expected: int | None = None

        def write(turns: Mapping[int, Turn]) -> Appended:
            nonlocal counted, expected
            expected = records.expected(turns[0])
            added, counted = self._files(records, turns[0]) or self._rows(records, turns[0])
            return added

        added = land_together(self.table.path, self.table.log, [records.choose(self.table)], write)
        landed = replace(counted, messages=added.rows, files=added.files)
        return landed.of_expected(expected) if added.committed else Landed()

    def _files(self, records: Owed, turn: Turn) -> Counted | None:
        """Let the tasks write Parquet files; None where the rows have to go through Spark."""
        spark, layout = records.spark, None if turn.shared else self.layout(records.spark)
        if layout is None:
            return None
        tasks, scanned_bytes = self.tasks(records, turn, layout)
        if not may_write_apart(records.topics, scanned_bytes, len(tasks)):
            return None
        written = write_files(spark, tasks, layout)
        added = _commit({0: turn}, {0: written})
        return added, _counted(written)

    def tasks(self, records: Owed, turn: Turn, layout: Layout) -> tuple[list[FilesTask], int]:
        """Plan the tasks that write the turn's rows as files, and the bytes that they scan."""
        rows, scanned_bytes = records.tasks(turn)
        columns, selection = tuple(self._source.fieldNames()), self.selection
        tasks = [FilesTask(own, columns, selection.broker, selection.left_out, layout) for own in rows]
        return tasks, scanned_bytes

    def layout(self, spark: SparkSession) -> Layout | None:
        """Return where and how tasks write files; None where they cannot."""
        codec = CODECS.get(str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower())
        plain = all(self._schema[name].dataType in _PLAIN_PARTITIONS for name in self._shape.partitions)
        return None if codec is None or not plain else self.table.layout(codec)

    def _rows(self, records: Owed, turn: Turn) -> Counted:
        """Append the rows by Spark."""
        seen = Observation()

        def finish(frame: DataFrame) -> DataFrame:
            sound = F.col(ERROR).isNull()
            bytes_, damaged = F.sum(F.when(sound, F.col("size"))).alias("bytes"), F.count_if(~sound).alias("damaged")
            dated = frame.withColumn(DATE, F.to_date("store_timestamp"))
            return dated.observe(seen, bytes_, damaged).where(sound).drop(ERROR)

        added = self.table.append(turn, records.frame_of(turn), finish)
        return added, Landed(bytes=int(seen.get["bytes"] or 0), damaged=int(seen.get["damaged"]))


def land_all(parts: Sequence[tuple[Export, Owed]]) -> list[Landed | RmqError]:
    """Land the records of several brokers in their common tables; see ``land_raw``."""
    raw = [(export, records) for export, records in parts if isinstance(export, RawExport)]
    return land_raw(raw) if raw else [_attempt(export, records) for export, records in parts]


def _attempt(export: Export, records: Owed) -> Landed | RmqError:
    """Land the records of one of several brokers; what its tasks say does not stop the others."""
    try:
        return export.land(records)
    except PySparkException as error:
        return StoreError(spark_cause(error))


def land_raw(parts: Sequence[tuple[RawExport, Owed]]) -> list[Landed | RmqError]:
    """Land the records of several brokers in their common table: in one job and one commit, where tasks write files.

    Args:
        parts: the export of each broker, and what it is to land.

    Returns:
        For each broker what has landed, or why nothing has: its log cannot be read, and the others' rows have landed.

    Raises:
        StoreError: the table cannot be written, or does not hold what has landed in it.
    """
    found: dict[int, Landed | RmqError] = _land_files(parts) if parts else {}
    for number, (export, records) in enumerate(parts):
        if number not in found:
            found[number] = _attempt(export, records)
    return [found[number] for number in range(len(parts))]


def _land_files(parts: Sequence[tuple[RawExport, Owed]]) -> dict[int, Landed | RmqError]:
    """Land what tasks may write as files, in one job; those brokers are left out whose rows Spark has to write."""
    first, records = parts[0]
    spark, layout = records.spark, first.layout(records.spark)
    found: dict[int, Landed | RmqError] = {}
    if layout is None:
        return found

    def unshared(export: RawExport, own: Owed) -> Choose:
        chosen = own.choose(export.table)

        def choose(transaction: AppendTransaction) -> Turn | None:
            turn = chosen(transaction)
            return None if turn is None or turn.shared else turn

        return choose

    def write(turns: Mapping[int, Turn]) -> Appended:
        counts: dict[int, Landed | RmqError] = {}
        planned: dict[int, list[FilesTask]] = {}
        for number, turn in turns.items():
            export, own = parts[number]
            try:
                tasks, scanned_bytes = export.tasks(own, turn, layout)
            except RmqError as error:
                counts[number] = error
                continue
            if may_write_apart(own.topics, scanned_bytes, len(tasks)):
                planned[number] = tasks
        outcomes = dict(zip(planned, write_files_of_brokers(spark, list(planned.values()), layout), strict=True))
        done = {number: own for number, own in outcomes.items() if not isinstance(own, RmqError)}
        for number, outcome in outcomes.items():
            expected = parts[number][1].expected(turns[number])
            counts[number] = outcome if isinstance(outcome, RmqError) else _counted(outcome).of_expected(expected)
        added = _commit(turns, done) if done else Appended()
        found.update(counts)  # not of an attempt that has lost a race
        return added

    land_together(first.table.path, first.table.log, [unshared(*part) for part in parts], write)
    return found


def _commit(turns: Mapping[int, Turn], done: Mapping[int, Sequence[TaskFiles]]) -> Appended:
    """Commit the files of the tasks of some turns."""
    written = [task for tasks in done.values() for task in tasks]
    files = [file for task in written for file in task.files]
    added = Appended(sum(file.rows for file in files), len(files), committed=True)
    told = {"numFiles": added.files, "numOutputRows": added.rows, "numOutputBytes": sum(file.bytes for file in files)}
    landing = [turns[number].landing(_newest(tasks)) for number, tasks in done.items()]
    commit_files(landing, [file.action for file in files], told)
    return added


def _newest(written: Sequence[TaskFiles]) -> int | None:
    return max((task.newest for task in written if task.newest is not None), default=None)


def _counted(written: Sequence[TaskFiles]) -> Landed:
    files = [file for task in written for file in task.files]
    bytes_, damaged = sum(task.bytes for task in written), sum(task.damaged for task in written)
    return Landed(sum(file.rows for file in files), bytes_, damaged, files=len(files))
