"""Values that Spark's writer cannot make a directory of a partition of: they end an export, before its commit."""

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from rmq_lakehouse.evolution import column

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # ExternalCatalogUtils#DEFAULT_PARTITION_NAME
_ESCAPED: Final = "[\\x01-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]"  # ExternalCatalogUtils#escapePathName: to three bytes each
_MAX_NAME_BYTES: Final = 255  # limit: NAME_MAX of file systems
_REMEDY: Final = ": choose --topics without it, or partitions"


def with_partition_checks(
    frame: DataFrame, partitions: Sequence[str], properties: Mapping[str, str], local_path: str | None
) -> DataFrame:
    """Have Spark's tasks refuse a text that its writer takes for null, or that is too long for a directory's name.

    Args:
        local_path: its directory in this machine's file system; others have no limit of a name.
    """
    is_mapped = properties.get("delta.columnMapping.mode", "none") != "none"
    is_random = properties.get("delta.randomizeFilePrefixes", "false") == "true"
    named = local_path is not None and not is_mapped and not is_random  # else no directory has a value's name
    kinds = {field.name: field.dataType for field in frame.schema}
    texts = [name for name in partitions if isinstance(kinds.get(name), StringType)]
    return frame.withColumns({name: _with_check(name, in_directories=named) for name in texts}) if texts else frame


def _with_check(name: str, *, in_directories: bool) -> Column:
    value = column(name)

    def raise_refusal(*reason: str | Column) -> Column:
        message = [
            part if isinstance(part, Column) else F.lit(part) for part in (f"{name} '", value, "' ", *reason, _REMEDY)
        ]
        return F.raise_error(F.concat(*message))

    result = F.when(value == _NULL, raise_refusal("is what Spark writes for null"))
    if in_directories:
        bytes_ = F.octet_length(F.regexp_replace(value, _ESCAPED, "%00")) + len(f"{name}=")
        length_reason = ("of ", F.length(value), " characters makes a directory's name of ", bytes_)
        result = result.when(
            bytes_ > _MAX_NAME_BYTES, raise_refusal(*length_reason, f" bytes, where {_MAX_NAME_BYTES} is the most")
        )
    return result.otherwise(value)
