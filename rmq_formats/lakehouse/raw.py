"""Raw table: the columns of ``rmq_commitlog`` unchanged, and the date of the store time."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, Protocol

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from rmq_formats.errors import OptionError
from rmq_formats.lakehouse.comments import commented
from rmq_formats.lakehouse.files import may_write_apart
from rmq_formats.lakehouse.log import StoreLog
from rmq_formats.lakehouse.once import ExactlyOnceTable, Turn
from rmq_formats.lakehouse.parquet import CODECS, Layout
from rmq_formats.lakehouse.raw_files import DATE, ERROR, FilesJob, write_files
from rmq_formats.lakehouse.records import Records
from rmq_formats.lakehouse.selection import ExportSelection
from rmq_formats.lakehouse.table_log import Appended, Shape, TableLog
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

    def __add__(self, other: "Landed") -> "Landed":
        return Landed(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


Counted = tuple[Appended, Landed]


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

    def land(self, records: Records) -> Landed:
        """Land those of the records that have not landed yet."""
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
        layout = [name for name in (*shape.partitions, *shape.clusters) if name != DATE]
        wanted = None if columns is None else tuple(dict.fromkeys([*columns, *_NEEDED, "topic", *layout]))
        source = schemas.project(schemas.COMMITLOG, wanted)
        self.name = "raw"
        self.tables = {path: "store_timestamp"}
        self.selection = selection
        self._source = source
        kept = [field for field in source if field.name != ERROR]
        self._schema = commented(StructType([*kept, StructField(DATE, DateType())]))
        for name in shape.partitions + shape.clusters:
            if name not in self._schema.fieldNames():
                raise OptionError(f"unknown column {name!r}; there are {', '.join(self._schema.fieldNames())}")
        stats: tuple[str, ...] = tuple(
            name for name in _STATS if name in source.fieldNames() and name not in shape.partitions
        )
        stats += tuple(name for name in shape.clusters if name not in stats)
        self._shape = replace(shape, stats=stats)
        self._table = ExactlyOnceTable(path, log, selection, self._shape)

    def source_options(self) -> dict[str, str]:
        """Return the options that select the wanted columns."""
        return {"columns": ",".join(self._source.fieldNames())}

    def check(self) -> None:
        """Refuse a table of another store, or of other columns. Raises StoreError."""
        self._table.check(self._schema)

    def check_log(self, log: StoreLog) -> None:
        """See ``Export``."""
        self._table.check_log(log)

    def prepare(self) -> None:
        """Create the table."""
        self._table.prepare(self._schema)

    def exported_end(self) -> int:
        """See ``Export``."""
        return self._table.exported_end()

    def land(self, records: Records) -> Landed:
        """See ``Export``."""
        counted = Landed()

        def write(turn: Turn) -> Appended:
            nonlocal counted
            added, counted = self._files(records, turn) or self._rows(records, turn)
            return added

        added = self._table.land(write, records.end, records.log)
        return replace(counted, messages=added.rows, files=added.files) if added.committed else Landed()

    def _files(self, records: Records, turn: Turn) -> Counted | None:
        """Let the tasks write Parquet files; None where the rows have to go through Spark."""
        spark, layout = records.spark, None if turn.shared else self._layout(records.spark)
        if layout is None:
            return None
        given, plan = records.plan(turn.begin)
        if not may_write_apart(records.topics, plan.scanned_bytes, len(plan.tasks)):
            return None
        read = replace(given.read, columns=tuple(self._source.fieldNames()))
        written = write_files(spark, FilesJob(given.path, read, self.selection.left_out, layout), plan.tasks)
        files = [file for task in written for file in task.files]
        added = Appended(sum(file.rows for file in files), len(files), committed=True)
        told = {
            "numFiles": added.files,
            "numOutputRows": added.rows,
            "numOutputBytes": sum(file.bytes for file in files),
        }
        turn.transaction.append_files([file.action for file in files], told, turn.versions, turn.note)
        bytes_, damaged = sum(task.bytes for task in written), sum(task.damaged for task in written)
        return added, Landed(bytes=bytes_, damaged=damaged)

    def _layout(self, spark: SparkSession) -> Layout | None:
        """Return where and how tasks write files; None where they cannot."""
        codec = CODECS.get(str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower())
        plain = all(self._schema[name].dataType in _PLAIN_PARTITIONS for name in self._shape.partitions)
        return None if codec is None or not plain else self._table.layout(codec)

    def _rows(self, records: Records, turn: Turn) -> Counted:
        """Append the rows by Spark."""
        seen = Observation()

        def finish(frame: DataFrame) -> DataFrame:
            sound = F.col(ERROR).isNull()
            bytes_, damaged = F.sum(F.when(sound, F.col("size"))).alias("bytes"), F.count_if(~sound).alias("damaged")
            dated = frame.withColumn(DATE, F.to_date("store_timestamp"))
            return dated.observe(seen, bytes_, damaged).where(sound).drop(ERROR)

        added = self._table.append(turn, records.frame(turn.begin), finish)
        return added, Landed(bytes=int(seen.get["bytes"] or 0), damaged=int(seen.get["damaged"]))
