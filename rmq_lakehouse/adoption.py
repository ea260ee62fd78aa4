"""Adoption: exports into a table that its owner made by DDL, whose columns and properties stay as they are."""

import logging
from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from rmq_formats.errors import StoreError
from rmq_lakehouse.evolution import column, current_columns, type_mismatches, with_wider_types
from rmq_lakehouse.partitions import parse_partition
from rmq_lakehouse.selection import APP_PREFIX, ExportSelection
from rmq_lakehouse.table_fit import check_files
from rmq_lakehouse.table_log import SparkTableLog

_GENERATED: Final = "delta.generationExpression"
_IDENTITY: Final = "delta.identity.start"
_DEFAULT: Final = "CURRENT_DEFAULT"
_log = logging.getLogger("rmq_lakehouse")


def check_adopted_table(
    path: str, log: SparkTableLog, selection: ExportSelection, schema: StructType, identity_columns: Sequence[str]
) -> None:
    """Refuse an owner's table with another store's messages, or with columns that an export cannot fill.

    Raises:
        StoreError: naming the store or the column.
    """
    if selection.broker is None:  # a table of brokers has the commits of other brokers, too
        _check_store(path, log.snapshot().app_ids(), selection)
    check_files(path, log)
    _check_columns(path, log, schema, identity_columns)


def _check_store(path: str, app_ids: Sequence[str], selection: ExportSelection) -> None:
    """Refuse the messages of another store, by the application ids of the table's commits."""
    foreign_ids = [app_id for app_id in app_ids if app_id.startswith(APP_PREFIX) and not selection.is_own_id(app_id)]
    if foreign_ids:
        other = min(foreign_ids, key=len).removeprefix(APP_PREFIX)
        raise StoreError(f"{path}: holds the messages of {other}, not of {selection.store_id}; give another --table")


def _check_columns(path: str, log: SparkTableLog, schema: StructType, identity_columns: Sequence[str]) -> None:
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
    """Select the columns that an owner's table has and Delta does not compute.

    Args:
        frame: rows, under the table's current names.
        with_defaults: whether columns that the frame lacks get their defaults; a merge sets them itself.
    """
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
