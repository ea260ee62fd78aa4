"""Engines read a store as a table: the same rows, no more columns than asked for, by the fitting access path."""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datafusion
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from rmq_formats import Query, Store, records
from rmq_formats.errors import FormatError, OptionError, StoreNotFoundError
from rmq_formats.read import task
from rmq_formats.records import Records
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import flip, write_commitlog
from tests.support.stores.store_lives import FIRST_MS, LogWriter

Golden = Callable[[str], Path]
Engine = Callable[[Records, list[str]], pa.Table]
COLUMNS = ["topic", "queue_id", "queue_offset", "physical_offset", "size", "tags", "keys", "body"]
SEGMENT_BYTES = 1048576  # of the golden stores
field = pc.field


@pytest.fixture
def mixed(golden: Golden) -> Store:
    return Store(golden("mixed") / "store")


@pytest.fixture(scope="module")
def damaged(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with a damaged body, and with a stretch that is no record."""
    root = Path(shutil.copytree(golden("mixed") / "store", tmp_path_factory.mktemp("damaged") / "store"))
    places = Store(root).to_table(["physical_offset"])["physical_offset"].to_pylist()
    flip(root, places[1] + 95, SEGMENT_BYTES)
    flip(root, places[900] + 5, SEGMENT_BYTES)
    return Store(root)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Many tasks of few records, and three threads."""
    before = pa.cpu_count()
    pa.set_cpu_count(3)
    monkeypatch.setattr(records, "SPLIT_BYTES", 1 << 16)
    yield
    pa.set_cpu_count(before)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], int]]:
    """Columns and bytes of each batch that is read of the log, as it is read."""
    found = []

    def counted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in task.read_tasks(*arguments):
            found.append((tuple(batch.schema.names), batch.nbytes))
            yield batch

    monkeypatch.setattr(records, "read_tasks", counted)
    return found


# --- engines ----------------------------------------------------------------------------------------


def by_duckdb(source: Records, columns: list[str]) -> pa.Table:
    with duckdb.connect() as connection:  # source is named in the query
        return connection.sql(f"select {', '.join(columns)} from source").to_arrow_table()


def sql(store: Records, text: str) -> list[tuple[Any, ...]]:
    """Ask DuckDB, which finds the store by the variable's name."""
    return duckdb.sql(text).fetchall()


def by_polars(source: Records, columns: list[str]) -> pa.Table:
    return pl.scan_pyarrow_dataset(source).select(columns).collect().to_arrow()


def by_polars_stream(source: Records, columns: list[str]) -> pa.Table:
    return pl.from_arrow(source).select(columns).to_arrow()


def by_datafusion(source: Records, columns: list[str]) -> pa.Table:
    context = datafusion.SessionContext()
    context.register_dataset("source", source)
    return context.sql(f"select {', '.join(columns)} from source").to_arrow_table()


def by_datafusion_stream(source: Records, columns: list[str]) -> pa.Table:
    return datafusion.SessionContext().from_arrow(source).select(*columns).to_arrow_table()


def by_pandas(source: Records, columns: list[str]) -> pa.Table:
    frame = pa.RecordBatchReader.from_stream(source).read_pandas()
    return pa.Table.from_pandas(frame[columns], preserve_index=False)


def by_pyarrow(source: Records, columns: list[str]) -> pa.Table:
    return source.to_table(columns)


ENGINES = [by_duckdb, by_polars, by_polars_stream, by_datafusion, by_datafusion_stream, by_pandas, by_pyarrow]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.usefixtures("small_tasks")
def test_each_engine_reads_the_messages(engine: Engine, golden: Golden, golden_name: str) -> None:
    store = Store(golden(golden_name) / "store")
    rows = engine(store, COLUMNS).sort_by("physical_offset").to_pylist()
    wanted = list(store.messages())
    assert [
        (row["physical_offset"], row["topic"], row["queue_id"], row["queue_offset"], row["size"], row["body"])
        for row in rows
    ] == [
        (message.physical_offset, message.topic, message.queue_id, message.queue_offset, message.size, message.body)
        for message in wanted
    ]
    assert [row["tags"] for row in rows] == [message.tags for message in wanted]
    split = [(message.properties.get("KEYS") or "").split(" ") for message in wanted]
    assert [list(row["keys"]) for row in rows] == [[key for key in keys if key] for keys in split]


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_shows_damage_as_the_mode_says(engine: Engine, damaged: Store) -> None:
    rows = engine(damaged, ["physical_offset", "topic", "record_error"])
    assert rows.num_rows == 3234
    errors = [row for row in rows.to_pylist() if row["record_error"]]
    assert len(errors) == 2
    assert {row["topic"] is None for row in errors} == {True, False}
    assert engine(damaged.arrow(mode="DROPMALFORMED"), ["topic"]).num_rows == 3232
    with pytest.raises(Exception, match="body CRC"):  # each engine has an error of its own
        engine(damaged.arrow(mode="FAILFAST"), ["topic"])


