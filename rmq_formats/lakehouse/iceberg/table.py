"""Log of an Iceberg table through pyiceberg: snapshots, properties and atomic commits, without a JVM.

Each commit records the progress of its selections in the summary of its snapshot, and in the same transaction as table
properties. The summary is the progress of the content, the properties are the progress ever committed: a rollback makes
them differ. A commit fails if the table has another snapshot than the one that was read.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.changes import MergeRows
from rmq_formats.lakehouse.exactly_once import ATTEMPTS, commit_with_retry, join_metadata, with_high_watermark
from rmq_formats.lakehouse.files import TARGET_FILE_BYTES
from rmq_formats.lakehouse.frame_files import write_frame
from rmq_formats.lakehouse.iceberg.catalog import IcebergLocation, local_path
from rmq_formats.lakehouse.iceberg.expire import check_directory, delete_unused, expirable_snapshots, remove_snapshots
from rmq_formats.lakehouse.iceberg.files import METRICS_OF_BODY, IcebergFiles, data_file
from rmq_formats.lakehouse.iceberg.io import TableFileSystem
from rmq_formats.lakehouse.iceberg.keyed import merge
from rmq_formats.lakehouse.iceberg.rewrite import Plan, RewriteResult, cutoff, older_rows, rewrite, small_files
from rmq_formats.lakehouse.iceberg.rows import rows_of
from rmq_formats.lakehouse.iceberg.snapshot import LOG_FINGERPRINT, TRANSACTION, IcebergSnapshot
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.table_log import CommitAttempt, CommitResult, StartAttempt, TableSpec
from rmq_formats.spark.versions import arrow_schema
from rmq_formats.tasks.publish import sync_file_system

_DATA: Final = "data"
_METRICS: Final = "write.metadata.metrics."
_CODEC: Final = "zstd"  # Iceberg's default
_CONFLICTS: Final = (CommitFailedException,)


class IcebergTableLog:
    """Log of one table; each call sees its newest version.

    Args:
        spark: the session, which reads rows; commits do without it.
        location: of the table.
    """

    conflicts: tuple[type[Exception], ...] = _CONFLICTS

    def __init__(self, spark: SparkSession, location: IcebergLocation) -> None:
        self._spark, self._location = spark, location

    def exists(self) -> bool:
        return self._location.load() is not None

    def snapshot(self) -> IcebergSnapshot:
        return IcebergSnapshot(self._location.load())

    def configuration(self) -> dict[str, str]:
        return dict(self._table().properties)

    def schema(self) -> StructType:
        return from_arrow_schema(self._table().schema().as_arrow())

    def former_columns(self) -> dict[str, str | None]:
        """See ``TableLog``: a column is its field id, and the table keeps its former schemas."""
        table = self._table()
        current_schema = table.schema()
        ids = {name: id_ for schema in table.schemas().values() for id_, name in schema._lazy_id_to_name.items()}
        names = current_schema._lazy_id_to_name
        return {name: names.get(id_) for name, id_ in ids.items() if name not in names.values()}

    def storable_schema(self, schema: StructType) -> StructType:
        """Return the columns as Iceberg keeps them: it has no integers of one or two bytes. Raises StoreError."""
        return from_arrow_schema(_schema(schema, self._location.table).as_arrow())

    def partition_columns(self) -> list[str]:
        """Return the names of the table's partitions; with their transformation, where it is not the identity."""
        return _partitions(self._table())

    def missing_file(self) -> str | None:
        """See ``TableLog``: checks the first and last file of the oldest and of the newest manifest."""
        table = self._table()
        current = table.current_snapshot()
        with self._location.translate_errors():
            manifests = [] if current is None else list(filter(_has_data, current.manifests(table.io)))
            ends = {manifest.manifest_path: manifest for manifest in (*manifests[:1], *manifests[-1:])}
            for manifest in ends.values():
                entries = manifest.fetch_manifest_entry(table.io)
                for path in (entry.data_file.file_path for entry in (*entries[:1], *entries[-1:])):
                    if not table.io.new_input(path).exists():
                        return path
        return None

    def other_table(self) -> str | None:
        with self._location.translate_errors():
            return self._location.other_table(self._table())

    def create(self, schema: StructType, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        defaults = {"format-version": "2", **({"comment": table_spec.comment} if table_spec.comment else {})}
        defaults |= dict([METRICS_OF_BODY]) if "body" in schema.fieldNames() else {}
        self._location.create(_schema(schema, self._location.table), table_spec.partitions, {**defaults, **properties})

    def add_columns(self, schema: StructType) -> None:
        with self._location.translate_errors(), self._table().update_schema(case_sensitive=False) as update:
            update.union_by_name(_schema(schema, self._location.table))

    def layout(self, table_spec: TableSpec, codec: str) -> Layout:
        return table_layout(self._table(), self._location.table, table_spec.partitions, codec)

    def begin_transaction(self) -> "IcebergTransaction":
        return IcebergTransaction(self._location, self._table())

    def rows(self, version: int, columns: Sequence[str]) -> DataFrame | None:
        """Read some columns of a version's rows; None if there are no rows.

        Rows that another program has deleted by delete files are among them.
        """
        table = self._table()
        wanted_snapshot = next(
            (snapshot for snapshot in table.snapshots() if snapshot.sequence_number == version), None
        )
        if wanted_snapshot is None:
            return None
        tasks = [FileScanTask(task.file) for task in table.scan(snapshot_id=wanted_snapshot.snapshot_id).plan_files()]
        return rows_of(self._spark, table, tasks, columns) if tasks else None

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
            assert isinstance(attempt.transaction, IcebergTransaction)  # of this log
            versions = with_high_watermark(attempt, last_row).versions
            return attempt.transaction.merge(self._spark, rows(attempt), merge, versions, join_metadata([attempt]))

        commit_with_retry(self._location.table, self, [start], write)

    def delete_older(self, time_column: str, days: int) -> None:
        before = cutoff(_now_s(), days)
        self._rewrite(lambda table: older_rows(table, time_column, before))

    def compact(self, time_column: str) -> None:
        self._rewrite(lambda table: small_files(table, time_column))

    def _rewrite(self, make_plan: Callable[[Table], Plan]) -> None:
        """Rewrite files; after a lost race commit them if the table still contains the old files."""
        name = self._location.table
        for _ in range(ATTEMPTS):
            table = self._table()
            with self._location.translate_errors():
                plan = make_plan(table)
            if not plan.replaced_tasks:
                return
            layout = table_layout(table, name, tuple(_partitions(table)), _CODEC)
            written = rewrite(self._spark, table, layout, plan)
            for _ in range(ATTEMPTS):
                try:
                    if self.begin_transaction().replace(written):
                        return
                    break
                except CommitFailedException:
                    continue
        raise StoreError(f"{name}: lost {ATTEMPTS} races against other writers; its files are as they were")

    def vacuum(self, hours: int) -> None:
        before_ms = int((_now_s() - hours * 3600) * 1000)
        with self._location.translate_errors():
            check_directory(self._table())
        for _ in range(ATTEMPTS):
            table = self._table()
            kept_ids = [snapshot.snapshot_id for snapshot in IcebergSnapshot(table).since_last_export()]
            expired_ids = expirable_snapshots(table.metadata, before_ms, kept_ids)
            try:
                with self._location.translate_errors():
                    if expired_ids:
                        remove_snapshots(table, expired_ids)
                    delete_unused(self._table(), before_ms)
                return
            except CommitFailedException:
                continue
        raise StoreError(
            f"{self._location.table}: lost {ATTEMPTS} commit conflicts to other writers; no version expired"
        )

    def fsync(self) -> None:
        fsync_table(self._table(), self._location.table)

    def _table(self) -> Table:
        table = self._location.load()
        if table is None:
            raise StoreError(f"{self._location.table}: the table is gone")
        return table


class IcebergTransaction:
    """Transaction that adds files and sets versions; it fails if the table has another snapshot than it has read."""

    def __init__(self, location: IcebergLocation, table: Table) -> None:
        self._location, self._table = location, table

    @property
    def snapshot(self) -> IcebergSnapshot:
        return IcebergSnapshot(self._table)

    def watch(self, app_id: str) -> None:
        """Do nothing: the commit fails if there was any other commit."""

    def append(self, frame: DataFrame, versions: Callable[[], Mapping[str, int]], metadata: str | None) -> CommitResult:
        layout = table_layout(self._table, self._location.table, tuple(_partitions(self._table)), _CODEC)
        files = write_frame(frame, layout)
        self.append_files([file.action for file in files], {}, versions(), metadata)
        return CommitResult(sum(file.rows for file in files), len(files), committed=True)

    def append_files(
        self, files: Sequence[str], metrics: Mapping[str, int], versions: Mapping[str, int], metadata: str | None
    ) -> None:
        """Commit files, where the snapshot is still the one that was read. ``metrics`` is in the summary anyway.

        Raises:
            CommitFailedException: another writer has committed meanwhile; the files written belong to no version.
            StoreError: the state of the commit is unknown to the catalog.
        """
        del metrics
        self._commit_export(files, (), versions, metadata)

    def merge(
        self,
        spark: SparkSession,
        frame: DataFrame,
        rows: MergeRows,
        versions: Mapping[str, int],
        metadata: str | None,
    ) -> CommitResult:
        """Write the files of a merge in tasks, see ``keyed.merge``, and commit them. Raises as ``append_files``."""
        layout = table_layout(self._table, self._location.table, tuple(_partitions(self._table)), _CODEC)
        with self._location.translate_errors():
            merged = merge(spark, self._table, layout, frame, rows)
        self._commit_export([file.action for file in merged.added], merged.removed, versions, metadata)
        return CommitResult(sum(file.rows for file in merged.added), len(merged.added), committed=True)

    def replace(self, rewritten: RewriteResult) -> bool:
        """Replace files by others; return False if the table has changed these files meanwhile.

        The snapshot repeats the metadata of the last export's snapshot, so that the latter may expire. Table properties
        stay: a table that was rolled back still shows it. Raises as ``append_files``.
        """
        if not rewritten.fits(self._table):
            return False
        snapshots = self.snapshot.since_last_export()
        summary = snapshots[-1].summary if snapshots else None
        summary_properties = {} if summary is None else summary.additional_properties
        export_properties = {
            name: value
            for name, value in summary_properties.items()
            if name.startswith(TRANSACTION) or name == LOG_FINGERPRINT
        }
        self._commit([file.action for file in rewritten.added], rewritten.removed, export_properties, {})
        return True

    def _commit_export(
        self, files: Sequence[str], removed: Sequence[DataFile], versions: Mapping[str, int], metadata: str | None
    ) -> None:
        transaction_versions = {TRANSACTION + app_id: str(version) for app_id, version in versions.items()}
        self._commit(
            files,
            removed,
            transaction_versions | ({} if metadata is None else {LOG_FINGERPRINT: metadata}),
            transaction_versions,
        )

    def _commit(
        self,
        files: Sequence[str],
        removed: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        table = self._table
        # pyiceberg would append again, after the rows that another export has committed meanwhile.
        without_retries = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": without_retries})
        added = [data_file(file, table.spec(), table.schema()) for file in files]
        fsync_table(table, self._location.table)  # a commit must not name files that a power cut takes
        with self._location.translate_errors():
            try:
                transaction = table.transaction()
                update = transaction.update_snapshot(snapshot_properties=dict(summary))
                with update.overwrite() if removed else update.fast_append() as change:
                    for file in added:
                        change.append_data_file(file)
                    for removed_file in removed:
                        change.delete_data_file(removed_file)
                transaction.set_properties(dict(properties))
                transaction.commit_transaction()
            except CommitStateUnknownException as error:
                reason = f"the catalog did not tell whether it has committed ({error})"
                raise StoreError(
                    f"{self._location.table}: {reason}; run the export again: nothing lands twice"
                ) from error
        fsync_table(table, self._location.table)


def fsync_table(table: Table, name: str) -> None:
    """Sync the file system of a table's directory to disk; an object store needs no sync."""
    directory = local_path(table.metadata.location, name)
    if directory is not None and directory.is_dir():
        sync_file_system(directory)


def table_layout(table: Table, name: str, partitions: tuple[str, ...], codec: str) -> Layout:
    """Create the directory of a table's data files, and return how tasks write them."""
    location = table.metadata.location
    directory = local_path(location, name)
    connect, data = None, f"{location.rstrip('/')}/{_DATA}"
    if directory is None:
        connect = TableFileSystem.of(location, table.io)
    else:
        (directory / _DATA).mkdir(parents=True, exist_ok=True)
        data = str(directory / _DATA)
    metrics = tuple((key, value) for key, value in table.properties.items() if key.startswith(_METRICS))
    files = IcebergFiles(table.schema().model_dump_json(), metrics)
    return Layout(data, files, partitions, (), codec, TARGET_FILE_BYTES, connect)


def _partitions(table: Table) -> list[str]:
    spec, schema = table.spec(), table.schema()
    transforms = [(schema.find_column_name(field.source_id), str(field.transform)) for field in spec.fields]
    return [str(column) if transform == "identity" else f"{transform}({column})" for column, transform in transforms]


def _schema(schema: StructType, name: str) -> Schema:
    """Convert Spark's columns; ids are as Iceberg would number a new table's. Raises StoreError."""
    try:
        columns = [
            plain.with_metadata({b"doc": comment}) if (comment := (field.metadata or {}).get("comment")) else plain
            for plain, field in zip(arrow_schema(schema), schema, strict=True)
        ]
        iceberg_schema = _pyarrow_to_schema_without_ids(pa.schema(columns))
    except (TypeError, UnsupportedPyArrowTypeException, PySparkException) as error:
        raise StoreError(f"{name}: Iceberg has no such column: {str(error).splitlines()[0]}") from error
    return assign_fresh_schema_ids(iceberg_schema)


def _has_data(manifest: ManifestFile) -> bool:
    """Return whether a manifest has data files of its snapshot; manifests of formats before 2 may lack the counts."""
    counts = manifest.added_files_count, manifest.existing_files_count
    return manifest.content == ManifestContent.DATA and any(count is None or count > 0 for count in counts)


def _now_s() -> float:
    return time.time()
