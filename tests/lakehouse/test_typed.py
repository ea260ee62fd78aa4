"""Typed tables: bodies as columns, rows by key, dead letters, schemas that grow."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
from deltalake import DeltaTable

from rmq_formats.codecs.layout import FLAG_COMPRESSED
from rmq_formats.errors import OptionError, StoreError
from rmq_lakehouse import spark_table
from rmq_lakehouse.delta import location as delta_location
from rmq_lakehouse.table_name import quoted
from tests.lakehouse.exported_stores import Exporter
from tests.lakehouse.small_stores import FILE_BYTES, write
from tests.lakehouse.test_bodies import ORDER, SCHEMA, avro_body, descriptors, protobuf_body
from tests.lakehouse.test_iceberg import table_of
from tests.support.stores.store_files import flip

pytestmark = pytest.mark.spark

ORDERS: dict[str, Any] = {
    "topic": "Orders", "format": "json", "schema": "id STRING, amount DOUBLE", "key": ["id"], "table": "orders",
}  # fmt: skip


def order(name: object, amount: object, **more: object) -> tuple[str, bytes]:
    return "Orders", json.dumps({"id": name, "amount": amount, **more}).encode()


@pytest.fixture
def typed(exporter: Exporter) -> Callable[..., dict[str, Any]]:
    """``typed(*topics, arguments=[…])`` runs the job with a spec of these topics; its report."""

    def run(*topics: dict[str, Any], arguments: tuple[str, ...] = ()) -> dict[str, Any]:
        spec = exporter.work / "spec.json"
        spec.write_text(json.dumps({"topics": topics}))
        report, _ = exporter.run("--typed", str(spec), *arguments, table=False)
        return report

    return run


@pytest.mark.long
def test_bodies_become_columns_and_what_does_not_decode_a_dead_letter(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    bad = [("Orders", b"{bad"), ("Clicks", b"\x08abc"), ("Payments", b"\xff\xff"), ("Orders", b""), order(None, 1)]
    sound = [order("a", 1.5), ("Clicks", avro_body(ORDER)), ("Payments", protobuf_body(id="p", n=7, lines=["x"]))]
    placed = write(exporter.store, [*sound, *bad, ("Other", b"not asked for")])
    (exporter.work / "shop.desc").write_bytes(descriptors())
    clicks = {"topic": "Clicks", "format": "avro", "schema": json.dumps(SCHEMA), "table": "clicks"}
    payments = {
        "topic": "Payments", "format": "protobuf", "schema_file": "shop.desc", "message": "shop.Order",
        "table": "payments", "cluster_by": ["n"],
    }  # fmt: skip
    arguments = ("--dlq-table", str(exporter.work / "dead"), "--optimize")
    report = typed(ORDERS, clicks, payments, arguments=arguments)
    assert report["exports"] == {"Orders": 1, "Clicks": 1, "Payments": 1}
    assert report["undecoded"] == len(bad)
    (row,) = exporter.rows("orders")
    assert (row.topic, row.physical_offset, row.id, row.amount) == ("Orders", placed[0], "a", 1.5)
    (row,) = exporter.rows("clicks")
    assert (row.id, row.amount, row["at"], row.uid) == (
        ORDER["id"], ORDER["amount"], ORDER["at"].replace(tzinfo=None), ORDER["uid"],
    )  # fmt: skip
    (row,) = exporter.rows("payments")
    assert (row.id, int(row.n), row.lines, row.amount) == ("p", 7, ["x"], None)
    again = typed(ORDERS, clicks, payments, arguments=arguments)
    assert (again["messages"], again["undecoded"]) == (0, 0)
    dead = exporter.rows("dead")
    assert [(row.topic, bytes(row.body)) for row in dead] == bad
    assert [row.physical_offset for row in dead] == placed[3:8]
    assert dead[0].reason == "the body is not JSON of the schema"
    assert dead[1].reason == "column id: length 4, and the body has 3 more bytes"
    assert dead[2].reason.startswith("DecodeError")
    assert [row.reason for row in dead[3:]] == ["the body is empty", "its key id is null"]


@pytest.mark.long
def test_what_is_damaged_in_the_log_is_a_dead_letter_too(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    placed = write(exporter.store, [order(name, 1) for name in "abcd"])
    flip(exporter.store, placed[1] + 88, FILE_BYTES)  # the body
    flip(exporter.store, placed[2] + 39, FILE_BYTES, FLAG_COMPRESSED)  # the last byte of its flags
    report = typed(ORDERS, arguments=("--dlq-table", str(exporter.work / "dead")))
    assert (report["messages"], report["damaged"], report["undecoded"]) == (2, 2, 0)
    assert [row.id for row in exporter.rows("orders")] == ["a", "d"]
    first, second = exporter.rows("dead")
    assert (first.physical_offset, first.reason) == (placed[1], "body CRC does not match")
    assert (second.physical_offset, bytes(second.body)) == (placed[2], order("c", 1)[1])


def test_what_stands_behind_a_json_object_makes_it_a_dead_letter(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    whole = b'{"id":"a","amount":NaN,"more":[{"x":NaN}]}'
    mark = b',{"__rmq_end":true}'
    behind = [whole, b",", b"," + whole, b" rest", b"]", b"},", b"]x", b',0]{"__rmq_end":true}', mark, mark + b"]"]
    write(exporter.store, [("Orders", whole + b" \n"), *(("Orders", whole + more) for more in behind)])
    report = typed({**ORDERS, "key": []})
    assert (report["messages"], report["undecoded"]) == (1, len(behind))


@pytest.mark.long
def test_records_within_columns_may_lack_members(exporter: Exporter, typed: Callable[..., dict[str, Any]]) -> None:
    line = {"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}]}
    fields = [{"name": "lines", "type": {"type": "array", "items": line}}]
    schema = {"type": "record", "name": "Cart", "fields": fields}
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, {"lines": [{"sku": "x"}]})
    write(exporter.store, [("Orders", b'{"id":"a","first":{"b":1}}'), ("Carts", stream.getvalue())])
    orders = {**ORDERS, "schema": "id STRING, first STRUCT<a: INT NOT NULL, b: INT>"}
    carts = {"topic": "Carts", "format": "avro", "schema": json.dumps(schema), "table": "carts"}
    assert typed(orders, carts)["undecoded"] == 0
    assert [row.first.asDict() for row in exporter.rows("orders")] == [{"a": None, "b": 1}]
    assert [[line.sku for line in row.lines] for row in exporter.rows("carts")] == [["x"]]


@pytest.mark.long
def test_the_last_message_of_a_key_is_its_row_whoever_lands_it(
    exporter: Exporter, typed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [order("a", 1), order("b", 2), order("a", 3)]
    write(exporter.store, bodies)
    typed(ORDERS)
    assert {row.id: row.amount for row in exporter.rows("orders")} == {"a": 3, "b": 2}
    write(exporter.store, [*bodies, order("b", 4), order("c", 5)])
    merge, waiting = delta_location.DeltaTable.forPath, [True]

    def with_another(*arguments: Any) -> Any:
        if waiting:  # another lands the same and more, when this one has chosen its rows
            waiting.clear()
            write(exporter.store, [*bodies, order("b", 4), order("c", 5), order("c", 6)])
            typed(ORDERS)
        return merge(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(delta_location.DeltaTable, "forPath", with_another)
        typed(ORDERS)
    assert {row.id: row.amount for row in exporter.rows("orders")} == {"a": 3, "b": 4, "c": 6}
    assert typed(ORDERS)["messages"] == 0


def newest_commit(table: Path) -> list[dict[str, Any]]:
    newest = max((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


@pytest.mark.long
def test_a_run_without_new_rows_commits_its_progress_alone(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    dead = ("--dlq-table", str(exporter.work / "dead"))
    events = {**ORDERS, "topic": "Events", "table": "events", "key": []}
    sent = [order("a", 1), ("Events", b'{"id": "e", "amount": 1}')]
    write(exporter.store, sent)
    for others, messages, undecoded in (([], 2, 0), ([("Other", b"x")], 0, 0), ([("Events", b"x")], 0, 1)):
        sent += others
        write(exporter.store, sent)
        report = typed(ORDERS, events, arguments=dead)
        assert (report["messages"], report["undecoded"]) == (messages, undecoded)
        for name, adds in (("orders", bool(messages)), ("events", bool(messages)), ("dead", bool(undecoded))):
            actions = newest_commit(exporter.work / name)
            assert any("add" in action for action in actions) == adds
            assert any("txn" in action for action in actions)
    assert [row.topic for row in exporter.rows("dead")] == ["Events"]
    assert [len(exporter.rows(name)) for name in ("orders", "events")] == [1, 1]


EVENTS: dict[str, Any] = {
    "topic": "Events", "format": "json", "table": "events",
    "schema": "id BIGINT, name STRING, at TIMESTAMP, day DATE, amount DOUBLE, price DECIMAL(9,2), data STRUCT<n: INT>",
}  # fmt: skip


def event(number: int, **more: object) -> tuple[str, bytes]:
    at = f"2024-02-{number:02}T00:00:00.000{number:03}Z"
    row = {"id": number, "name": "n" * number, "at": at, "day": at[:10], "amount": number / 2, "price": number}
    return "Events", json.dumps({**row, **more}).encode()


@pytest.mark.long
def test_the_log_has_bounds_of_columns_that_find_their_rows(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    write(exporter.store, [event(3), event(1), event(2, name=None, at="0001-01-01T00:00:00Z")])
    assert typed(EVENTS, arguments=("--dlq-table", str(exporter.work / "dead")))["files"] == 1
    (log,) = [path for path in (exporter.work / "events/_delta_log").glob("*.json") if '"add"' in path.read_text()]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    (stats,) = [json.loads(action["add"]["stats"]) for action in actions if "add" in action]
    names = ("id", "name", "at", "day")
    assert [stats["minValues"][name] for name in names] == [1, "n", "0001-01-01T00:00:00.000000Z", "2024-02-01"]
    assert [stats["maxValues"][name] for name in names] == [3, "nnn", "2024-02-03T00:00:00.000003Z", "2024-02-03"]
    assert (stats["nullCount"]["name"], stats["numRecords"]) == (1, 3)
    assert not {"amount", "price", "data"} & {*stats["minValues"], *stats["maxValues"]}
    frame = exporter.spark.read.format("delta").load(str(exporter.work / "events"))
    for condition in (
        "at = TIMESTAMP '2024-02-03 00:00:00.000003Z'", "at <= TIMESTAMP '0001-01-01 00:00:00Z'", "name >= 'nnn'",
        "day = DATE '2024-02-03'", "amount > 1.4", "price = 3", "data IS NULL AND id = 1",
    ):  # fmt: skip
        assert frame.where(condition).count() == 1, condition


@pytest.mark.long
@pytest.mark.parametrize("most", [3, 1])
def test_tasks_leave_out_rows_that_the_table_has_and_spark_does_of_many(
    exporter: Exporter, typed: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(spark_table, "_MAX_OFFSETS", most)
    messages = [*map(event, (1, 2, 3, 4)), ("Events", b"{")]
    write(exporter.store, messages[:3])
    assert typed(EVENTS)["messages"] == 3
    write(exporter.store, messages)
    report = typed(EVENTS, arguments=("--from-offset", "0", "--dlq-table", str(exporter.work / "dead")))
    assert (report["messages"], report["undecoded"]) == (1, 1)
    again = typed(EVENTS, arguments=("--from-offset", "0", "--dlq-table", str(exporter.work / "dead")))
    assert again["messages"] == 0
    assert [row.id for row in exporter.rows("events")] == [1, 2, 3, 4]
    assert len(exporter.rows("dead")) == 1


@pytest.mark.long
def test_columns_of_another_case_or_with_fewer_members_are_those_of_the_table(
    exporter: Exporter, typed: Callable[..., dict[str, Any]]
) -> None:
    messages = [("Events", b'{"id":1,"more":{"a":1,"b":2}}'), ("Events", b'{"ID":2,"more":{"a":3}}')]
    write(exporter.store, messages[:1])
    typed({**EVENTS, "schema": "id BIGINT, more STRUCT<a: INT, b: INT>"})
    write(exporter.store, messages)
    typed({**EVENTS, "schema": "ID BIGINT, more STRUCT<a: INT>"})
    assert [(row.id, row.more.asDict()) for row in exporter.rows("events")] == [
        (1, {"a": 1, "b": 2}), (2, {"a": 3, "b": None}),
    ]  # fmt: skip
    assert DeltaTable(exporter.work / "events").to_pyarrow_table().column("id").to_pylist() in ([1, 2], [2, 1])


@pytest.mark.long
def test_a_schema_grows_and_does_not_change(exporter: Exporter, typed: Callable[..., dict[str, Any]]) -> None:
    write(exporter.store, [order("a", 1)])
    typed(ORDERS)
    write(exporter.store, [order("a", 1), order("b", 2, paid=True)])
    more = "paid BOOLEAN, by ARRAY<STRUCT<`first-name`: STRING, n: MAP<STRING, DECIMAL(12,2)>>>"
    typed({**ORDERS, "schema": f"id STRING, amount DOUBLE, {more}"})
    assert [(row.id, row.paid, row.by) for row in exporter.rows("orders")] == [("a", None, None), ("b", True, None)]
    write(exporter.store, [order("a", 1), order("b", 2, paid=True), order("b", 3), order("c", 4)])
    typed(ORDERS)  # an older spec
    assert {row.id: (row.amount, row.paid) for row in exporter.rows("orders")} == {
        "a": (1, None), "b": (3, True), "c": (4, None),
    }  # fmt: skip
    for changed, said in [
        ({"schema": "id STRING, amount STRING"}, "its column amount is double, not string"),
        ({"key": []}, "its rmq.key is id, not none"),
    ]:
        with pytest.raises(StoreError, match=said):
            typed({**ORDERS, **changed})
    table = f"delta.`{exporter.work / 'orders'}`"
    exporter.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    for column, other in (("id", "number"), ("physical_offset", "place")):
        exporter.spark.sql(f"ALTER TABLE {table} RENAME COLUMN {column} TO {other}")
        with pytest.raises(StoreError, match=f"column {column}, which identifies the rows, was renamed or dropped"):
            typed(ORDERS)
        exporter.spark.sql(f"ALTER TABLE {table} RENAME COLUMN {other} TO {column}")


@pytest.mark.long
def test_what_is_within_a_column_grows_too(exporter: Exporter, typed: Callable[..., dict[str, Any]]) -> None:
    def spec(fields: str) -> dict[str, Any]:
        within = f"buyer STRUCT<name: STRING{fields}>, lines ARRAY<STRUCT<sku: STRING{fields}>>"
        return {**ORDERS, "schema": f"id STRING, {within}"}

    def body(number: int) -> tuple[str, bytes]:
        one = {"name": "n", "sku": "s", "age": number}
        return "Orders", json.dumps({"id": str(number), "buyer": one, "lines": [one]}).encode()

    write(exporter.store, [body(1)])
    typed(spec(""))
    write(exporter.store, [body(1), body(2)])
    typed(spec(", age: INT"))
    write(exporter.store, [body(1), body(2), body(3)])
    typed(spec(""))  # an older spec
    found = [(row.id, row.buyer.name, row.buyer.age, row.lines[0].age) for row in exporter.rows("orders")]
    assert found == [("1", "n", None, None), ("2", "n", 2, 2), ("3", "n", None, None)]
    with pytest.raises(StoreError, match=r"its column buyer\.age is int, not string"):
        typed(spec(", age: STRING"))


NAMES = ["row", "a.b", "t`k", "older", "_here", "here", "there", "_file", "_key_0"]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
@pytest.mark.long
def test_columns_may_have_any_names(
    exporter: Exporter, typed: Callable[..., dict[str, Any]], table_format: str
) -> None:
    names = [name for name in NAMES if (table_format, name) != ("iceberg", "_file")]  # which is Iceberg's own
    schema = ", ".join(f"{quoted(name)} INT" for name in names)
    keyed = {**ORDERS, "schema": schema, "key": names, "metadata_prefix": "m.", "partition_by": ["a.b", "t`k"]}
    plain = {**keyed, "topic": "Others", "key": [], "table": "others"}
    bodies = [json.dumps(dict.fromkeys(names, number % 2)).encode() for number in range(4)]
    arguments = ("--format", table_format)
    for end in (2, 4):  # the second run has rows to replace
        placed = write(exporter.store, [(topic, body) for body in bodies[:end] for topic in ("Orders", "Others")])
        typed(keyed, plain, arguments=arguments)
    again = typed(keyed, plain, arguments=(*arguments, "--starting-timestamp", "0", "--retention", "36500"))
    assert again["undecoded"] == 0

    def offsets(name: str) -> list[int]:
        if table_format == "iceberg":
            return sorted(table_of(exporter, name).scan().to_arrow()["m.physical_offset"].to_pylist())
        found = exporter.spark.read.format("delta").load(str(exporter.work / name))
        return sorted(row["m.physical_offset"] for row in found.collect())

    assert (offsets("orders"), offsets("others")) == (placed[4::2], placed[1::2])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"schema": "id VARCHAR(10)", "key": []}, r"column id is varchar\(10\), for which tables have STRING"),
        ({"schema": "id STRING, a ARRAY<STRUCT<b: CHAR(2)>>"}, r"column a.element.b is char\(2\), for which"),
        ({"schema": "id STRING,"}, "topic 'Orders': its json schema cannot be used"),
        ({"format": "avro", "schema": "{}"}, "topic 'Orders': its avro schema cannot be used"),
        ({"key": ["nothing"]}, "key 'nothing' is not a primitive column"),
        ({"cluster_by": ["nothing"]}, "cluster_by 'nothing' is not a column"),
        ({"schema": "id STRING, tags STRING"}, "column 'tags' of the schema"),
        ({"topic": "Nowhere"}, "has no topic 'Nowhere'"),
    ],
    ids=["varchar", "char", "ddl", "avro", "key", "cluster", "names", "topic"],
)
def test_a_spec_that_cannot_be_used_is_told_before_anything_is_written(
    exporter: Exporter, typed: Callable[..., dict[str, Any]], changed: dict[str, Any], said: str
) -> None:
    write(exporter.store, [order("a", 1)])
    with pytest.raises(OptionError, match=said):
        typed({**ORDERS, **changed})
    assert not (exporter.work / "orders").exists()
