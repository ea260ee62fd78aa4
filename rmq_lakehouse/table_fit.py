"""Checks that a table fits an export: its source, properties, columns, partitions and files.

The source of a table is one store, the brokers of clusters, or a store with its tier.
"""

from collections.abc import Hashable, Mapping
from typing import Final

from rmq_formats.errors import StoreError
from rmq_lakehouse.selection import ExportSelection
from rmq_lakehouse.spec import TOPIC_PROPERTY
from rmq_lakehouse.table_log import TableLog, TableSpec

STORE_PROPERTY: Final = "rmq.store"
CLUSTER_PROPERTY: Final = "rmq.cluster"
TIER_PROPERTY: Final = "rmq.tier"
_SOURCE_PROPERTIES: Final = (STORE_PROPERTY, CLUSTER_PROPERTY, TIER_PROPERTY)


def source_property(selection: ExportSelection) -> tuple[str, str]:
    """Return the name and the value of the table property that names the source of the messages."""
    broker = selection.broker
    if broker is None:
        return STORE_PROPERTY, selection.store_id
    return TIER_PROPERTY if selection.with_tier else CLUSTER_PROPERTY, broker.table_id


def check_source(path: str, properties: Mapping[str, str], selection: ExportSelection) -> None:
    """Refuse a table of another source. Raises StoreError."""
    owners = {name: properties[name] for name in _SOURCE_PROPERTIES if name in properties}
    name, expected = source_property(selection)
    if not owners:
        raise StoreError(f"{path}: a table that no export wrote; give another --table, or --adopt to export into it")
    if name not in owners:
        ((owner_property, owner),) = owners.items()
        kinds = {
            STORE_PROPERTY: (f"one store, {owner}", f"of one store, {expected}"),
            CLUSTER_PROPERTY: (f"the brokers of {owner}", "of several brokers"),
            TIER_PROPERTY: (f"a store of {owner} with its tier", "of a store with its tier"),
        }
        actual_kind, expected_kind = kinds[owner_property][0], kinds[name][1]
        raise StoreError(f"{path}: is the table of {actual_kind}, not {expected_kind}; give another --table")
    if owners[name] != expected:
        raise StoreError(
            f"{path}: holds the messages of {owners[name]}, not of {expected}; give another --table, "
            f"or --store-id if {'the store has moved' if name == STORE_PROPERTY else 'the name has changed'}"
        )


def has_source(properties: Mapping[str, str]) -> bool:
    """Return whether an export made a table, by its properties."""
    return any(name in properties for name in _SOURCE_PROPERTIES)


def check_fit(path: str, log: TableLog, selection: ExportSelection, table_spec: TableSpec) -> None:
    """Refuse a table of another owner, or with other properties or partitions than an export has. Raises StoreError."""
    properties = log.configuration()
    check_source(path, properties, selection)
    expected_properties = dict(table_spec.properties)
    for name in (TOPIC_PROPERTY, *expected_properties):
        expected = expected_properties.get(name)
        if properties.get(name) != expected:
            raise StoreError(f"{path}: its {name} is {properties.get(name) or 'none'}, not {expected or 'none'}")
    partitions, expected_partitions = ",".join(log.partition_columns()), ",".join(table_spec.partitions)
    if partitions != expected_partitions:
        raise StoreError(f"{path}: is partitioned by {partitions or 'nothing'}, not {expected_partitions or 'nothing'}")


def check_files(path: str, log: TableLog) -> None:
    """Refuse a table whose directory has another table as well, or that lacks a data file. Raises StoreError."""
    other_table = log.other_table()
    if other_table is not None:
        raise StoreError(f"{path}: its directory has {other_table}, too: move that away, or give another --table")
    missing_path = log.missing_file()
    if missing_path is not None:
        raise StoreError(f"{path}: data file {missing_path} is missing. Restore the file, or give another --table")


def moved_columns(exported: Mapping[str, Hashable], current: Mapping[str, Hashable]) -> dict[str, str | None]:
    """Map the path of each renamed column to its current path, and that of each dropped column to None.

    A column is its identity, so that two columns may have swapped their names. Another column may have the name of a
    dropped column, and then gets its values.

    Args:
        exported: identities of the columns that exports have made, by their paths.
        current: identities of the table's columns, by their paths.
    """
    paths = {identity: path for path, identity in current.items()}
    return {
        path: paths.get(identity)
        for path, identity in exported.items()
        if current.get(path) != identity and (identity in paths or path not in current)
    }
