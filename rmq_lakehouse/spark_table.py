"""Rows that Spark writes to a table exactly once: step 3 of ``exactly_once``, where no tasks write the files.

With ``--adopt`` the table is one that its owner made by DDL, whose columns and properties stay as they are.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from rmq_formats.errors import StoreError
from rmq_lakehouse.evolution import column, current_columns, type_mismatches, with_wider_types
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_files, with_high_watermark
from rmq_lakehouse.parquet import CODECS, Layout
from rmq_lakehouse.partitions import parse_partition
from rmq_lakehouse.selection import APP_PREFIX, ExportSelection
from rmq_lakehouse.table_fit import check_files, has_source
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, NeedsWriterError, SparkTableLog, SparkTransaction

_GENERATED: Final = "delta.generationExpression"
_IDENTITY: Final = "delta.identity.start"
_DEFAULT: Final = "CURRENT_DEFAULT"
_log = logging.getLogger("rmq_lakehouse")
# Types whose text in Delta's log tasks write as Spark does.
_PLAIN_PARTITIONS: Final = (StringType(), IntegerType(), LongType(), DateType(), TimestampType())
_MAX_OFFSETS: Final = 5_000  # of the table that each task gets: 8 bytes each
BuildColumns = Callable[[DataFrame], DataFrame]


def _check_store(path: str, app_ids: Iterable[str], selection: ExportSelection) -> None:
    """Refuse the messages of another store, by the application ids of the table's commits."""
    foreign_ids = [app_id for app_id in app_ids if app_id.startswith(APP_PREFIX) and not selection.is_own_id(app_id)]
    if foreign_ids:
        other = min(foreign_ids, key=len).removeprefix(APP_PREFIX)
        raise StoreError(f"{path}: holds the messages of {other}, not of {selection.store_id}; give another --table")


def _check_adopted_columns(path: str, log: SparkTableLog, schema: StructType, identity_columns: Sequence[str]) -> None:
    table = log.schema()
    exported = with_wider_types(log.storable_schema(current_columns(path, schema, log.former_columns())), table)
    names = {field.name.lower() for field in exported}
    for name in identity_columns:
        if name.lower() not in {field.name.lower() for field in table}:
            raise StoreError(f"{path}: has no column {name}, which identifies its rows. Add it to adopt the table")
    for field in table:
        if is_computed(field):
            if field.name.lower() in {name.lower() for name in identity_columns}:
                raise StoreError(f"{path}: Delta fills its column {field.name}, which identifies messages. Change it")
        elif field.name.lower() not in names and not field.nullable and _DEFAULT not in field.metadata:
            raise StoreError(f"{path}: its column {field.name} is NOT NULL, and the export has no such column")
    for text in log.partition_columns():
        source = parse_partition(text).column
        if source.lower() not in names and not any(is_computed(field) for field in table if field.name == source):
            raise StoreError(f"{path}: is partitioned by {text}, and the export has no column {source}")
    for column_path, actual_type, expected_type in type_mismatches(table, exported):
        kinds = f"{actual_type.simpleString()}, not {expected_type.simpleString()}"
        raise StoreError(f"{path}: its column {'.'.join(column_path)} is {kinds}")
    table_names = {field.name.lower() for field in table}
    left_out = [field.name for field in exported if field.name.lower() not in table_names]
    if left_out:
        _log.info("%s: has no columns %s, which are left out", path, ", ".join(left_out))


def is_computed(field: StructField) -> bool:
    """Return whether Delta computes a column: by its expression, or by an identity."""
    return _GENERATED in field.metadata or _IDENTITY in field.metadata


def with_adopted_columns(frame: DataFrame, table: StructType, *, with_defaults: bool) -> DataFrame:
    """Select the columns of an owner's table that Delta does not compute; a merge itself sets defaults."""
    names = {name.lower(): name for name in frame.columns}
    columns = []
    for field in table:
        name = names.get(field.name.lower())
        if is_computed(field):
            continue
        if name is not None:
            columns.append(column(name))
        elif with_defaults and _DEFAULT in field.metadata:
            columns.append(F.expr(field.metadata[_DEFAULT]).cast(field.dataType).alias(field.name))
    return frame.select(*columns)


def _are_same(columns: StructType, table: StructType) -> bool:
    """Return whether a table's columns of some names have the very names and types: tasks convert neither."""
    existing = {field.name.lower(): field for field in table}
    pairs = [(field, existing[field.name.lower()]) for field in columns if field.name.lower() in existing]
    return all(
        field.name == column.name and field.dataType.simpleString() == column.dataType.simpleString()
        for field, column in pairs
    )


