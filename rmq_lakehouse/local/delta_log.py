"""Log of a Delta table by delta-rs, for tables in a directory of this machine.

delta-rs fails a commit if another writer has set one of the commit's own transaction versions meanwhile. Each export
sets the versions that it watches, so the commit depends on them as in the job.
"""

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, PostCommitHookProperties, RemoveAction, Transaction

from rmq_formats.errors import StoreError
from rmq_lakehouse.delta.features import (
    column_without_bounds,
    is_plain,
    property_requiring_delta_writer,
    stats_property,
)
from rmq_lakehouse.delta.files import COLUMNS_PROPERTY, DeltaFiles, newest_files, removed_columns, write_metrics
from rmq_lakehouse.delta.local_commits import TRANSACTIONS, commit_lock, quarantine_torn_commits
from rmq_lakehouse.directories import DELTA_LOG, METADATA, check_new_table, check_vacuum, table_around, table_within
from rmq_lakehouse.local.delta_history import DeltaHistory, DeltaRsSnapshot
from rmq_lakehouse.local.table_log import NeedsSparkError, condition_of
from rmq_lakehouse.parquet import Layout, WrittenFile
from rmq_lakehouse.table_log import NOT_A_TABLE, RowRange, TableSpec, check_identity_columns
from rmq_offline.tasks.publish import sync_file_system

if TYPE_CHECKING:  # pyarrow's data sets load pandas
    import pyarrow.dataset as pads

# delta-rs has one error for all commits that fail: by its text another writer was faster.
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_LOST_RACE: Final = re.compile(r"concurrent|metadata changed|protocol changed|already exists|transaction: \d+$", re.I)
_UNMAPPED_NAME: Final = re.compile(r"[ ,;{}()\n\t=]")  # DELTA_INVALID_CHARACTERS_IN_COLUMN_NAMES
_NTZ: Final = "timestampNtz"  # files of TIMESTAMP_NTZ are plain Parquet
_SQL_TYPES: Final = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}


class CommitConflictError(StoreError):
    """Another writer was faster: nothing was committed."""