@pytest.mark.parametrize("engine", ENGINES)
def test_each_engine_reads_an_empty_store_and_tells_of_a_missing_one(engine: Engine, tmp_path: Path) -> None:
    write_commitlog(tmp_path / "empty", [], 4096)
    assert engine(Store(tmp_path / "empty"), ["topic", "size"]).num_rows == 0
    with pytest.raises(Exception, match="nowhere"):
        engine(Store(tmp_path / "nowhere"), ["topic"])


def test_pyarrow_raises_our_own_errors(damaged: Store, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        damaged.arrow(mode="FAILFAST").to_table()
    assert caught.value.physical_offset is not None
    with pytest.raises(StoreNotFoundError):
        Store(tmp_path / "nowhere").to_table()
    with pytest.raises(OptionError, match="no_such"):
        damaged.to_table(["no_such"])


# --- what is read -----------------------------------------------------------------------------------


def test_no_column_is_read_that_is_not_asked_for(mixed: Store, reads: list[tuple[tuple[str, ...], int]]) -> None:
    def columns(action: Callable[[], object]) -> set[tuple[str, ...]]:
        reads.clear()
        action()
        return {names for names, _ in reads}

    context = datafusion.SessionContext()
    context.register_dataset("store", mixed)
    grouped = "select topic, count(*) from store group by topic"
    assert columns(lambda: sql(mixed, grouped)) == {("topic",)}
    assert columns(lambda: context.sql(grouped).collect()) == {("topic",)}
    lazy = pl.scan_pyarrow_dataset(mixed)
    assert columns(lambda: lazy.group_by("topic").len().collect()) == {("topic",)}
    assert columns(lambda: mixed.to_table(columns={"t": pc.utf8_upper(field("topic"))})) == {("topic",)}
    assert columns(mixed.count_rows) == {("size",)}
    assert columns(lambda: context.sql("select count(*) from store").collect()) == {("size",)}
    compared = "select sum(size) from store where tags = 'TagA'"
    assert columns(lambda: sql(mixed, compared)) == {("size", "tags")}
    assert columns(lambda: context.sql(compared).collect()) == {("size", "tags")}
    assert columns(lambda: lazy.filter(pl.col("tags") == "TagA").select(pl.col("size").sum()).collect()) == {
        ("size", "tags")
    }


def test_rows_that_a_filter_drops_are_not_copied(mixed: Store, reads: list[tuple[tuple[str, ...], int]]) -> None:
    wanted = sum(len(message.body) for message in mixed.messages("Orders"))
    assert sql(mixed, "select sum(octet_length(body)) from store where topic = 'Orders'") == [(wanted,)]
    few = sum(size for _, size in reads)
    reads.clear()
    mixed.to_table(["body", "topic"])
    assert wanted < few < sum(size for _, size in reads) / 4


def access_path(source: Records, condition: Any) -> str:
    return str(source.plan(filter=condition).access_path)


def test_filters_take_the_fitting_access_path(mixed: Store) -> None:
    message = next(message for message in mixed.messages("Orders") if message.queue_offset == 7)
    orders = mixed.arrow(topic="Orders")
    one = (field("queue_id") == message.queue_id) & (field("queue_offset") == message.queue_offset)
    assert access_path(orders, one) == "consumequeue"
    assert access_path(orders, field("uniq_key") == message.uniq_key) == "index"
    assert access_path(mixed, field("msg_id") == message.msg_id) == "msgId"
    assert access_path(mixed, field("topic") == "Orders") == "scan"
    after = mixed.plan(filter=field("physical_offset") >= SEGMENT_BYTES)
    assert 0 < after.scanned_bytes < mixed.plan().scanned_bytes - SEGMENT_BYTES / 2
    late = mixed.plan(filter=field("store_timestamp") >= pa.scalar(1 << 53, pa.timestamp("us", tz="UTC")))
    assert late.scanned_bytes < mixed.plan().scanned_bytes
    keyed = next(message for message in mixed.messages("Orders") if "KEYS" in message.properties)
    key = keyed.properties["KEYS"].split(" ")[0]
    found = mixed.arrow(["physical_offset"], query=Query(topics=frozenset(["Orders"]), key=key))
    assert str(found.plan().access_path) == "index"
    assert keyed.physical_offset in found.to_table()["physical_offset"].to_pylist()


def test_sql_finds_a_message_by_its_queue_offset(mixed: Store) -> None:
    message = next(message for message in mixed.messages("Orders") if message.queue_offset == 7)
    at = f"queue_id = {message.queue_id} and queue_offset = {message.queue_offset}"
    assert sql(mixed.arrow(topic="Orders"), f"select msg_id from store where {at}") == [(message.msg_id,)]


SOME_TIME = 1_795_000_000_000_000


@pytest.mark.parametrize(
    "condition",
    [
        field("topic") == "Orders",
        field("topic").isin(["Orders", "Tx", "NoSuchTopic"]),
        field("topic").isin(pa.array([], pa.string())),
        (field("topic") == "Orders") | (field("queue_id") == pa.scalar(2, pa.int32())),
        (field("topic") == "Orders") & (field("topic") == "Tx"),
        (field("queue_id") == pa.scalar(1, pa.int32())) & (field("queue_offset") > 4) & (field("queue_offset") <= 9),
        field("queue_offset").isin([2, 5]) & field("queue_id").isin(pa.array([0, 3], pa.int32())),
        field("queue_id") < 0,
        field("tags") == "TagA",
        field("tags") != "TagA",
        (field("physical_offset") > 50_000) & (field("physical_offset") < 1_200_000),
        field("physical_offset") > (1 << 63) - 1,
        field("physical_offset") <= (1 << 63) - 1,
        field("physical_offset") >= -(1 << 63),
        field("record_error").is_valid(),
        field("record_error").is_null() & (field("size") > 500),
        field("msg_id") == "no message id",
        field("store_timestamp") >= pa.scalar(-(1 << 62), pa.timestamp("us", tz="UTC")),
    ],
)
@pytest.mark.parametrize("topic", [None, "Orders"])
def test_a_filter_that_is_pushed_gives_the_rows_that_it_selects(
    damaged: Store, condition: Any, topic: str | None
) -> None:
    source = damaged.arrow(topic=topic)
    everything = source.to_table()
    wanted = everything.filter(condition)["physical_offset"].to_pylist()
    assert source.to_table(filter=condition)["physical_offset"].to_pylist() == wanted
    assert source.count_rows(filter=condition) == len(wanted)
    narrower = source.filter(condition)
    assert [place for batch in narrower for place in batch["physical_offset"].to_pylist()] == wanted
    assert pa.table(narrower)["physical_offset"].to_pylist() == wanted
    assert (
        narrower.filter(field("size") > 300).count_rows()
        == everything.filter(condition & (field("size") > 300)).num_rows
    )


def test_a_filter_on_queue_offsets_finds_what_stands_behind_a_closed_gap(tmp_path: Path) -> None:
    log = LogWriter()
    for place, queue_offset in enumerate([0, 1, 2, 3, 9, 10, 11, 0, 12]):
        log.add("Orders", queue_offset, "body" * 8000, FIRST_MS + place, place=place)
    orders = Store(log.save(tmp_path / "store")).arrow(["queue_id", "queue_offset"], topic="Orders")
    for first, wanted in [(0, [0, 1, 2, 3, 0]), (3, [3]), (4, []), (9, [9, 10, 11, 12]), (12, [12])]:
        between = (field("queue_offset") >= first) & (field("queue_offset") < first + 5)
        found = orders.to_table(filter=between & (field("queue_id") == 0))
        assert found["queue_offset"].to_pylist() == wanted


def test_a_filter_on_a_light_queue_compares_topic_and_queue_of_the_messages(golden: Golden) -> None:
    light = Store(golden("lmq") / "store").arrow(["topic", "queue_id"], topic="%LMQ%device1")
    everything = light.to_table()
    for condition in [field("topic") == "Orders", field("queue_id") == 1, field("queue_id").isin([1, 3])]:
        wanted = everything.filter(condition)
        assert wanted.num_rows
        assert light.to_table(filter=condition) == wanted


def test_an_expression_may_name_a_column_by_its_number(mixed: Store) -> None:
    number = field(mixed.schema.names.index("queue_id"))
    wanted = mixed.to_table(["size"], filter=field("queue_id") == 1)
    assert mixed.to_table(["size"], filter=number == 1) == wanted
    assert mixed.count_rows(number == 1) == wanted.num_rows
    assert mixed.to_table({"queue": number})["queue"] == mixed.to_table(["queue_id"])["queue_id"]


def test_columns_may_be_any_iterable_of_names_but_a_text(mixed: Store) -> None:
    wanted = mixed.to_table(["topic", "size"])
    for columns in (np.array(["topic", "size"]), (name for name in ("topic", "size")), wanted.to_pandas().columns):
        assert mixed.to_table(columns) == wanted
    for read in (mixed.to_table, mixed.to_pandas, mixed.arrow):
        with pytest.raises(OptionError, match="columns 'topic': give a list of names"):
            read("topic")


def test_a_query_refuses_a_text_where_a_set_belongs() -> None:
    for name in ("topics", "tags"):
        with pytest.raises(OptionError, match=f"{name} 'TagA' of a query: give a frozenset of texts"):
            Query(**{name: "TagA"})  # type: ignore[arg-type] # which is what is tested


def test_filters_on_times_select_to_the_millisecond(mixed: Store) -> None:
    times = np.unique(mixed.to_table(["store_timestamp"])["store_timestamp"].cast(pa.int64()).to_numpy())
    for first, last in [(times[3], times[9]), (times[5] + 1, times[7] - 1), (times[4], times[4])]:
        between = f"store_timestamp between make_timestamptz({first}) and make_timestamptz({last})"
        ((count,),) = sql(mixed, f"select count(*) from store where {between}")
        wanted = mixed.to_table(["store_timestamp"])["store_timestamp"].cast(pa.int64()).to_numpy()
        assert count == ((wanted >= first) & (wanted <= last)).sum()


def test_sums_are_not_missed_where_nobody_sees_them(damaged: Store) -> None:
    seen, unseen = damaged.arrow(), damaged.arrow([name for name in damaged.schema.names if name != "record_error"])
    assert seen.to_table().drop_columns("record_error") == unseen.to_table()


# --- threads ----------------------------------------------------------------------------------------


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "rmq-read"]


