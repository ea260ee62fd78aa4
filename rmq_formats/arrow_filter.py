"""SQL92 filters over a column of properties."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_formats.arrow_groups import distinct_rows
from rmq_formats.sql92 import Expression


def fulfilled(expression: Expression, properties: pa.MapArray) -> pa.BooleanArray:
    """Whether each row's properties fulfil an expression.

    It is evaluated once for each combination of values of the properties that it names.
    """
    names = expression.names
    columns = [pc.map_lookup(properties, pa.scalar(name), "last") for name in names]
    firsts, groups = distinct_rows(columns, len(properties))
    values = [column.take(pa.array(firsts)).to_pylist() for column in columns]
    rows = zip(*values, strict=True) if values else [()]
    found = [
        expression({name: value for name, value in zip(names, row, strict=True) if value is not None}) for row in rows
    ]
    return pa.array(np.array(found, dtype=np.bool_)[groups])