class DeltaRsTableLog:
    """Transaction log of one table; each call sees its newest version."""

    conflicts: tuple[type[Exception], ...] = (CommitConflictError,)
    accepts_any_partition_text = False
    null_breaks_members = True

    def __init__(self, table: str) -> None:
        self._name, self._path = table, Path(table)
        self._history = DeltaHistory(self._path)
        self._torn_commits_checked = False  # for what a loss of power has torn

    def exists(self) -> bool:
        return self._find() is not None

    def snapshot(self) -> DeltaRsSnapshot:
        table = self._find()
        return DeltaRsSnapshot(self._history, -1, {}) if table is None else self.snapshot_of(table)

    def configuration(self) -> dict[str, str]:
        return dict(self._open().metadata().configuration)

    def partition_columns(self) -> list[str]:
        return list(self._open().metadata().partition_columns)

    def has_partition_directories(self, properties: Mapping[str, str]) -> bool:  # noqa: ARG002 # others are for the job
        return True

    def check_writable(self, columns: Collection[str], table_spec: TableSpec) -> None:
        """Refuse a table that needs Delta's own writer, or whose path delta-rs cannot open. Raises NeedsSparkError."""
        path = str(self._path)
        if unquote(path) != path or "\\" in path:  # delta-rs would open /lake/a b for /lake/a%20b
            raise NeedsSparkError(f"{self._name}: delta-rs cannot open a path with \\ or escapes such as %20")
        table = self._find()
        properties = dict(table_spec.initial_properties) if table is None else table.metadata().configuration
        unbounded = column_without_bounds(properties, columns, table_spec.stats)
        if unbounded is not None:
            raise NeedsSparkError(f"{self._name}: only Spark writes the bounds of column {unbounded!r}")
        if table is None:
            return
        protocol = table.protocol()
        features = {*(protocol.reader_features or []), *(protocol.writer_features or [])}
        has_plain_readers = protocol.min_reader_version == 1 or set(protocol.reader_features or []) == {_NTZ}
        versions = {
            "minReaderVersion": 1 if has_plain_readers else protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            "writerFeatures": sorted(features - {_NTZ}),
        }
        is_clustered = any(name.startswith("clusteringColumns") for name in properties)
        schema = json.dumps(json.loads(table.schema().to_json()), separators=(",", ":"))
        if is_clustered or not is_plain(versions, schema, properties, "false"):
            raise NeedsSparkError(f"{self._name}: needs Delta's own writer ({_writer_demands(versions, properties)})")

    def check_columns(self, path: str, schema: pa.Schema, identity_columns: Sequence[str]) -> None:
        table = self._open()
        existing = {field["name"].lower(): field for field in _fields(table.schema())}
        check_identity_columns(path, existing, identity_columns)
        present = _column_paths(pa.schema(table.schema().to_arrow()))
        removed = set(removed_columns(table.metadata().configuration, present)).intersection(_column_paths(schema))
        if removed:
            raise NeedsSparkError(f"{path}: its column {min(removed)} was dropped")
        mismatch = self.type_mismatch(schema)
        if mismatch is not None:
            raise StoreError(f"{path}: {mismatch}")

    def type_mismatch(self, schema: pa.Schema) -> str | None:
        table = self._open()
        existing = {field["name"].lower(): field for field in _fields(table.schema())}
        for field in _fields(Schema.from_arrow(schema)):
            column = existing.get(field["name"].lower())
            if column is None:
                if _NTZ in (table.protocol().reader_features or []) or "timestamp_ntz" in json.dumps(field["type"]):
                    # By delta-rs such a table would need VARIANT of its readers, too.
                    return f"its column {field['name']} is new in a table with TIMESTAMP_NTZ"
                continue
            if _kind(column["type"]) != _kind(field["type"]):
                types = _sql_type(column["type"]), _sql_type(field["type"])
                return f"its column {column['name']} is {types[0]}, not {types[1]}"
            if column["name"] != field["name"]:
                return f"its column {column['name']} has another case than {field['name']}"
        return None

    def add_missing_columns(self, path: str, schema: pa.Schema) -> None:
        table = self._open()
        existing = {field["name"].lower() for field in _fields(table.schema())}
        missing = [field for field in schema if field.name.lower() not in existing]
        if not missing:
            return
        _check_names(path, _column_paths(missing))
        exported = json.loads(table.metadata().configuration.get(COLUMNS_PROPERTY, "{}")) | _column_paths(missing)
        with self._commit_guard(), _translate_errors(path):
            table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
            table.alter.set_table_properties({COLUMNS_PROPERTY: json.dumps(exported)}, raise_if_not_exists=False)
        self.fsync()

    def has_rows(self, version: int, row_range: RowRange, count: int = 1) -> bool:
        rows = self._rows(version, row_range)
        return bool(rows.head(count).num_rows >= count)

    def values(self, version: int, row_range: RowRange) -> npt.NDArray[np.int64]:
        values = self._rows(version, row_range).to_table().column(0)
        return np.asarray(values.to_numpy(), np.int64)

    def _rows(self, version: int, row_range: RowRange) -> "pads.Scanner":
        """Scan a column of integers, in the rows of a range.

        Filters of delta-rs would lose the rows of files without bounds of the column: other writers may have written
        such files, while a property of the table named other columns.
        """
        with _translate_errors(self._name):
            table = DeltaTable(self._path, version=version)
            dataset, outside = table.to_pyarrow_dataset(), _paths_outside(table, row_range)
            fragments = [
                dataset.format.make_fragment(fragment.path, fragment.filesystem)  # without its bounds
                for fragment in dataset.get_fragments()
                if fragment.path not in outside
            ]
            files = type(dataset)(fragments, dataset.schema, dataset.format, dataset.filesystem)
            return files.scanner(columns=[row_range.column], filter=condition_of(row_range))

    def missing_file(self) -> str | None:
        """Check the first and the last file of the newest commit that added files."""
        newest_paths = newest_files(self._history.lines, self._open().version())
        paths = [self._path / unquote(name) for name in (*newest_paths[:1], *newest_paths[-1:]) if "://" not in name]
        return next((str(path) for path in paths if not path.exists()), None)

    def other_table(self) -> str | None:
        path = next((self._path / METADATA).glob("*.metadata.json*"), None)
        return None if path is None else f"an Iceberg table ({path})"

    def create(self, schema: pa.Schema, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        name = property_requiring_delta_writer(properties)
        if name is not None:
            raise NeedsSparkError(f"{self._name}: property {name} = {properties.get(name)} is for Delta's own writer")
        _check_names(self._name, _column_paths(schema))
        self._check_new()
        stats = stats_property(table_spec.stats)
        configuration = {**stats, **properties, COLUMNS_PROPERTY: json.dumps(_column_paths(schema))}
        (self._path / DELTA_LOG).mkdir(parents=True, exist_ok=True)
        with self._commit_guard(), _translate_errors(self._name):
            if not self.exists():
                DeltaTable.create(
                    self._path,
                    schema,
                    partition_by=list(table_spec.partitions),
                    description=table_spec.comment or None,
                    configuration=configuration,
                    raise_if_key_not_exists=False,
                )
        self.fsync()

    def _check_new(self) -> None:
        """Refuse the directory for a new table if it is another's, or not empty. Raises StoreError."""
        check_new_table(self._name, table_around(self._path), self.other_table())
        if self._path.exists() and any(path.name != DELTA_LOG for path in self._path.iterdir()) and not self.exists():
            raise StoreError(f"{self._name}: {NOT_A_TABLE}")

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout:
        self.check_writable(columns, table_spec)
        return Layout(str(self._path), DeltaFiles(), table_spec.partitions, table_spec.stats, codec)

    def begin_transaction(self) -> "DeltaRsTransaction":
        return DeltaRsTransaction(self, self._open())

    def snapshot_of(self, table: DeltaTable) -> DeltaRsSnapshot:
        return DeltaRsSnapshot(self._history, table.version(), table.metadata().configuration)

    def commit(
        self,
        table: DeltaTable,
        actions: list[AddAction | RemoveAction],
        transactions: list[Transaction],
        metadata: Mapping[str, Any],
    ) -> None:
        properties = CommitProperties(
            {**metadata, TRANSACTIONS: len(transactions), "isBlindAppend": True}, app_transactions=transactions
        )
        with self._commit_guard(), _translate_errors(self._name):
            table.create_write_transaction(
                actions,
                "append",
                table.schema(),
                list(table.metadata().partition_columns) or None,
                commit_properties=properties,
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        self.fsync()

    def vacuum(self, hours: int) -> None:
        check_vacuum(self._name, self.other_table() or table_within(self._path))
        table = self._open()
        with self._commit_guard(), _translate_errors(self._name):
            table.vacuum(hours, dry_run=False, full=True)

    @contextmanager
    def _commit_guard(self) -> Iterator[None]:
        self.fsync()
        with commit_lock(self._path):
            yield

    def fsync(self) -> None:
        if self._path.is_dir():
            sync_file_system(self._path)

    def _open(self) -> DeltaTable:
        table = self._find()
        if table is None:
            raise StoreError(f"{self._name}: the table was deleted")
        return table

    def _find(self) -> DeltaTable | None:
        if not self._torn_commits_checked:
            quarantine_torn_commits(self._path)
            self._torn_commits_checked = True
        if not (self._path / DELTA_LOG).is_dir():
            return None
        try:
            return DeltaTable(self._path)
        except TableNotFoundError:
            return None
        except DeltaProtocolError as error:
            raise NeedsSparkError(f"{self._name}: {_first_line(error)}") from error
        except DeltaError as error:
            raise StoreError(f"{self._name}: {_first_line(error)}") from error


class DeltaRsTransaction:
    """Transaction whose commit fails if another writer has set one of its versions meanwhile."""

    def __init__(self, log: DeltaRsTableLog, table: DeltaTable) -> None:
        self._log, self._table = log, table
        self.snapshot = log.snapshot_of(table)

    def watch(self, app_id: str) -> None:
        """Do nothing: the versions that an export watches are those that it sets."""

    def commit(self, adds: Sequence[WrittenFile] | None, versions: Mapping[str, int], metadata: str | None) -> None:
        now_ms = time.time_ns() // 1_000_000  # without it a version is the first that a retention drops
        transactions = [Transaction(app_id, version, now_ms) for app_id, version in versions.items()]
        info: dict[str, Any] = {"operationMetrics": {name: str(value) for name, value in write_metrics(adds).items()}}
        if metadata is not None:
            info["userMetadata"] = metadata
        self._log.commit(self._table, [_add_action(file.action) for file in adds or ()], transactions, info)


def _paths_outside(table: DeltaTable, row_range: RowRange) -> set[str]:
    """Return the paths of the files whose bounds prove that they have no row of a range."""
    actions = pa.table(table.get_add_actions(flatten=True))
    limits = f"min.{row_range.column}", f"max.{row_range.column}"
    if not set(limits) <= set(actions.column_names):
        return set()
    least, most = map(actions.column, limits)
    is_outside = pc.less(most, row_range.first)
    if row_range.last is not None:
        is_outside = pc.or_(is_outside, pc.greater(least, row_range.last))
    return set(map(unquote, actions.filter(is_outside)["path"].to_pylist()))


def _check_names(table: str, columns: Iterable[str]) -> None:
    """Refuse names of columns that Delta's own writer refuses in a table without column mapping. Raises StoreError."""
    for path in columns:
        if _UNMAPPED_NAME.search(path):
            raise StoreError(
                f"{table}: column {path!r}: without column mapping Delta allows no spaces, line ends and ,;{{}}()= in "
                "a name. Give the column another name, or set the table property delta.columnMapping.mode to name"
            )


def _writer_demands(protocol: Mapping[str, Any], properties: Mapping[str, str]) -> str:
    versions = f"reader version {protocol['minReaderVersion']}, writer version {protocol['minWriterVersion']}"
    features = sorted(set(protocol["writerFeatures"]))
    conditions = sorted(name for name in properties if name.startswith(("delta.constraints.", "delta.autoOptimize")))
    return ", ".join([versions, *features, *conditions])


def _add_action(file: str) -> AddAction:
    add = json.loads(file)["add"]
    path = unquote(add["path"])  # delta-rs escapes it
    return AddAction(
        path, add["size"], add["partitionValues"], add["modificationTime"], add["dataChange"], add["stats"]
    )


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Translate errors of delta-rs. Raises CommitConflictError or StoreError."""
    try:
        yield
    except CommitFailedError as error:
        if _LOST_RACE.search(str(error)):
            raise CommitConflictError(f"{path}: {_first_line(error)}") from error
        raise StoreError(f"{path}: {_first_line(error)}") from error
    except (DeltaError, OSError) as error:  # OSError of a full disk, too
        raise StoreError(f"{path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    """Return the message of an error of delta-rs without Rust's backtrace and colours."""
    return _COLOUR.sub("", str(error)).partition("\n")[0]


def _fields(schema: Schema) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = json.loads(schema.to_json())["fields"]
    return fields


def _kind(type_: Any) -> Any:
    """Return a column's type without the members that allow null."""
    if not isinstance(type_, dict):
        return type_
    return {name: _kind(value) for name, value in type_.items() if name not in ("containsNull", "valueContainsNull")}


def _sql_type(type_: Any) -> str:
    if not isinstance(type_, dict):
        return _SQL_TYPES.get(type_, str(type_))
    if type_["type"] == "array":
        return f"array<{_sql_type(type_['elementType'])}>"
    if type_["type"] == "map":
        return f"map<{_sql_type(type_['keyType'])},{_sql_type(type_['valueType'])}>"
    if type_["type"] == "struct":
        members = ",".join(f"{field['name']}:{_sql_type(field['type'])}" for field in type_["fields"])
        return f"struct<{members}>"
    return str(type_["type"])


def _column_paths(schema: Sequence[pa.Field] | pa.Schema) -> dict[str, str]:
    """List the columns as ``physical_columns`` does for a table without column mapping."""
    return {path: path for field in schema for path in _paths_of(field)}


def _paths_of(field: pa.Field, around: str = "") -> Iterator[str]:
    """List the paths of a column and of the members of structs in it."""
    yield around + field.name
    yield from _paths_within(field.type, f"{around}{field.name}.")


def _paths_within(kind: pa.DataType, around: str) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for member in kind:
            yield from _paths_of(member, around)
    elif pa.types.is_list(kind):
        yield from _paths_within(kind.value_type, f"{around}element.")
    elif pa.types.is_map(kind):
        yield from _paths_within(kind.key_type, f"{around}key.")
        yield from _paths_within(kind.item_type, f"{around}value.")