@pytest.mark.usefixtures("small_tasks")
def test_threads_give_the_order_of_the_log(mixed: Store) -> None:
    assert len(mixed.plan().tasks) > 20
    one = mixed.scanner(use_threads=False).to_table()
    assert pa.Table.from_batches(mixed) == one
    assert readers() == []


@pytest.mark.usefixtures("small_tasks")
def test_closing_early_stops_the_work(mixed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []

    def counted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        begun.append(arguments)
        yield from threads_read_task(*arguments)

    threads_read_task = task.read_task
    monkeypatch.setattr(task, "read_task", counted)
    batches = iter(mixed)
    next(batches)
    assert len(readers()) == 3
    batches.close()  # type: ignore[attr-defined] # it is a generator
    assert readers() == []
    assert 0 < len(begun) <= 5
    begun.clear()
    stream = pa.RecordBatchReader.from_stream(mixed)
    assert stream.read_next_batch().num_rows
    del stream
    assert readers() == []
    assert 0 < len(begun) <= 5


@pytest.mark.usefixtures("small_tasks")
def test_an_engine_that_has_enough_ends_the_work(mixed: Store) -> None:
    for action in (
        lambda: len(sql(mixed, "select topic, body from store limit 2")) == 2,
        lambda: pl.scan_pyarrow_dataset(mixed).head(3).collect().height == 3,
        lambda: mixed.head(3).num_rows == 3,
    ):
        assert action()
        for thread in threading.enumerate():  # what Arrow's scanner took ahead is let go a moment later
            if thread.name == "rmq-read":
                thread.join(60)
                assert not thread.is_alive()


@pytest.mark.usefixtures("small_tasks")
def test_damage_comes_behind_the_batches_before_it(damaged: Store) -> None:
    rows = 0
    batches = iter(damaged.arrow(["size"], mode="FAILFAST", query=Query(first_physical_offset=1 << 16)))
    with pytest.raises(FormatError):  # noqa: PT012 # counts what comes before it
        while True:
            rows += next(batches).num_rows
    assert rows > 300
    assert readers() == []


@pytest.mark.usefixtures("small_tasks")
def test_a_scan_ends_where_the_log_ended_when_it_began(tmp_path: Path) -> None:
    messages = [plain_message() for _ in range(2000)]
    write_commitlog(tmp_path, messages[:1000], 1 << 20)
    store = Store(tmp_path)
    batches = iter(store.arrow(["size"]))
    rows = next(batches).num_rows
    write_commitlog(tmp_path, messages, 1 << 20)
    assert rows + sum(batch.num_rows for batch in batches) == 1000
    assert store.count_rows() == 2000


FEW_ROWS_OF_A_SLOW_STORE = """
import sys, time
from rmq_formats import Store, records

def read_slowly(*arguments):
    for batch in read_tasks(*arguments):
        yield batch
        time.sleep(0.2)

read_tasks, records.read_tasks, records.SPLIT_BYTES = records.read_tasks, read_slowly, 1 << 16
print(Store(sys.argv[1]).head(3, ["size"]).num_rows)
"""


def test_a_program_may_end_while_arrow_still_reads(mixed: Store) -> None:
    command = [sys.executable, "-c", FEW_ROWS_OF_A_SLOW_STORE, mixed.path]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.long
def test_a_stream_that_nobody_closes_does_not_hold_up_the_end(mixed: Store) -> None:
    code = (
        "import sys, pyarrow as pa\n"
        "from rmq_formats import Store, records\n"
        "records.SPLIT_BYTES = 1 << 16\n"
        "pa.set_cpu_count(3)\n"
        "stream = pa.RecordBatchReader.from_stream(Store(sys.argv[1]))\n"
        "print(stream.read_next_batch().num_rows > 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, mixed.path], check=False, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


# --- the object -------------------------------------------------------------------------------------


def test_what_pyarrow_does_without_the_scanner_is_an_error_that_says_so(mixed: Store) -> None:
    for action in (
        lambda: ds.Scanner.from_dataset(mixed).to_table(),
        lambda: ds.dataset([mixed]).to_table(),
        lambda: mixed.sort_by("size").to_table(),
        lambda: mixed.replace_schema(mixed.schema).to_table(),
    ):
        with pytest.raises(OSError, match=r"take its to_table\(\) first"):
            action()


def test_records_survive_a_pickle(mixed: Store) -> None:
    import pickle

    again = pickle.loads(pickle.dumps(mixed))
    assert (type(again), again.path) == (Store, mixed.path)
    some = mixed.arrow(["topic", "size"], topic="Orders").filter(field("size") > 300)
    assert pickle.loads(pickle.dumps(some)).to_table() == some.to_table()


def test_records_are_written_as_parquet_in_batches(mixed: Store, tmp_path: Path) -> None:
    # without it threads write batches in the order in which they come to them
    ds.write_dataset(mixed.arrow(["topic", "body"]), tmp_path / "out", format="parquet", preserve_order=True)
    assert ds.dataset(tmp_path / "out").to_table() == mixed.to_table(["topic", "body"])


def test_a_store_becomes_dataframes_of_pandas_and_polars(mixed: Store) -> None:
    condition = field("topic") == "Orders"
    rows = mixed.to_table(COLUMNS, filter=condition).to_pylist()
    assert rows
    assert mixed.to_polars(COLUMNS, condition).to_dicts() == rows
    assert mixed.to_pandas(["topic", "size"], condition).to_dict("records") == [
        {"topic": row["topic"], "size": row["size"]} for row in rows
    ]


def test_sql_reads_the_records_as_messages(mixed: Store, reads: list[tuple[tuple[str, ...], int]]) -> None:
    answer = mixed.sql("select topic, count(*) as n from messages where queue_id = 0 group by topic order by topic")
    topics = mixed.to_table(["topic", "queue_id"], filter=field("queue_id") == 0)["topic"].to_pylist()
    reads.clear()
    assert answer.fetchall() == [(topic, topics.count(topic)) for topic in sorted(set(topics))]
    assert {columns for columns, _ in reads} == {("topic", "queue_id")}
    with pytest.raises(duckdb.Error, match="nowhere"):
        mixed.sql("select * from nowhere")
    with pytest.raises(StoreNotFoundError, match=r"^/nowhere: no such store$"):
        Store("/nowhere").sql("select count(*) from messages")


def test_sql_reads_times_without_a_zone_as_utc_on_any_machine(mixed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    times = mixed.to_table(["store_timestamp"])["store_timestamp"].to_pylist()
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    since = f"store_timestamp >= TIMESTAMP '{times[2000]:%Y-%m-%d %H:%M:%S.%f}'"
    (answer,) = mixed.sql(f"select count(*), min(store_timestamp)::varchar from messages where {since}").fetchall()
    later = [time for time in times if time >= times[2000]]
    assert answer == (len(later), f"{min(later):%Y-%m-%d %H:%M:%S.%f}".rstrip("0") + "+00")


def test_a_store_has_a_length_and_is_true(mixed: Store, tmp_path: Path) -> None:
    assert len(mixed) == mixed.count_rows()
    assert len(mixed.filter(field("topic") == "Orders")) == mixed.count_rows(field("topic") == "Orders")
    assert Store(tmp_path)


def test_an_engine_that_is_not_installed_is_named(mixed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(OptionError, match=r"polars: is not installed\. Run pip install polars"):
        mixed.to_polars(["topic"])
