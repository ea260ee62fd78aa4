"""Log of an Iceberg table through pyiceberg: snapshots, properties and atomic appends, without a JVM.

Each commit says in its snapshot's summary where the export's selections stand, and in the same transaction sets the
same as table properties. The summary tells what the content has, the properties what had landed at any time: after a
rollback the two differ. ``commit`` of a table with another snapshot than was read fails, whatever was committed.
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
from rmq_formats.lakehouse.files import TARGET_FILE_BYTES
from rmq_formats.lakehouse.frame_files import write_frame
from rmq_formats.lakehouse.iceberg.catalog import IcebergPlace, local_path
from rmq_formats.lakehouse.iceberg.expire import check_directory, delete_unused, expire, expired
from rmq_formats.lakehouse.iceberg.files import METRICS_OF_BODY, IcebergFiles, data_file
from rmq_formats.lakehouse.iceberg.io import TableFileSystem
from rmq_formats.lakehouse.iceberg.keyed import merge
from rmq_formats.lakehouse.iceberg.rewrite import Plan, Rewritten, cutoff, older_rows, rewrite, small_files
from rmq_formats.lakehouse.iceberg.rows import rows_of
from rmq_formats.lakehouse.iceberg.snapshot import LOG_MARK, TRANSACTION, IcebergSnapshot
from rmq_formats.lakehouse.log_notes import note_of
from rmq_formats.lakehouse.once import ATTEMPTS, Choose, ExactlyOnceTable, Turn, land_together
from rmq_formats.lakehouse.parquet import Layout
from rmq_formats.lakehouse.table_log import Appended, Shape
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
        place: of the table.
    """

    conflicts: tuple[type[Exception], ...] = _CONFLICTS

    def __init__(self, spark: SparkSession, place: IcebergPlace) -> None:
        self._spark, self._place = spark, place

    def exists(self) -> bool:
        """Return whether the table exists. Raises StoreError."""
        return self._place.load() is not None

    def snapshot(self) -> IcebergSnapshot:
        """Return the newest version."""
        return IcebergSnapshot(self._place.load())

    def configuration(self) -> dict[str, str]:
        """Return the table's properties."""
        return dict(self._table().properties)

    def schema(self) -> StructType:
        """Return the table's columns."""
        return from_arrow_schema(self._table().schema().as_arrow())

    def former_columns(self) -> dict[str, str | None]:
        """See ``TableLog``: a column is its field id, and the table keeps its former schemas."""
        table = self._table()
        now = table.schema()
        ids = {name: id_ for schema in table.schemas().values() for id_, name in schema._lazy_id_to_name.items()}
        names = now._lazy_id_to_name
        return {name: names.get(id_) for name, id_ in ids.items() if name not in names.values()}

    def stored(self, schema: StructType) -> StructType:
        """Return the columns as Iceberg keeps them: it has no integers of one or two bytes. Raises StoreError."""
        return from_arrow_schema(_schema(schema, self._place.table).as_arrow())

    def partition_columns(self) -> list[str]:
        """Return the names of the table's partitions; with their transformation, where it is not the identity."""
        return _partitions(self._table())

    def missing_file(self) -> str | None:
        """See ``TableLog``: looks at the first and the last file of the oldest manifest, and of the newest one."""
        table = self._table()
        current = table.current_snapshot()
        with self._place.told():
            held = [] if current is None else [one for one in current.manifests(table.io) if _has_data(one)]
            for manifest in {one.manifest_path: one for one in (*held[:1], *held[-1:])}.values():
                entries = manifest.fetch_manifest_entry(table.io)
                for path in (entry.data_file.file_path for entry in (*entries[:1], *entries[-1:])):
                    if not table.io.new_input(path).exists():
                        return path
        return None

    def other_table(self) -> str | None:
        """See ``TableLog``."""
        with self._place.told():
            return self._place.other_table(self._table())

    def create(self, schema: StructType, shape: Shape, properties: Mapping[str, str]) -> None:
        """See ``TableLog``."""
        told = {"format-version": "2", **({"comment": shape.comment} if shape.comment else {})}
        told |= dict([METRICS_OF_BODY]) if "body" in schema.fieldNames() else {}
        self._place.create(_schema(schema, self._place.table), shape.partitions, {**told, **properties})

    def add_columns(self, schema: StructType) -> None:
        """Add the columns that the table lacks, within structs too."""
        with self._place.told(), self._table().update_schema(case_sensitive=False) as update:
            update.union_by_name(_schema(schema, self._place.table))

    def layout(self, shape: Shape, codec: str) -> Layout:
        """Return how tasks write the table's files."""
        return table_layout(self._table(), self._place.table, shape.partitions, codec)

    def begin_append(self) -> "IcebergAppend":
        """See ``TableLog``."""
        return IcebergAppend(self._place, self._table())

    def rows(self, version: int, columns: Sequence[str]) -> DataFrame | None:
        """Read some columns of a version's rows; None if there are no rows.

        Rows that another program has deleted by delete files are among them.
        """
        table = self._table()
        of_version = next((one for one in table.snapshots() if one.sequence_number == version), None)
        if of_version is None:
            return None
        tasks = [FileScanTask(task.file) for task in table.scan(snapshot_id=of_version.snapshot_id).plan_files()]
        return rows_of(self._spark, table, tasks, columns) if tasks else None

    def upsert(
        self,
        table: ExactlyOnceTable,
        choose: Choose,
        rows: Callable[[Turn], DataFrame],
        merge: MergeRows,
        newest: int | None,
    ) -> None:
        """See ``TableLog``."""

        def write(turns: Mapping[int, Turn]) -> Appended:
            (turn,) = turns.values()
            assert isinstance(turn.transaction, IcebergAppend)  # of this log
            versions = turn.landing(newest).versions
            return turn.transaction.merge(self._spark, rows(turn), merge, versions, note_of([turn]))

        land_together(table.path, self, [choose], write)

    def delete_older(self, stored: str, days: int) -> None:
        """See ``TableLog``."""
        before = cutoff(_now_s(), days)
        self._rewrite(lambda table: older_rows(table, stored, before))

    def compact(self, stored: str) -> None:
        """See ``TableLog``."""
        self._rewrite(lambda table: small_files(table, stored))

    def _rewrite(self, planned: Callable[[Table], Plan]) -> None:
        """Write files anew; where the table has changed meanwhile, commit them if it still has the old ones."""
        name = self._place.table
        for _ in range(ATTEMPTS):
            table = self._table()
            with self._place.told():
                plan = planned(table)
            if not plan.taken:
                return
            layout = table_layout(table, name, tuple(_partitions(table)), _CODEC)
            written = rewrite(self._spark, table, layout, plan)
            for _ in range(ATTEMPTS):
                try:
                    if self.begin_append().replace(written):
                        return
                    break
                except CommitFailedException:
                    continue
        raise StoreError(f"{name}: lost {ATTEMPTS} races against other writers; its files are as they were")

    def vacuum(self, hours: int) -> None:
        """See ``TableLog``."""
        before_ms = int((_now_s() - hours * 3600) * 1000)
        with self._place.told():
            check_directory(self._table())
        for _ in range(ATTEMPTS):
            table = self._table()
            kept = [one.snapshot_id for one in IcebergSnapshot(table).since_last_export()]
            gone = expired(table.metadata, before_ms, kept)
            try:
                with self._place.told():
                    if gone:
                        expire(table, gone)
                    delete_unused(self._table(), before_ms)
                return
            except CommitFailedException:
                continue
        raise StoreError(f"{self._place.table}: lost {ATTEMPTS} commit conflicts to other writers; no version expired")

    def force(self) -> None:
        """Force what was written, to the disk."""
        force(self._table(), self._place.table)

    def _table(self) -> Table:
        found = self._place.load()
        if found is None:
            raise StoreError(f"{self._place.table}: the table is gone")
        return found


