"""Features of a Delta table that only Delta's own writer has."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from rmq_lakehouse.table_name import quoted

AUTO_COMPACT: Final = "spark.databricks.delta.autoCompact.enabled"
_PLAIN_VERSIONS: Final = {(1, 1), (1, 2), (1, 7)}  # of reader and writer; writer version 7 lists its features
_PLAIN_FEATURES: Final = frozenset({"appendOnly", "invariants"})
# Column metadata that asks more of a writer: not null, a length, a constraint, a generated value.
_DELTA_WRITER_PROPERTIES: Final = (
    '"nullable":false',
    "__CHAR_VARCHAR_TYPE_STRING",
    "delta.invariants",
    "delta.generationExpression",
)
_INTERVAL: Final = r"interval ([1-9][0-9]{0,8}) (second|minute|hour|day|week)s?"
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
_BOOLEAN: Final = "true|false"
_NO_VALUE: Final = "(?!)"
_STATS_COLUMNS: Final = "delta.dataSkippingStatsColumns"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_LISTED_NAME: Final = re.compile(r"`((?:[^`]|``)+)`|([^,`\s]+)")
_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_LOG_RETENTION: Final = "delta.logRetentionDuration"
# Delta's own properties that ask nothing of a writer of files, and their values.
_PASSIVE_PROPERTIES: Final = {
    "delta.appendOnly": _BOOLEAN,
    "delta.checkpointInterval": "[1-9][0-9]{0,8}",
    _FILE_RETENTION: _INTERVAL,
    "delta.enableExpiredLogCleanup": _BOOLEAN,
    _LOG_RETENTION: _INTERVAL,
    "delta.setTransactionRetentionDuration": _INTERVAL,
}


def stats_property(columns: Sequence[str]) -> dict[str, str]:
    """Return the property that names a table's columns with bounds in its log; empty for none.

    Without the property delta-rs takes a column that has no bounds for one of nulls, and its filters lose rows.
    """
    names = (name if _PLAIN_NAME.fullmatch(name) else quoted(name) for name in columns)
    return {_STATS_COLUMNS: ",".join(names)} if columns else {}


def column_without_bounds(
    properties: Mapping[str, str], written: Collection[str], bounded: Collection[str]
) -> str | None:
    """Return the first column whose bounds a table wants in its log, and that an export writes without bounds."""
    names = (
        in_backticks.replace("``", "`") or plain
        for in_backticks, plain in _LISTED_NAME.findall(properties.get(_STATS_COLUMNS, ""))
    )
    return next((name for name in names if name in written and name not in bounded), None)


def property_requiring_delta_writer(properties: Mapping[str, str]) -> str | None:
    """Return the first property of a new table that only Delta's own writer may know, or whose value it may refuse.

    Columns with bounds are not considered; see ``column_without_bounds``.
    """
    for name, value in properties.items():
        if (
            name != _STATS_COLUMNS
            and name.startswith("delta.")
            and re.fullmatch(_PASSIVE_PROPERTIES.get(name, _NO_VALUE), value) is None
        ):
            return name
    log_s = _seconds(properties.get(_LOG_RETENTION, "interval 30 days"))
    return _LOG_RETENTION if log_s < _seconds(properties.get(_FILE_RETENTION, "interval 1 week")) else None


def _seconds(interval: str) -> int:
    match = re.fullmatch(_INTERVAL, interval)
    assert match is not None  # both are checked before
    return int(match[1]) * _SECONDS[match[2]]


def is_plain(protocol: Mapping[str, Any], schema: str, properties: Mapping[str, str], auto_compact: str) -> bool:
    """Return whether a table needs plain Parquet files only: no constraints, no column mapping.

    Args:
        protocol: action of the table's log.
        schema: JSON of the table's log.
        auto_compact: value of ``AUTO_COMPACT``, by which Delta's own writer compacts small files after its commits.
    """
    features = set(protocol.get("readerFeatures", [])) | set(protocol.get("writerFeatures", []))
    versions = protocol["minReaderVersion"], protocol["minWriterVersion"]
    compacts = [value for name, value in properties.items() if name.startswith("delta.autoOptimize")]
    has_plain_protocol = versions in _PLAIN_VERSIONS and features <= _PLAIN_FEATURES
    return (
        has_plain_protocol
        and not any(demand in schema for demand in _DELTA_WRITER_PROPERTIES)
        and all(value == "false" for value in [*compacts, auto_compact])
    )
