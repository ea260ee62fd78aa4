"""``columns`` of a spec: only these are decoded and are in the table."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from rmq_formats.errors import OptionError
from rmq_formats.spark.versions import arrow_schema
from rmq_lakehouse.decode import avro, json_body, protobuf
from rmq_lakehouse.decode.mismatch import Mismatch
from rmq_lakehouse.decode.spark import select_columns
from rmq_lakehouse.decode.times import TimeUnits
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import write
from tests.lakehouse.test_bodies import INT64, STRING, message_class
from tests.lakehouse.test_iceberg import table_of
from tests.lakehouse.test_mismatches import MS, avro_body, record


def struct(**members: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in members.items()])


INT, TEXT = IntegerType(), StringType()
SCHEMA = StructType(
    [
        StructField("id", INT),
        StructField("a.b", INT),
        StructField("of", struct(x=INT, y=TimestampType())),
        StructField("lines", ArrayType(struct(sku=TEXT, n=INT))),
        StructField("by", MapType(TEXT, struct(v=INT, w=INT))),
    ]
)


def test_paths_lead_into_structs_arrays_and_maps() -> None:
    chosen = select_columns("T", SCHEMA, ["by.value.w", "of.x", "a.b", "lines.element.n"])
    assert chosen.simpleString() == (
        "struct<a.b:int,of:struct<x:int>,lines:array<struct<n:int>>,by:map<string,struct<w:int>>>"
    )
    assert select_columns("T", SCHEMA, ["of", "of.x"]) == StructType([SCHEMA["of"]])
    assert select_columns("T", SCHEMA, []) == SCHEMA
    for path in ("nothing", "of.z", "lines.sku", ""):
        with pytest.raises(OptionError, match=f"topic 'T': columns has '{path}', which is no column of the schema"):
            select_columns("T", SCHEMA, [path])


def test_json_values_of_other_columns_are_not_looked_at() -> None:
    chosen = select_columns("T", SCHEMA, ["id", "of.x"])
    selected, schema = (pa.struct(list(arrow_schema(columns))) for columns in (chosen, SCHEMA))
    decode = json_body.decoder(selected, TimeUnits(), "UTC", schema=schema)
    assert decode(b'{"id":1,"of":{"x":2,"y":"no time"},"lines":7}') == {"id": 1, "of": {"x": 2}}
    assert decode(b'{"lines":7}') == {}
    with pytest.raises(Mismatch, match="the body has none of the members"):
        decode(b'{"other":1}')


def test_avro_times_of_other_columns_are_not_looked_at() -> None:
    millis = {"type": "long", "logicalType": "timestamp-millis"}
    schema = record(("id", "long"), ("at", millis), ("of", {**record(("at", millis), ("on", millis)), "name": "Of"}))
    plain = json.loads(json.dumps(schema).replace('"logicalType": "timestamp-millis"', '"doc": ""'))
    body = avro_body(plain, {"id": 1, "at": MS * 1000, "of": {"at": MS * 1000, "on": MS}})
    row = avro.decoder(json.dumps(schema), selected=frozenset(["id", "of", "of.on"]))(body)
    assert (row["id"], row["of"]["on"]) == (1, MS * 1000)


def test_protobuf_fields_of_other_columns_are_not_looked_at() -> None:
    _, schema = message_class("shop", {"id": (1, INT64), "name": (2, STRING)})
    changed, _ = message_class("other", {"id": (1, STRING), "name": (2, STRING)})
    decode = protobuf.decoder(schema, "shop.Order", selected=frozenset(["name", "of", "of.name"]))
    body = changed(id="A-3", name="n", of={"id": "A-4", "name": "m"}).SerializeToString()
    assert decode(body) == {"name": "n", "of": {"name": "m"}}
    strict = protobuf.decoder(schema, "shop.Order", selected=frozenset(["name", "of", "of.id"]))
    with pytest.raises(Mismatch, match=r"column of\.id: field 1"):
        strict(body)


@pytest.mark.spark
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_a_table_has_the_columns_of_the_spec_only(exporter: Exporter, table_format: str, tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    topic: dict[str, Any] = {
        "topic": "T", "format": "json", "schema": "id BIGINT, at TIMESTAMP, of STRUCT<x: INT, y: INT>", "key": ["id"],
        "table": str(exporter.work / "rows"), "columns": ["id", "of.x"],
    }  # fmt: skip
    write(exporter.store, [("T", b'{"id":1,"at":"never","of":{"x":2,"y":"no number"}}'), ("T", b'{"id":2}')])

    def run(**more: Any) -> int:
        spec.write_text(json.dumps({"topics": [{**topic, **more}]}))
        report, code = exporter.run("--format", table_format, "--typed", str(spec), table=False)
        assert code == 0
        return int(report["messages"])

    assert run() == 2
    if table_format == "iceberg":
        rows = table_of(exporter, "rows").scan().to_arrow().to_pylist()
    else:
        rows = [row.asDict(recursive=True) for row in exporter.rows("rows")]
    assert sorted((row["id"], row["of"]) for row in rows if "at" not in row) == [(1, {"x": 2}), (2, None)]
    with pytest.raises(OptionError, match="key 'at' is not a primitive column of the schema"):
        run(key=["at"])
    with pytest.raises(OptionError, match="topic 'T': columns has 'ids', which is no column of the schema"):
        run(columns=["ids"])