class IcebergAppend:
    """Transaction that appends files and sets versions; fails if the table has another snapshot than it has read."""

    def __init__(self, place: IcebergPlace, table: Table) -> None:
        self._place, self._table = place, table

    @property
    def snapshot(self) -> IcebergSnapshot:
        """Version of the table that the transaction reads."""
        return IcebergSnapshot(self._table)

    def watch(self, app_id: str) -> None:
        """Do nothing: the commit fails if there was any other commit."""

    def append(self, frame: DataFrame, versions: Callable[[], Mapping[str, int]], note: str | None) -> Appended:
        """Let tasks write the rows, and commit them. Raises one of the log's ``conflicts``."""
        layout = table_layout(self._table, self._place.table, tuple(_partitions(self._table)), _CODEC)
        files = write_frame(frame, layout)
        self.append_files([file.action for file in files], {}, versions(), note)
        return Appended(sum(file.rows for file in files), len(files), committed=True)

    def append_files(
        self, files: Sequence[str], told: Mapping[str, int], versions: Mapping[str, int], note: str | None
    ) -> None:
        """Commit files, where the snapshot is still the one that was read. ``told`` is in the summary anyway.

        Raises:
            CommitFailedException: another writer has committed meanwhile; the files written belong to no version.
            StoreError: the catalog does not tell whether it has committed.
        """
        del told
        self._land(files, (), versions, note)

    def merge(
        self,
        spark: SparkSession,
        frame: DataFrame,
        rows: MergeRows,
        versions: Mapping[str, int],
        note: str | None,
    ) -> Appended:
        """Let tasks write what ``merge`` of ``keyed`` says, and commit it. Raises as ``append_files``."""
        layout = table_layout(self._table, self._place.table, tuple(_partitions(self._table)), _CODEC)
        with self._place.told():
            merged = merge(spark, self._table, layout, frame, rows)
        self._land([file.action for file in merged.added], merged.removed, versions, note)
        return Appended(sum(file.rows for file in merged.added), len(merged.added), committed=True)

    def replace(self, written: Rewritten) -> bool:
        """Put files in the place of others; returns False if the table does not have these as they were any more.

        The snapshot says of the log what the last export's says, so that that one may expire. Table properties stay:
        a table that was rolled back is one still. Raises as ``append_files``.
        """
        if not written.fits(self._table):
            return False
        since = self.snapshot.since_last_export()
        summary = since[-1].summary if since else None
        told = {} if summary is None else summary.additional_properties
        own = {name: value for name, value in told.items() if name.startswith(TRANSACTION) or name == LOG_MARK}
        self._commit([file.action for file in written.added], written.removed, own, {})
        return True

    def _land(
        self, files: Sequence[str], removed: Sequence[DataFile], versions: Mapping[str, int], note: str | None
    ) -> None:
        landed = {TRANSACTION + app_id: str(version) for app_id, version in versions.items()}
        self._commit(files, removed, landed | ({} if note is None else {LOG_MARK: note}), landed)

    def _commit(
        self,
        files: Sequence[str],
        removed: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        table = self._table
        # pyiceberg would append again, on top of what another export has landed meanwhile.
        alone = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": alone})
        added = [data_file(file, table.spec(), table.schema()) for file in files]
        force(table, self._place.table)  # a commit must not name files that a power cut takes
        with self._place.told():
            try:
                transaction = table.transaction()
                update = transaction.update_snapshot(snapshot_properties=dict(summary))
                with update.overwrite() if removed else update.fast_append() as change:
                    for file in added:
                        change.append_data_file(file)
                    for gone in removed:
                        change.delete_data_file(gone)
                transaction.set_properties(dict(properties))
                transaction.commit_transaction()
            except CommitStateUnknownException as error:
                said = f"the catalog did not tell whether it has committed ({error})"
                raise StoreError(f"{self._place.table}: {said}; run the export again: nothing lands twice") from error
        force(table, self._place.table)


def force(table: Table, name: str) -> None:
    """Force what the file system of a table's directory has written; an object store keeps what it has taken."""
    directory = local_path(table.metadata.location, name)
    if directory is not None and directory.is_dir():
        sync_file_system(directory)


def table_layout(table: Table, name: str, partitions: tuple[str, ...], codec: str) -> Layout:
    """Return how tasks write the files of a table, whose directory is made."""
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
    told = [(schema.find_column_name(field.source_id), str(field.transform)) for field in spec.fields]
    return [str(column) if how == "identity" else f"{how}({column})" for column, how in told]


def _schema(schema: StructType, name: str) -> Schema:
    """Convert Spark's columns; ids are as Iceberg would number a new table's. Raises StoreError."""
    try:
        columns = [
            plain.with_metadata({b"doc": told}) if (told := (field.metadata or {}).get("comment")) else plain
            for plain, field in zip(arrow_schema(schema), schema, strict=True)
        ]
        found = _pyarrow_to_schema_without_ids(pa.schema(columns))
    except (TypeError, UnsupportedPyArrowTypeException, PySparkException) as error:
        raise StoreError(f"{name}: Iceberg has no such column: {str(error).splitlines()[0]}") from error
    return assign_fresh_schema_ids(found)


def _has_data(manifest: ManifestFile) -> bool:
    """Return whether a manifest has data files that are in its snapshot; those of formats before 2 may not tell."""
    counts = manifest.added_files_count, manifest.existing_files_count
    return manifest.content == ManifestContent.DATA and any(count is None or count > 0 for count in counts)


def _now_s() -> float:
    return time.time()
