"""Files of Iceberg tables: columns with the table's field ids, and data files of manifests with their metrics.

Tasks derive the metrics from footers that they have just written, so that the driver opens no file.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import partition_to_py
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
)
from pyiceberg.utils.datetime import date_str_to_days

from rmq_formats.errors import StoreError
from rmq_lakehouse.parquet import FinishedFile

METRICS_OF_BODY: Final = ("write.metadata.metrics.column.body", "none")  # bounds of bodies tell nothing
FIELD_ID: Final = b"PARQUET:field_id"
_COUNTS: Final = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS: Final = ("lower_bounds", "upper_bounds")


@dataclass(frozen=True, slots=True)
class IcebergFiles:
    """Iceberg's rules for files, by Iceberg's JSON of the table's schema and partition spec; see ``TableFiles``."""

    schema: str
    spec: str
    properties: tuple[tuple[str, str], ...] = ()

    def file_schema(self, schema: pa.Schema, partitions: Sequence[str]) -> pa.Schema:  # noqa: ARG002 # Delta leaves them out
        """Add the table's field ids to the columns; the columns of partitions are in the files."""
        return pa.schema(_with_ids(schema, Schema.model_validate_json(self.schema).fields))

    def partition_source(self, name: str) -> str:
        _, source, _ = _partition_field(self.schema, self.spec, name)
        return source

    def partition_values(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        field, source, kind = _partition_field(self.schema, self.spec, name)
        names = [column.lower() for column in rows.schema.names]
        values = rows.column(names.index(source.lower()))
        if isinstance(field.transform, IdentityTransform):
            return values
        transformed = field.transform.pyarrow_transform(kind)(values)
        return transformed.cast(pa.date32()) if isinstance(field.transform, DayTransform) else transformed

    def partition_value(self, value: pa.Scalar) -> str | None:
        """Convert a value to its text, a time's to its microseconds; the empty text is a value of its own."""
        if pa.types.is_timestamp(value.type):
            value = value.cast(pa.timestamp("us", value.type.tz)).cast(pa.int64())
        text: str | None = pc.cast(value, pa.string()).as_py()
        return text

    def has_stats(self, leaf: str) -> bool:
        return leaf != "body"

    def action(self, file: FinishedFile) -> str:
        table = Schema.model_validate_json(self.schema)
        statistics = _statistics(file.footer, table, dict(self.properties))
        description = {
            "path": file.path,
            "bytes": file.bytes,
            "rows": file.rows,
            "partitions": file.partitions,
            "split_offsets": statistics["split_offsets"],
            **{name: statistics[name] for name in _COUNTS},
            **{name: {key: bound.hex() for key, bound in statistics[name].items()} for name in _BOUNDS},
        }
        return json.dumps(description)


def _statistics(footer: pq.FileMetaData, table: Schema, properties: dict[str, str]) -> dict[str, Any]:
    """Compute the metrics of a file as pyiceberg does, which cuts bounds of texts."""
    plan, paths = compute_statistics_plan(table, properties), parquet_path_to_id_mapping(table)
    try:
        return data_file_statistics_from_parquet_metadata(footer, plan, paths).to_serialized_dict()
    except UnicodeEncodeError:  # the character after U+D7FF, which pyiceberg takes for an upper bound, is none
        whole = MetricsMode(MetricModeTypes.FULL)
        plan = {
            number: replace(column, mode=whole) if column.mode.type == MetricModeTypes.TRUNCATE else column
            for number, column in plan.items()
        }
        return data_file_statistics_from_parquet_metadata(footer, plan, paths).to_serialized_dict()


def data_file(action: str, spec: PartitionSpec, schema: Schema) -> DataFile:
    """Build a data file of ``IcebergFiles.action``. Raises StoreError: the table's partition spec has changed since."""
    description = json.loads(action)
    names = [field.name for field in spec.fields]
    if names != list(description["partitions"]):
        raise StoreError(
            f"{description['path']}: the table is partitioned by {','.join(names) or 'nothing'} since; run again"
        )
    values = [
        _partition(
            field.transform.result_type(schema.find_type(field.source_id)), description["partitions"][field.name]
        )
        for field in spec.fields
    ]
    metrics: dict[str, Any] = {name: _by_id(description[name].items()) for name in _COUNTS}
    metrics |= {
        name: _by_id((key, bytes.fromhex(bound)) for key, bound in description[name].items()) for name in _BOUNDS
    }
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=description["path"],
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=description["rows"],
        file_size_in_bytes=description["bytes"],
        spec_id=spec.spec_id,
        split_offsets=description["split_offsets"],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **metrics,
    )


@cache
def _partition_field(schema_json: str, spec_json: str, name: str) -> tuple[PartitionField, str, IcebergType]:
    """Return a partition field, and name and type of its column."""
    schema, spec = Schema.model_validate_json(schema_json), PartitionSpec.model_validate_json(spec_json)
    field = next(field for field in spec.fields if field.name == name)
    source = schema.find_field(field.source_id)
    return field, source.name, source.field_type


def _by_id(pairs: Iterable[tuple[str, Any]]) -> dict[int, Any]:
    return {int(key): value for key, value in pairs}


def _partition(kind: IcebergType, text: str | None) -> Any:
    """Convert a partition's text to the value that manifests have."""
    if text is None:
        return None
    if isinstance(kind, StringType):  # of which pyiceberg takes one, __HIVE_DEFAULT_PARTITION__, for null
        return text
    if isinstance(kind, DateType):
        return date_str_to_days(text)
    assert isinstance(kind, PrimitiveType)  # a partition is no struct
    return partition_to_py(kind, text)


def _with_ids(fields: Iterable[pa.Field], table_fields: Sequence[NestedField]) -> list[pa.Field]:
    """Give fields the ids and names of the table's fields of the same names, whatever their case."""
    by_name = {field.name.lower(): field for field in table_fields} | {field.name: field for field in table_fields}
    fields_with_ids = []
    for field in fields:
        table_field = by_name.get(field.name, by_name.get(field.name.lower()))
        if table_field is None:  # another program has dropped it since
            raise StoreError(f"the table has no column {field.name} any more")
        fields_with_ids.append(_field(table_field, field.type))
    return fields_with_ids


def _field(table_field: NestedField, kind: pa.DataType) -> pa.Field:
    iceberg_type = table_field.field_type
    if isinstance(iceberg_type, StructType):
        kind = pa.struct(_with_ids(kind, iceberg_type.fields))
    elif isinstance(iceberg_type, ListType):
        kind = pa.list_(_field(iceberg_type.element_field, kind.value_type))
    elif isinstance(iceberg_type, MapType):
        kind = pa.map_(_field(iceberg_type.key_field, kind.key_type), _field(iceberg_type.value_field, kind.item_type))
    elif isinstance(iceberg_type, IntegerType):
        kind = pa.int32()  # Iceberg has no shorter ones
    return pa.field(table_field.name, kind, not table_field.required, {FIELD_ID: str(table_field.field_id)})
