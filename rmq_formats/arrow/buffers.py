"""Tables of address and length of Arrow strings, from which kernels copy the bytes."""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NULL_TEXT: Final = (0, -1)
TEXT: Final = 2  # columns of a table of texts

Table = NDArray[np.int64]


def texts(array: pa.Array) -> Table:
    """Return address and length of each value of a string or binary array; the array must outlive the table.

    Returns:
        int64[n, TEXT]; the length of null is negative.
    """
    table = np.empty((len(array), TEXT), dtype=np.int64)
    fill_texts(array, table)
    return table


def fill_texts(array: pa.Array, table: Table) -> None:
    """Write address and length of each value, as ``texts`` does, into two columns of a larger table."""
    if not len(array):
        return
    _, offsets_buffer, values = array.buffers()
    kind = np.int64 if pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(offsets_buffer, dtype=kind)[array.offset : array.offset + len(array) + 1]
    np.add(offsets[:-1], values.address if values is not None else 0, out=table[:, 0], dtype=np.int64)
    np.subtract(offsets[1:], offsets[:-1], out=table[:, 1], dtype=np.int64)
    if array.null_count:
        table[array.is_null().to_numpy(zero_copy_only=False)] = NULL_TEXT


def no_texts(count: int) -> Table:
    """Return a table of texts in which all values are null."""
    return np.full((count, TEXT), NULL_TEXT, dtype=np.int64)


def list_offsets(array: pa.ListArray | pa.MapArray) -> Table:
    """Return where the items of each list or map begin among all items, int64[n + 1]; null has none."""
    offsets = np.frombuffer(array.buffers()[1], dtype=np.int32)[array.offset : array.offset + len(array) + 1]
    return offsets.astype(np.int64)


def numbers(array: pa.Array, default: int) -> Table:
    """Convert integers or timestamps to int64[n], with a default for null."""
    if pa.types.is_timestamp(array.type):
        array = array.cast(pa.int64())
    if array.null_count:
        array = array.fill_null(default)
    values: Table = array.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values
