"""Rows that Spark writes to a table exactly once: step 3 of ``exactly_once``, where no tasks write the files."""

from collections.abc import Callable
from typing import cast

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from rmq_lakehouse.adoption import check_adopted_table, with_adopted_columns
from rmq_lakehouse.evolution import column, type_mismatches, with_wider_types
from rmq_lakehouse.exactly_once import ExactlyOnceTable, commit_files, with_high_watermark
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.table_fit import has_owner
from rmq_lakehouse.table_log import CommitAttempt, CommitResult, SparkTableLog, SparkTransaction

BuildColumns = Callable[[DataFrame], DataFrame]


class SparkExactlyOnceTable(ExactlyOnceTable):
    """Table of a Spark session; arguments as of ``ExactlyOnceTable``."""

    log: SparkTableLog

    def check(self, schema: StructType) -> None:
        if self._is_adopted:
            check_adopted_table(self.path, self.log, self.selection, schema, self._identity_columns)
        else:
            super().check(schema)

    def prepare(self, schema: StructType) -> None:
        if self._is_adopted:
            self.check(schema)
        else:
            super().prepare(schema)

    @property
    def _is_adopted(self) -> bool:
        """Whether the table's owner made it, and the export is to go on in it."""
        return self._table_spec.adopts and self.log.exists() and not has_owner(self.log.configuration())

    def layout(self, codec: str, schema: StructType) -> Layout | None:
        """Return how tasks write Parquet files of the columns ``schema``; None if rows have to go through Spark."""
        if (
            self._is_adopted
            or self.log.former_columns()
            or any(type_mismatches(self.log.schema(), self.log.storable_schema(schema)))
        ):
            return None
        return self.log.layout(self._table_spec, codec)

    def with_current_columns(self, frame: DataFrame) -> DataFrame:
        """Rename and cast columns to the table's present names and wider types, without dropped columns.

        Of a table that its owner made only the columns stay that the table has.
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
    ) -> CommitResult:
        """Write rows by Spark, and commit them with the transaction versions of the attempt.

        Args:
            frame: rows of the attempt, with the table's column of physical offsets; rows before it may be among them.
            complete: adds to the attempt what is known after the rows are written.
        """
        pending = self._without_committed_rows(frame, attempt) if attempt.needs_dedup else frame
        observation = Observation()
        last_row = F.max(column(self.offset)).alias("newest")
        rows = self.with_current_columns(build_columns(pending)).observe(observation, last_row)
        written = cast("SparkTransaction", attempt.transaction).write(rows)  # the log is Spark's
        return commit_files([with_high_watermark(complete(attempt), observation.get["newest"])], written)

    def _without_committed_rows(self, frame: DataFrame, attempt: CommitAttempt) -> DataFrame:
        store_offsets = self._store_offsets(attempt.transaction.snapshot.version)
        if store_offsets is None:
            return frame
        committed = store_offsets.select(column(self.offset))
        if not attempt.spans:
            committed = committed.where(column(self.offset).between(attempt.begin, attempt.end - 1))
        return frame.join(committed, self.offset, "left_anti").select(*map(column, frame.columns))

    def _store_offsets(self, version: int) -> DataFrame | None:
        """Read the physical offsets of the store's rows in a table version; None if the version has no rows."""
        broker = self.selection.broker
        if broker is None:
            return self.log.rows(version, [self.offset])
        rows = self.log.rows(version, [self.offset, *self._broker_columns])
        cluster, name = map(column, self._broker_columns)
        return None if rows is None else rows.where((cluster == broker.cluster) & (name == broker.name))
