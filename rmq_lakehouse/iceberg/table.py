"""Log of an Iceberg table through pyiceberg: snapshots, properties and atomic commits, without a JVM.

Each commit records the progress of its selections in the summary of its snapshot, and in the same transaction as table
properties. The summary is the progress of the content, the properties are the progress ever committed: a rollback makes
them differ. A commit fails if the table has another snapshot than the one that was read.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    _pyarrow_to_schema_without_ids,
    compute_statistics_plan,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DoubleType

from rmq_formats.errors import StoreError
from rmq_lakehouse.exactly_once import ATTEMPTS
from rmq_lakehouse.files import TARGET_FILE_BYTES
from rmq_lakehouse.iceberg.catalog import IcebergLocation, local_path
from rmq_lakehouse.iceberg.expire import check_directory, delete_unused, expirable_snapshots, remove_snapshots
from rmq_lakehouse.iceberg.files import METRICS_OF_BODY, IcebergFiles, data_file
from rmq_lakehouse.iceberg.io import TableFileSystem
from rmq_lakehouse.iceberg.snapshot import LOG_FINGERPRINT, TRANSACTION, IcebergSnapshot
from rmq_lakehouse.parquet import Layout, WrittenFile
from rmq_lakehouse.partitions import Partition, parse_partition
from rmq_lakehouse.table_fit import moved_columns
from rmq_lakehouse.table_log import TableSpec
from rmq_offline.tasks.publish import sync_file_system

_DATA: Final = "data"
_METRICS: Final = "write.metadata.metrics."
_MAX_CLOCK_STEP_MS: Final = 60_000  # Source: ``TableMetadata`` of Iceberg's Java library, ``ONE_MINUTE``
_FORMAT_VERSION: Final = 2


class IcebergLog:
    """Log of one table, without its rows; each call sees its newest version."""

    conflicts: tuple[type[Exception], ...] = (CommitFailedException,)
    accepts_any_partition_text = True
    null_breaks_members = False

    def __init__(self, location: IcebergLocation) -> None:
        self._location = location

    def has_partition_directories(self, properties: Mapping[str, str]) -> bool:  # noqa: ARG002
        return True

    def exists(self) -> bool:
        return self._location.load() is not None

    def snapshot(self) -> IcebergSnapshot:
        return IcebergSnapshot(self._location.load())

    def configuration(self) -> dict[str, str]:
        return dict(self._table().properties)

    def former_columns(self) -> dict[str, str | None]:
        """Compare field ids, which identify columns, with those of the table's former schemas."""
        table = self._table()
        exported: dict[str, int] = {}
        for _, schema in sorted(table.schemas().items(), reverse=True):  # of two columns of a name the older one
            exported |= {name: id_ for id_, name in schema._lazy_id_to_name.items()}
        return moved_columns(exported, {name: id_ for id_, name in table.schema()._lazy_id_to_name.items()})

    def partition_columns(self) -> list[str]:
        """Return the names of the table's partitions; with their transformation, where it is not the identity."""
        table = self._table()
        names = [str(table.schema().find_column_name(field.source_id)) for field in table.spec().fields]
        transforms = [str(field.transform) for field in table.spec().fields]
        return [str(Partition.of_iceberg(*pair)) for pair in zip(names, transforms, strict=True)]

    def missing_file(self) -> str | None:
        """Check the first and the last file of the oldest and of the newest manifest."""
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

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout:
        del table_spec, columns  # the table's own partitions, and bounds of all columns
        return table_layout(self._table(), self._location.table, codec)

    def begin_transaction(self) -> "IcebergTransaction":
        return IcebergTransaction(self._location, self._table_to_change())

    def vacuum(self, hours: int) -> None:
        before_ms = int((self._now_s() - hours * 3600) * 1000)
        with self._location.translate_errors():
            check_directory(self._table())
        for _ in range(ATTEMPTS):
            table = self._table_to_change()
            retained_ids = [snapshot.snapshot_id for snapshot in IcebergSnapshot(table).since_last_export()]
            expired_ids = expirable_snapshots(table.metadata, before_ms, retained_ids)
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

    def _now_s(self) -> float:
        return time.time()

    def _table(self) -> Table:
        table = self._location.load()
        if table is None:
            raise StoreError(f"{self._location.table}: the table was deleted")
        _check_version(table.metadata.format_version, self._location.table)
        return table

    def _table_to_change(self) -> Table:
        """Return the table, or refuse it where a commit by this clock would make it unreadable. Raises StoreError."""
        table = self._table()
        _check_clock(table.metadata, self._location.table)
        return table

    def create_of_arrow(self, schema: pa.Schema, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        """Create the table of Arrow columns, whose comments are in their metadata."""
        defaults = {
            "format-version": str(_FORMAT_VERSION),
            **({"comment": table_spec.comment} if table_spec.comment else {}),
        }
        defaults |= dict([METRICS_OF_BODY]) if "body" in schema.names else {}
        columns = iceberg_schema(schema, self._location.table)
        for text in table_spec.partitions:
            partition = parse_partition(text)
            if partition.transform == "identity" and columns.find_type(partition.column) == DoubleType():
                # pyiceberg reads a DOUBLE of a manifest as a FLOAT, and writes it so when files are replaced.
                raise StoreError(
                    f"{self._location.table}: is to be partitioned by {text}, a DOUBLE, which pyiceberg rounds. "
                    "Partition by another column"
                )
        self._location.create(columns, table_spec.partitions, {**defaults, **properties})

    def add_arrow_columns(self, schema: pa.Schema) -> None:
        with self._location.translate_errors(), self._table_to_change().update_schema(case_sensitive=False) as update:
            update.union_by_name(iceberg_schema(schema, self._location.table))


class IcebergTransaction:
    """Transaction that adds files and sets versions; it fails if the table has another snapshot than it has read."""

    def __init__(self, location: IcebergLocation, table: Table) -> None:
        self._location, self._table = location, table

    @property
    def snapshot(self) -> IcebergSnapshot:
        return IcebergSnapshot(self._table)

    def watch(self, app_id: str) -> None:
        """Do nothing: the commit fails if there was any other commit."""

    def commit(
        self,
        adds: Sequence[WrittenFile] | None,
        versions: Mapping[str, int],
        metadata: str | None,
        removes: Sequence[DataFile] = (),
    ) -> None:
        """Commit files, transaction versions and metadata; see ``TableTransaction.commit``.

        Args:
            removes: files whose rows are in ``adds``, or are replaced or deleted.

        Raises:
            CommitFailedException: another writer has committed meanwhile; the files written belong to no version.
            StoreError: the state of the commit is unknown to the catalog.
        """
        properties = {TRANSACTION + app_id: str(version) for app_id, version in versions.items()}
        fingerprint = {} if metadata is None else {LOG_FINGERPRINT: metadata}
        self._commit(adds or (), removes, properties | fingerprint, properties)

    def _commit(
        self,
        adds: Sequence[WrittenFile],
        removes: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        table = self._table
        # pyiceberg would append again, after the rows that another export has committed meanwhile.
        without_retries = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
        table.metadata = table.metadata.model_copy(update={"properties": without_retries})
        added = [data_file(file.action, table.spec(), table.schema()) for file in adds]
        fsync_table(table, self._location.table)  # a commit must not name files that a power cut takes
        with self._location.translate_errors():
            try:
                transaction = table.transaction()
                update = transaction.update_snapshot(snapshot_properties=dict(summary))
                with update.overwrite() if removes else update.fast_append() as change:
                    for file in added:
                        change.append_data_file(file)
                    for removed_file in removes:
                        change.delete_data_file(removed_file)
                transaction.set_properties(dict(properties))
                transaction.commit_transaction()
            except CommitStateUnknownException as error:
                problem = f"the catalog reports an unknown commit state ({error})"
                remedy = "Run the export again: no row is committed twice"
                raise StoreError(f"{self._location.table}: {problem}. {remedy}") from error
        fsync_table(table, self._location.table)


def fsync_table(table: Table, name: str) -> None:
    """Sync the file system of a table's directory to disk; an object store needs no sync."""
    directory = local_path(table.metadata.location, name)
    if directory is not None and directory.is_dir():
        sync_file_system(directory)


def table_layout(table: Table, name: str, codec: str) -> Layout:
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
    try:
        compute_statistics_plan(table.schema(), dict(metrics))
    except ValueError as error:
        modes = "none, counts, truncate(N) or full"
        raise StoreError(f"{name}: {error}: set each property {_METRICS}… to {modes}") from error
    files = IcebergFiles(table.schema().model_dump_json(), table.spec().model_dump_json(), metrics)
    partitions = tuple(field.name for field in table.spec().fields)
    return Layout(data, files, partitions, (), codec, TARGET_FILE_BYTES, connect)


def iceberg_schema(schema: pa.Schema, name: str) -> Schema:
    """Convert Arrow's columns; ids are as Iceberg would number a new table's. Raises StoreError."""
    try:
        documented = [
            column.with_metadata({b"doc": column.metadata[b"comment"]}) if column.metadata else column
            for column in schema
        ]
        columns = _pyarrow_to_schema_without_ids(pa.schema(documented))
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:  # ValueError: of nulls
        raise StoreError(f"{name}: Iceberg has no such column: {str(error).splitlines()[0]}") from error
    return assign_fresh_schema_ids(columns)


def _check_version(version: int, name: str) -> None:
    """Refuse a table whose snapshots have no sequence numbers, or that pyiceberg cannot write. Raises StoreError."""
    if version < _FORMAT_VERSION:
        raise StoreError(
            f"{name}: is of Iceberg's format version {version}, and exports need {_FORMAT_VERSION}. Upgrade the table: "
            f"ALTER TABLE … SET TBLPROPERTIES ('format-version' = '{_FORMAT_VERSION}')"
        )
    if version > _FORMAT_VERSION:
        raise StoreError(
            f"{name}: is of Iceberg's format version {version}, and exports write {_FORMAT_VERSION}. "
            "Give another --table"
        )


def _check_clock(metadata: TableMetadata, name: str) -> None:
    """Refuse a clock before the table's last change: Iceberg reads no table whose changes are not in order of time."""
    last_ms = max([metadata.last_updated_ms, *(entry.timestamp_ms for entry in metadata.snapshot_log)])
    now_ms = int(time.time() * 1000)
    if now_ms < last_ms - _MAX_CLOCK_STEP_MS:
        now, last = (datetime.fromtimestamp(time_ms / 1000, UTC) for time_ms in (now_ms, last_ms))
        raise StoreError(
            f"{name}: the clock says {now:%Y-%m-%d %H:%M:%S} UTC, and the table was changed at "
            f"{last:%Y-%m-%d %H:%M:%S}. Set the clock right, or wait until then"
        )


def _has_data(manifest: ManifestFile) -> bool:
    """Return whether a manifest has data files of its snapshot; manifests of formats before 2 may lack the counts."""
    counts = manifest.added_files_count, manifest.existing_files_count
    return manifest.content == ManifestContent.DATA and any(count is None or count > 0 for count in counts)
