"""Log of an Iceberg table for exports without Spark, by pyiceberg."""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.exceptions import ResolveError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import promote
from pyiceberg.types import NestedField

from rmq_formats.errors import StoreError
from rmq_lakehouse.iceberg.snapshot import find_snapshot
from rmq_lakehouse.iceberg.table import IcebergLog, iceberg_schema
from rmq_lakehouse.local.table_log import NeedsSparkError, condition_of
from rmq_lakehouse.parquet import Layout
from rmq_lakehouse.table_log import RowRange, TableSpec, check_identity_columns


class LocalIcebergLog(IcebergLog):
    """Log of one table that this process writes without Spark; each call sees its newest version."""

    def check_writable(self, columns: Collection[str], table_spec: TableSpec) -> None:  # noqa: ARG002 # bounds of all
        """Refuse a table whose columns were renamed or dropped, or must not be null. Raises NeedsSparkError."""
        if not self.exists():
            return
        if self.former_columns():
            raise NeedsSparkError(f"{self._location.table}: its columns were renamed or dropped")
        required = next((path for field in self._table().schema().as_arrow() for path in _required_paths(field)), None)
        if required is not None:
            raise NeedsSparkError(f"{self._location.table}: its column {required} is NOT NULL")

    def layout(self, table_spec: TableSpec, codec: str, columns: Collection[str]) -> Layout:
        self.check_writable(columns, table_spec)
        return super().layout(table_spec, codec, columns)

    def check_columns(self, path: str, schema: pa.Schema, identity_columns: Sequence[str]) -> None:
        existing = {field.name.lower(): field for field in self._table().schema().fields}
        check_identity_columns(path, existing, identity_columns)
        mismatch = self.type_mismatch(schema)
        if mismatch is not None:
            raise (NeedsSparkError if self._is_widened(schema) else StoreError)(f"{path}: {mismatch}")

    def _is_widened(self, schema: pa.Schema) -> bool:
        """Return whether the table's columns have the types of a schema, or wider types, which the job casts to."""
        try:
            for column, field in self._mismatches(schema):
                promote(field.field_type, column.field_type)
        except ResolveError:
            return False
        return True

    def type_mismatch(self, schema: pa.Schema) -> str | None:
        for column, field in self._mismatches(schema):
            return f"its column {column.name} is {column.field_type}, not {field.field_type}"
        return None

    def _mismatches(self, schema: pa.Schema) -> Iterator[tuple[NestedField, NestedField]]:
        """List the columns of the table that have another type than the same columns of a schema."""
        existing = {field.name.lower(): field for field in self._table().schema().fields}
        for field in iceberg_schema(schema, self._location.table).fields:
            column = existing.get(field.name.lower(), field)
            if schema_to_pyarrow(column.field_type) != schema_to_pyarrow(field.field_type):  # without ids
                yield column, field

    def add_missing_columns(self, path: str, schema: pa.Schema) -> None:
        del path
        existing = {field.name.lower() for field in self._table().schema().fields}
        if any(field.name.lower() not in existing for field in schema):
            self.add_arrow_columns(schema)

    def has_rows(self, version: int, row_range: RowRange, count: int = 1) -> bool:
        missing_count = count
        for values in self._values(version, row_range):
            missing_count -= len(values)
            if missing_count <= 0:
                return True
        return False

    def values(self, version: int, row_range: RowRange) -> npt.NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *self._values(version, row_range)])

    def _values(self, version: int, row_range: RowRange) -> Iterator[npt.NDArray[np.int64]]:
        """Read the values file by file; rows that delete files hide are among them, as in the job."""
        table, columns = self._table(), [row_range.column, *row_range.texts]
        snapshot = find_snapshot(table, version)
        if snapshot is None:
            return
        for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
            with table.io.new_input(task.file.file_path).open() as source:
                rows = pq.read_table(source, columns=columns, filters=condition_of(row_range))
            yield np.asarray(rows.column(row_range.column).to_numpy(), np.int64)

    def create(self, schema: pa.Schema, table_spec: TableSpec, properties: Mapping[str, str]) -> None:
        self.create_of_arrow(schema, table_spec, properties)


def _required_paths(field: pa.Field) -> Iterator[str]:
    """List the paths of NOT NULL columns, members, elements and values within a column."""
    if not field.nullable:
        yield field.name
    kind = field.type
    parts: list[pa.Field] = list(kind) if pa.types.is_struct(kind) else []
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [kind.value_field]
    elif pa.types.is_map(kind):
        parts = [kind.key_field.with_nullable(True), kind.item_field]
    yield from (f"{field.name}.{path}" for part in parts for path in _required_paths(part))
