"""Whose messages a table has: of one store, of the brokers of clusters, or of a store with its tier."""

from collections.abc import Mapping
from typing import Final

from rmq_formats.errors import StoreError
from rmq_formats.lakehouse.selection import ExportSelection

STORE_PROPERTY: Final = "rmq.store"
CLUSTER_PROPERTY: Final = "rmq.cluster"
TIER_PROPERTY: Final = "rmq.tier"
TOPIC_PROPERTY: Final = "rmq.topic"
"""Of a table that has bodies of one topic decoded, or dead letters; tables of messages as they are do not have it."""
_OWNERS: Final = (STORE_PROPERTY, CLUSTER_PROPERTY, TIER_PROPERTY)


def owner_property(selection: ExportSelection) -> tuple[str, str]:
    """Return the table property that tells whose messages the table has, and its value."""
    broker = selection.broker
    if broker is None:
        return STORE_PROPERTY, selection.store_id
    return TIER_PROPERTY if selection.with_tier else CLUSTER_PROPERTY, broker.table_id


def check_owner(path: str, properties: Mapping[str, str], selection: ExportSelection) -> None:
    """Refuse a table of others.

    Args:
        path: of the table.
        properties: its properties.
        selection: what is to be exported.

    Raises:
        StoreError: naming whose table it is.
    """
    owners = {name: properties[name] for name in _OWNERS if name in properties}
    name, expected = owner_property(selection)
    if not owners:
        raise StoreError(f"{path}: a table that no export wrote; give another --table")
    if name not in owners:
        (owner,) = owners.values()
        kinds = {
            STORE_PROPERTY: f"one store, {owner}",
            CLUSTER_PROPERTY: f"the brokers of {owner}",
            TIER_PROPERTY: f"a store of {owner} with its tier",
        }
        expected_kinds = {
            STORE_PROPERTY: f"of one store, {expected}",
            CLUSTER_PROPERTY: "of several brokers",
            TIER_PROPERTY: "of a store with its tier",
        }
        expected_kind = expected_kinds[name]
        actual_kind = kinds[next(iter(owners))]
        raise StoreError(f"{path}: is the table of {actual_kind}, not {expected_kind}; give another --table")
    if owners[name] != expected:
        raise StoreError(
            f"{path}: holds the messages of {owners[name]}, not of {expected}; give another --table, "
            f"or --store-id if {'the store has moved' if name == STORE_PROPERTY else 'the name has changed'}"
        )
