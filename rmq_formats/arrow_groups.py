"""Rows that are equal in some columns, found by Arrow's dictionaries: what is to be done once for each of them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def distinct_rows(columns: Sequence[pa.Array], row_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which rows differ from those before them.

    Args:
        columns: of ``row_count`` rows each; nulls are equal.
        row_count: that number, for the case of no columns.

    Returns:
        int64[groups], a row of each group; and int64[row_count], each row's group.
    """
    groups = np.zeros(row_count, dtype=np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        codes = np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int64) + 1
        # Numbered anew each time: products of many dictionaries would not fit.
        groups = np.unique(groups * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1].astype(np.int64)
    _, firsts = np.unique(groups, return_index=True)
    return firsts.astype(np.int64), groups
