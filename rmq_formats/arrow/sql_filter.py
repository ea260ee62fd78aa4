"""Evaluates SQL92 filter expressions over an Arrow column of message properties."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rmq_formats.sql92 import Expression


def distinct_rows(columns: Sequence[pa.Array], row_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group equal rows of some columns, in which nulls are equal; without columns all rows are equal.

    Returns:
        int64[groups], a row of each group; and int64[row_count], each row's group.
    """
    groups = np.zeros(row_count, dtype=np.int64)
    for column in columns:
        encoded = column.dictionary_encode()
        codes = np.asarray(pc.fill_null(encoded.indices, -1), dtype=np.int64) + 1
        # Renumbered after each column: products of many dictionaries' sizes would overflow.
        groups = np.unique(groups * (len(encoded.dictionary) + 1) + codes, return_inverse=True)[1].astype(np.int64)
    _, firsts = np.unique(groups, return_index=True)
    return firsts.astype(np.int64), groups


def evaluate_filter(expression: Expression, properties: pa.MapArray) -> pa.BooleanArray:
    """Return whether each row's properties fulfil an expression, evaluated once for each combination of values."""
    names = expression.names
    columns = [pc.map_lookup(properties, pa.scalar(name), "last") for name in names]
    firsts, groups = distinct_rows(columns, len(properties))
    values = [column.take(pa.array(firsts)).to_pylist() for column in columns]
    rows = zip(*values, strict=True) if values else [()]
    results = [
        expression({name: value for name, value in zip(names, row, strict=True) if value is not None}) for row in rows
    ]
    return pa.array(np.array(results, dtype=np.bool_)[groups])
