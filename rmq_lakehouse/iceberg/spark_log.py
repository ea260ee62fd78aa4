"""Log of an Iceberg table that Spark reads, writes and merges into; exports without Spark do not load this module."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import FileScanTask, Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType, DecimalType, StructField, StructType

from rmq_formats.errors import StoreError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.change_data import MergeRows
from rmq_lakehouse.exactly_once import ATTEMPTS, commit_with_retry, join_metadata, with_high_watermark
from rmq_lakehouse.iceberg import keyed
from rmq_lakehouse.iceberg.catalog import IcebergLocation
from rmq_lakehouse.iceberg.rewrite import Plan, RewriteResult, cutoff, older_rows, rewrite, small_files
from rmq_lakehouse.iceberg.rows import rows_of, write_frame
from rmq_lakehouse.iceberg.snapshot import LOG_FINGERPRINT, TRANSACTION, find_snapshot, summary_properties
from rmq_lakehouse.iceberg.table import IcebergLog, IcebergTransaction, iceberg_schema, table_layout
from rmq_lakehouse.parquet import WrittenFile
from rmq_lakehouse.spark_table_columns import SparkTableColumns
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, StartAttempt, TableSpec

_CODEC: Final = "zstd"  # Iceberg's default


class IcebergTableLog(IcebergLog, SparkTableColumns):
    """Log of one table; commits do without the session, which reads rows."""

    def __init__(self, spark: SparkSession, location: IcebergLocation) -> None:
        super().__init__(location)
        self._spark = spark

    def schema(self) -> StructType:
        return from_arrow_schema(self._table().schema().as_arrow())

    def storable_schema(self, schema: StructType) -> StructType:
        """Return the columns as Iceberg stores them: it has no integers of one or two bytes. Raises StoreError."""
        return from_arrow_schema(iceberg_schema(self._arrow_columns(schema), self._location.table).as_arrow())

    def create(self, schema: StructType, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        self.create_of_arrow(self._arrow_columns(schema), table_spec, properties)

    def add_columns(self, schema: StructType) -> None:
        self.add_arrow_columns(self._arrow_columns(schema))

    def _arrow_columns(self, schema: StructType) -> pa.Schema:
        """Convert Spark's columns, with their comments. Raises StoreError."""
        try:
            plain_columns = arrow_schema(schema)
        except (TypeError, PySparkException) as error:
            reason = str(error).splitlines()[0]
            raise StoreError(f"{self._location.table}: Iceberg has no such column: {reason}") from error
        comments = ((field.metadata or {}).get("comment") for field in schema)
        return pa.schema(
            [
                column.with_metadata({b"comment": comment}) if comment else column
                for column, comment in zip(plain_columns, comments, strict=True)
            ]
        )

    def widening_refusal(self, narrow: DataType, wide: DataType) -> str | None:
        if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType) and narrow.scale != wide.scale:
            return "Iceberg widens the precision of a DECIMAL, and not its scale. Give the spec the table's scale"
        return None

    def widen_column(self, path: Sequence[str], kind: DataType) -> None:
        columns = self._arrow_columns(StructType([StructField("column", kind)]))
        (field,) = iceberg_schema(columns, self._location.table).fields
        with self._location.translate_errors(), self._table_to_change().update_schema() as update:
            update.update_column(tuple(path), field_type=field.field_type)

    def rows(self, version: int, columns: Sequence[str]) -> DataFrame | None:
        """Read some columns of a version's rows; None if there are no rows.

        Rows that another program has deleted by delete files are among them.
        """
        table = self._table()
        snapshot = find_snapshot(table, version)
        if snapshot is None:
            return None
        tasks = [FileScanTask(task.file) for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()]
        return rows_of(self._spark, table, tasks, columns) if tasks else None

    def visible_rows(self) -> DataFrame:
        table = self._table()
        with self._location.translate_errors():
            return rows_of(self._spark, table, list(table.scan().plan_files()))

    def begin_transaction(self) -> "SparkIcebergTransaction":
        return SparkIcebergTransaction(self._location, self._table_to_change())

    def upsert(
        self,
        start: StartAttempt,
        rows: Callable[[CommitAttempt], DataFrame],
        merge: MergeRows,
        last_row: int | None,
        *,
        is_backfill: bool,
    ) -> None:
        del is_backfill  # a merge sets the progress in any case

        def write(attempts: Mapping[int, CommitAttempt]) -> CommitResult:
            (attempt,) = attempts.values()
            assert isinstance(attempt.transaction, SparkIcebergTransaction)  # of this log
            versions = with_high_watermark(attempt, last_row).versions
            merged = attempt.transaction.merge(self._spark, rows(attempt), merge)
            attempt.transaction.commit(merged.added, versions, join_metadata([attempt]), merged.removed)
            return CommitResult(committed=True)

        commit_with_retry(self._location.table, self, [start], write)

    def delete_older(self, time_column: str, days: int) -> None:
        column = self.current_name(self._location.table, time_column)
        before = cutoff(self._now_s(), days)
        self._rewrite(lambda table: older_rows(table, column, before))

    def compact(self, time_column: str) -> None:
        column = self.current_name(self._location.table, time_column)
        self._rewrite(lambda table: small_files(table, column))

    def _rewrite(self, make_plan: Callable[[Table], Plan]) -> None:
        """Rewrite files; after a lost race commit them if the table still contains the old files."""
        name = self._location.table
        for _ in range(ATTEMPTS):
            table = self._table()
            with self._location.translate_errors():
                plan = make_plan(table)
            if not plan.replaced_tasks:
                return
            written = rewrite(self._spark, table, table_layout(table, name, _CODEC), plan)
            for _ in range(ATTEMPTS):
                try:
                    if self.begin_transaction().replace(written):
                        return
                    break
                except CommitFailedException:
                    continue
        raise StoreError(f"{name}: lost {ATTEMPTS} races against other writers; its files are as they were")


class SparkIcebergTransaction(IcebergTransaction):
    """Transaction whose files Spark writes."""

    def write(self, frame: DataFrame) -> list[WrittenFile]:
        return write_frame(frame, table_layout(self._table, self._location.table, _CODEC))

    def merge(self, spark: SparkSession, frame: DataFrame, rows: MergeRows) -> keyed.MergeResult:
        layout = table_layout(self._table, self._location.table, _CODEC)
        with self._location.translate_errors():
            return keyed.merge(spark, self._table, layout, frame, rows)

    def replace(self, rewritten: RewriteResult) -> bool:
        """Replace files by others; return False if the table has changed these files meanwhile. Raises as ``commit``.

        The snapshot repeats the metadata of the last export's snapshot, so that the latter may expire. Table properties
        stay, and still show that a table was rolled back.
        """
        if not rewritten.fits(self._table):
            return False
        snapshots = self.snapshot.since_last_export()
        properties = summary_properties(snapshots[-1]) if snapshots else {}
        export_properties = {
            name: value for name, value in properties.items() if name.startswith(TRANSACTION) or name == LOG_FINGERPRINT
        }
        self._commit(rewritten.added, rewritten.removed, export_properties, {})
        return True