class SparkExactlyOnceTable(ExactlyOnceTable):
    """Table of a Spark session; arguments as of ``ExactlyOnceTable``."""

    log: SparkTableLog

    def check(self, schema: StructType) -> None:
        if not self._is_adopted:
            super().check(schema)
            return
        if self.selection.broker is None:  # a table of brokers has the commits of other brokers, too
            _check_store(self.path, self.log.snapshot().transactions, self.selection)
        check_files(self.path, self.log)
        _check_adopted_columns(self.path, self.log, schema, self._identity_columns)

    def prepare(self, schema: StructType) -> None:
        if self._is_adopted:
            self.check(schema)
        else:
            super().prepare(schema)

    @property
    def _is_adopted(self) -> bool:
        """The table's owner made the table, and the export adopts it."""
        return self._table_spec.adopts and self.log.exists() and not has_source(self.log.configuration())

    def layout(self, spark: SparkSession, schema: StructType, stats: tuple[str, ...] | None = None) -> Layout | None:
        """Return how tasks write Parquet files of the columns ``schema``; None if Spark has to write the rows."""
        codec = CODECS.get(str(spark.conf.get("spark.sql.parquet.compression.codec", "snappy")).lower())
        partitions = [name for name in self._table_spec.partitions if name in schema.fieldNames()]
        table_spec = self._table_spec if stats is None else replace(self._table_spec, stats=stats)
        if (
            codec is None
            or any(schema[name].dataType not in _PLAIN_PARTITIONS for name in partitions)
            or self._is_adopted
            or self.log.former_columns()
            or not _are_same(self.log.storable_schema(schema), self.log.schema())
        ):
            return None
        return self.log.layout(table_spec, codec, schema.fieldNames())

    def committed_offsets(self, attempt: CommitAttempt, texts: Mapping[str, str]) -> npt.NDArray[np.int64]:
        """Read the physical offsets of an attempt's rows, with ``texts`` in other columns, that the table has already.

        Raises NeedsWriterError: the offsets are too many for tasks; Spark joins them.
        """
        committed = self._committed_offsets(attempt, texts)
        if committed is None:
            return np.empty(0, np.int64)
        offsets: npt.NDArray[np.int64] = committed.limit(_MAX_OFFSETS + 1).toArrow()[self.offset].to_numpy()
        if len(offsets) > _MAX_OFFSETS:
            raise NeedsWriterError
        return offsets

    def with_current_columns(self, frame: DataFrame) -> DataFrame:
        """Rename and cast columns to the table's present names and wider types, without dropped columns.

        An adopted table gets only the columns that it has.
        """
        rows = self._with_wider_columns(frame)
        if not self._is_adopted:
            return rows
        return with_adopted_columns(rows, self.log.schema(), with_defaults=self._order_column is None)

    def _with_wider_columns(self, frame: DataFrame) -> DataFrame:
        former_names, schema = self.log.former_columns(), frame.schema
        wide = with_wider_types(schema, self.log.schema(), former_names)
        if not former_names and wide == schema:
            return frame
        current_names = {name: former_names.get(name, name) for name in frame.columns}
        return frame.select(
            *(
                (column(name) if wide[name] == schema[name] else column(name).cast(wide[name].dataType)).alias(current)
                for name, current in current_names.items()
                if current is not None
            )
        )

    def append(
        self,
        attempt: CommitAttempt,
        frame: DataFrame,
        build_columns: BuildColumns = lambda frame: frame,
        complete: Callable[[CommitAttempt], CommitAttempt] = lambda attempt: attempt,
        counted: Column | None = None,
    ) -> CommitResult:
        """Write rows by Spark, and commit them with the transaction versions of the attempt.

        Args:
            frame: rows of the attempt, with the table's column of physical offsets; earlier rows may be among them.
            complete: adds transaction versions to the attempt after the rows are written.
            counted: condition of the written rows that the result counts; None counts all.
        """
        committed = self._committed_offsets(attempt, {}) if attempt.needs_dedup else None
        pending = frame
        if committed is not None:
            pending = frame.join(committed, self.offset, "left_anti").select(*map(column, frame.columns))
        observation = Observation()
        metrics = [F.max(column(self.offset)).alias("newest")]
        if counted is not None:
            metrics.append(F.count_if(counted).alias("rows"))
        rows = self.with_current_columns(build_columns(pending))
        rows = rows.observe(observation, *metrics)
        written = cast("SparkTransaction", attempt.transaction).write(rows)  # the log is Spark's
        result = commit_files([with_high_watermark(complete(attempt), observation.get["newest"])], written)
        return result if counted is None else replace(result, rows=observation.get["rows"])

    def _committed_offsets(self, attempt: CommitAttempt, texts: Mapping[str, str]) -> DataFrame | None:
        """Read the physical offsets of the store's rows, those of an attempt at least; None if there are no rows."""
        rows = self._store_rows(attempt.transaction.snapshot.version, list(texts))
        if rows is None:
            return None
        for name, text in texts.items():
            rows = rows.where(column(name) == text)
        committed = rows.select(column(self.offset))
        if attempt.spans:
            return committed
        return committed.where(column(self.offset).between(attempt.begin, attempt.end - 1))

    def _store_rows(self, version: int, names: Sequence[str]) -> DataFrame | None:
        """Read physical offsets and columns of the store's rows in a table version; None if the version has no rows."""
        broker = self.selection.broker
        if broker is None:
            return self.log.rows(version, [self.offset, *names])
        rows = self.log.rows(version, [self.offset, *names, *self._broker_columns])
        cluster, name = map(column, self._broker_columns)
        return None if rows is None else rows.where((cluster == broker.cluster) & (name == broker.name))
