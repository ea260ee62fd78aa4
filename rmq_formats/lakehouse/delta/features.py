"""Features of a Delta table that only Delta's own writer has."""

from collections.abc import Mapping
from typing import Any, Final

AUTO_COMPACT: Final = "spark.databricks.delta.autoCompact.enabled"
_PLAIN_VERSIONS: Final = {(1, 1), (1, 2), (1, 7)}  # of reader and writer; writer version 7 lists its features
_PLAIN_FEATURES: Final = frozenset({"appendOnly", "invariants"})
# Column metadata that asks more of a writer: not null, a length, a constraint, a generated value.
_WRITER_DEMANDS: Final = (
    '"nullable":false',
    "__CHAR_VARCHAR_TYPE_STRING",
    "delta.invariants",
    "delta.generationExpression",
)


def is_plain(protocol: Mapping[str, Any], schema: str, properties: Mapping[str, str], auto_compact: str) -> bool:
    """Return whether a table needs plain Parquet files only: no constraints, no column mapping.

    Args:
        protocol: action of the table's log.
        schema: of the table, as the log has it.
        properties: of the table.
        auto_compact: the session's setting by which Delta's own writer compacts small files after its commits.
    """
    features = set(protocol.get("readerFeatures", [])) | set(protocol.get("writerFeatures", []))
    versions = protocol["minReaderVersion"], protocol["minWriterVersion"]
    compacts = [value for name, value in properties.items() if name.startswith("delta.autoOptimize")]
    has_plain_protocol = versions in _PLAIN_VERSIONS and features <= _PLAIN_FEATURES
    return (
        has_plain_protocol
        and not any(demand in schema for demand in _WRITER_DEMANDS)
        and all(value == "false" for value in [*compacts, auto_compact])
    )
