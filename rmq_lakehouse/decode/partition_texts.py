"""Texts that are no value of a Delta table's partition: null stands for some, and others make no directory's name."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.parquet import MAX_DIRECTORY_BYTES, NULL_PARTITION

ESCAPED: Final = r"""[\x01-\x1f\x7f"#%'*/:=?\\{\[\]^]"""
"""Pattern of the characters that take three bytes in a name, for Python and Java: ``escapePathName`` of Spark."""
_NUL: Final = "\0"  # ends a path


@dataclass(frozen=True, slots=True)
class PartitionTexts:
    """Columns of texts that become partitions of a Delta table, whose values may be in the names of directories."""

    columns: tuple[str, ...] = ()
    has_directories: bool = True


NO_PARTITION_TEXTS: Final = PartitionTexts()


def partition_fault(name: str, text: str, *, has_directories: bool = True) -> str | None:
    """Return why a text is no value of a partition; None if the text is a value."""
    if not text:
        return f"column {name}: an empty text, which a partition of a Delta table makes null"
    if text == NULL_PARTITION:
        return f"column {name}: the text {NULL_PARTITION}, which stands for null in a partition"
    if _NUL in text:
        return f"column {name}: a text with the character U+0000, which no partition can have"
    if not has_directories:
        return None
    size = len(f"{name}={text}".encode("utf-8", "surrogatepass")) + 2 * len(re.findall(ESCAPED, name + text))
    if size > MAX_DIRECTORY_BYTES:
        length = f"a name of {size} bytes, wanted at most {MAX_DIRECTORY_BYTES}"
        return f"column {name}: a text whose partition's directory has {length}"
    return None


def decode_with_partitions(
    decode: Callable[[bytes], Any], partitions: PartitionTexts, body: bytes
) -> list[dict[str, Any]]:
    """Decode a body to rows whose texts in some columns are values of partitions. Raises Mismatch."""
    rows: list[dict[str, Any]] = decode(body)
    for number, row in enumerate(rows):
        for name in partitions.columns:
            text = row.get(name)
            fault = None if text is None else partition_fault(name, text, has_directories=partitions.has_directories)
            if fault is not None:
                raise Mismatch(f"element {number}: {fault}")
    return rows


def without_partition_faults(results: pa.StructArray, partitions: PartitionTexts) -> pa.StructArray:
    """Replace results whose texts in some columns are no values of partitions by null and a reason."""
    if not partitions.columns:
        return results
    value, reasons = results.field("value"), results.field("reason").to_pylist()
    is_refused = False
    for name in partitions.columns:
        texts = value.field(name)
        surely_short = MAX_DIRECTORY_BYTES // 3 - len(name.encode()) - 1  # even if each byte is escaped
        is_suspect = pc.or_(pc.is_in(texts, pa.array(["", NULL_PARTITION])), pc.match_substring(texts, _NUL))
        is_suspect = pc.or_(is_suspect, pc.greater(pc.binary_length(texts), surely_short))
        for row in pc.indices_nonzero(pc.fill_null(is_suspect, False)).to_pylist():
            fault = partition_fault(name, texts[row].as_py(), has_directories=partitions.has_directories)
            if fault is not None:
                reasons[row], is_refused = fault, True
    if not is_refused:
        return results
    reason = pa.array(reasons, pa.string())
    value = pa.StructArray.from_arrays(value.flatten(), fields=list(value.type), mask=pc.is_valid(reason))
    return pa.StructArray.from_arrays([value, reason], names=["value", "reason"])
