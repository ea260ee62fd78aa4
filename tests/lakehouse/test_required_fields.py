"""Files of tables with required members: a member of a null struct is no null of its own."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_lakehouse.parquet import convert_array

TYPES: list[tuple[pa.DataType, Any]] = [
    (pa.string(), "a"), (pa.binary(), b"a"), (pa.int32(), 3), (pa.bool_(), True), (pa.decimal128(5, 2), None),
    (pa.timestamp("us", "UTC"), None), (pa.struct([pa.field("x", pa.int64())]), {"x": 1}),
    (pa.list_(pa.int32()), [1, 2]), (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), TYPES, ids=str)
@pytest.mark.parametrize("first", [0, 1])
def test_a_required_member_is_null_where_its_struct_is(
    tmp_path: Path, kind: pa.DataType, value: Any, first: int
) -> None:
    has_value = value is not None
    rows = [{"m": value} if has_value else None, None, None][first:]
    optional = pa.struct([pa.field("m", kind)])
    field = pa.field("s", pa.struct([pa.field("m", kind, nullable=False)]))
    array = pa.StructArray.from_arrays(
        [pa.array([value, None, None], kind)], fields=list(optional), mask=pa.array([not has_value, True, True])
    ).slice(first)
    converted = convert_array(array, field)
    converted.validate(full=True)
    pq.write_table(pa.table([converted], schema=pa.schema([field])), tmp_path / "f.parquet")
    assert pq.read_table(tmp_path / "f.parquet")["s"].to_pylist() == rows


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (pa.field("s", pa.struct([pa.field("m", pa.int32(), nullable=False)])), [{"m": None}]),
        (pa.field("s", pa.list_(pa.field("element", pa.int32(), nullable=False))), [[1, None]]),
        (pa.field("s", pa.map_(pa.string(), pa.field("value", pa.int32(), nullable=False))), [[("k", None)]]),
        (pa.field("s", pa.int32(), nullable=False), [None]),
    ],
    ids=["member", "element", "value", "column"],
)
def test_a_null_that_is_required_is_refused(field: pa.Field, values: list[Any]) -> None:
    optional = {
        "struct": pa.struct([pa.field("m", pa.int32())]), "list": pa.list_(pa.int32()),
        "map": pa.map_(pa.string(), pa.int32()), "int32": pa.int32(),
    }[str(field.type).partition("<")[0]]  # fmt: skip
    with pytest.raises(ValueError, match="has nulls, and is NOT NULL"):
        convert_array(pa.array(values, optional), field)
