"""``Store`` on the golden stores: what it finds is what Java's own reading of them says."""

import json
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pandas
import pyarrow as pa
import pytest

import rmq_formats
from rmq_formats import Query, Store, StoredMessage
from rmq_formats.arrow.schema import COMMITLOG
from rmq_formats.codecs.layout import FLAG_TRANSACTION_MASK, FLAG_TRANSACTION_ROLLBACK
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.errors import DecodeError, FormatError, OptionError, StoreNotFoundError
from rmq_formats.read.plan import ReadPlan
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import flip, write_commitlog

Golden = Callable[[str], Path]
Record = dict[str, Any]


@pytest.fixture
def store(golden: Golden, golden_name: str) -> Store:
    return Store(golden(golden_name) / "store")


@pytest.fixture
def records(golden: Golden, golden_name: str) -> list[Record]:
    text = (golden(golden_name) / "expected" / "messages.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line]


@pytest.fixture
def mixed(golden: Golden, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(golden("mixed") / "store", tmp_path / "mixed"))


def offsets(found: Any) -> list[int]:
    return [item["physical_offset"] if isinstance(item, dict) else item.physical_offset for item in found]


def flat(message: StoredMessage) -> Record:
    """The fields that Java's reading has."""
    return {
        "physical_offset": message.physical_offset,
        "size": message.size,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "properties": message.properties,
        "body_base64": b64encode(message.body).decode(),
        "msg_id": message.msg_id,
    }


def plans(found: list[ReadPlan]) -> Callable[[ReadPlan], None]:
    return found.append


# --- messages ---------------------------------------------------------------------------------------


def test_messages_are_all_records_in_the_order_of_the_log(store: Store, records: list[Record]) -> None:
    found = [flat(message) for message in store.messages()]
    assert found == [{name: record[name] for name in found[0]} for record in records]


def test_messages_of_a_topic_a_queue_and_its_offsets(store: Store, records: list[Record]) -> None:
    topic, queue_id = records[len(records) // 2]["topic"], records[len(records) // 2]["queue_id"]
    own = [record for record in records if record["topic"] == topic]
    assert offsets(store.messages(topic)) == offsets(own)
    queue = [record for record in own if record["queue_id"] == queue_id]
    assert offsets(store.messages(topic, queue_id)) == offsets(queue)
    part = [record for record in queue if 2 <= record["queue_offset"] < 9]
    assert offsets(store.messages(topic, queue_id, 2, 9)) == offsets(part)
    both = [record for record in own if 2 <= record["queue_offset"] < 9]
    assert offsets(store.messages(topic, from_offset=2, to_offset=9)) == offsets(both)


def test_messages_of_tags_times_and_places(store: Store, records: list[Record]) -> None:
    tags = {record["properties"].get("TAGS") for record in records} - {None}
    some = sorted(tags)[:2]
    assert offsets(store.messages(tags=some)) == offsets(r for r in records if r["properties"].get("TAGS") in some)
    assert offsets(store.messages(tags=some[0])) == offsets(
        r for r in records if r["properties"].get("TAGS") == some[0]
    )
    first, end = records[30]["store_timestamp"], records[-30]["store_timestamp"]
    wanted = [record for record in records if first <= record["store_timestamp"] < end]
    assert offsets(store.messages(from_time=first, to_time=end)) == offsets(wanted)
    begin = datetime.fromtimestamp(first / 1000, timezone(timedelta(hours=8)))
    assert offsets(store.messages(from_time=begin, to_time=end)) == offsets(wanted)
    begin_offset, end_offset = records[10]["physical_offset"], records[20]["physical_offset"]
    found = store.messages(from_physical_offset=begin_offset, to_physical_offset=end_offset)
    assert offsets(found) == offsets(records[10:20])


def test_damage_is_left_out_unless_it_is_to_be_an_error(mixed: Path) -> None:
    second = offsets(Store(mixed).messages())[1]
    flip(mixed, second + 95, 1048576)
    found = offsets(Store(mixed).messages())
    assert (len(found), second in found) == (3233, False)
    with pytest.raises(FormatError, match="body CRC") as caught:
        list(Store(mixed).messages(strict=True))
    assert caught.value.physical_offset == second


@pytest.mark.parametrize("options", [{"queue_id": 1}, {"from_offset": 1}, {"to_offset": 1}])
def test_queue_and_queue_offset_need_a_topic(mixed: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="need a topic"):
        list(Store(mixed).messages(**options))


# --- look-ups ---------------------------------------------------------------------------------------


def is_indexed(record: Record) -> bool:
    return bool(record["sys_flag"] & FLAG_TRANSACTION_MASK != FLAG_TRANSACTION_ROLLBACK)


@pytest.fixture(params=["by its indexes", "by a scan"])
def searched(request: pytest.FixtureRequest, golden: Golden, golden_name: str, tmp_path: Path) -> Store:
    """A store with all its files, and one with its CommitLog only."""
    source = golden(golden_name) / "store"
    if request.param == "by its indexes":
        return Store(source)
    shutil.copytree(source / "commitlog", tmp_path / "bare" / "commitlog")
    return Store(tmp_path / "bare")


def test_a_key_finds_the_messages_that_have_it(searched: Store, records: list[Record]) -> None:
    keyed = [record for record in records if "KEYS" in record["properties"]]
    for record in keyed[:: len(keyed) // 6]:
        key = record["properties"]["KEYS"].split()[-1]
        wanted = [
            other
            for other in records
            if other["topic"] == record["topic"] and key in other["properties"].get("KEYS", "").split(" ")
        ]
        assert offsets(searched.query(key=key, topic=record["topic"])) == offsets(wanted)
        assert searched.query(key=f"{key}-no", topic=record["topic"]) == []
        assert searched.query(key=key, topic="NoSuchTopic") == []


def test_a_uniq_key_finds_its_message(searched: Store, records: list[Record]) -> None:
    own = [record for record in records if "UNIQ_KEY" in record["properties"]]
    for record in own[:: len(own) // 6]:
        uniq_key = record["properties"]["UNIQ_KEY"]
        wanted = [
            other
            for other in records
            if other["topic"] == record["topic"] and other["properties"].get("UNIQ_KEY") == uniq_key
        ]
        assert offsets(searched.query(uniq_key=uniq_key, topic=record["topic"])) == offsets(wanted)


def test_a_message_id_and_a_queue_offset_find_one_message(searched: Store, records: list[Record]) -> None:
    for record in records[:: len(records) // 6]:
        wanted = [{name: record[name] for name in ("physical_offset", "size", "topic", "queue_id", "queue_offset")}]
        for found in (
            searched.query(msg_id=record["msg_id"]),
            searched.query(msg_id=record["msg_id"].lower()),
            searched.query(topic=record["topic"], queue_id=record["queue_id"], offset=record["queue_offset"]),
        ):
            assert [{name: flat(message)[name] for name in wanted[0]} for message in found] == wanted
    assert searched.query(topic=records[0]["topic"], queue_id=0, offset=10**9) == []
    assert searched.query(topic=records[0]["topic"], queue_id=999, offset=0) == []


def test_a_message_id_of_another_place_or_host_finds_nothing(searched: Store, records: list[Record]) -> None:
    msg_id = records[5]["msg_id"]
    assert searched.query(msg_id=f"{msg_id[:-1]}{'1' if msg_id[-1] == '0' else '0'}") == []
    assert searched.query(msg_id=f"{'1' if msg_id[0] == '0' else '0'}{msg_id[1:]}") == []


def test_a_time_finds_the_first_message_since_then_of_each_queue(searched: Store, records: list[Record]) -> None:
    times = [record["store_timestamp"] for record in records[:: len(records) // 5]]
    topics = sorted({record["topic"] for record in records[:: len(records) // 4]})
    for time_ms in (0, *times, times[-1] + 1, records[-1]["store_timestamp"] + 1):
        for topic in topics:
            first: dict[int, int] = {}
            for record in records:
                if record["topic"] == topic and record["store_timestamp"] >= time_ms:
                    first.setdefault(record["queue_id"], record["physical_offset"])
            assert offsets(searched.query(topic=topic, time=time_ms)) == sorted(first.values())
            moment = datetime.fromtimestamp(time_ms / 1000, UTC)
            assert offsets(searched.query(topic=topic, time=moment, queue_id=0)) == [
                offset for queue_id, offset in first.items() if queue_id == 0
            ]


def test_a_plan_is_told(golden: Golden, mixed: Path) -> None:
    record = next(Store(mixed).messages("Orders"))
    lookups: dict[str, dict[str, Any]] = {
        "index": {"topic": "Orders", "uniq_key": record.uniq_key},
        "msgId": {"msg_id": record.msg_id},
        "consumequeue": {"topic": "Orders", "queue_id": record.queue_id, "offset": 0},
    }
    for access_path, lookup in lookups.items():
        found: list[ReadPlan] = []
        assert Store(mixed).query(**lookup, on_plan=plans(found)) == [record]
        assert [plan.access_path for plan in found] == [access_path]
    shutil.rmtree(mixed / "index")
    (mixed / "abort").touch()
    for access_path in ("index", "consumequeue"):
        found = []
        assert Store(mixed).query(**lookups[access_path], on_plan=plans(found)) == [record]
        assert [plan.access_path for plan in found] == ["scan"]


def test_a_queue_whose_records_are_gone_or_damaged_is_still_searched_by_time(mixed: Path) -> None:
    store = Store(mixed)
    queue = list(store.messages("Orders", 1))
    (mixed / "commitlog" / f"{0:020d}").unlink()  # as a broker deletes the oldest file
    left = [message for message in queue if message.physical_offset >= 1048576]
    assert store.query(topic="Orders", queue_id=1, time=0) == left[:1]
    for message in queue:
        if message.physical_offset >= 1048576:
            flip(mixed, message.physical_offset + 4, 1048576)
    assert store.query(topic="Orders", queue_id=1, time=0) == []


@pytest.mark.parametrize(
    ("lookup", "said"),
    [
        ({}, "give one of"),
        ({"topic": "T"}, "give one of"),
        ({"key": "a", "uniq_key": "b", "topic": "T"}, "give one of"),
        ({"key": "a"}, "needs a topic"),
        ({"time": 0}, "needs a topic"),
        ({"topic": "T", "offset": 0}, "needs a queue id"),
    ],
)
def test_a_lookup_of_no_known_kind_is_refused(mixed: Path, lookup: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        Store(mixed).query(**lookup)


def test_what_is_no_message_id_is_refused(mixed: Path) -> None:
    with pytest.raises(DecodeError):
        Store(mixed).query(msg_id="xyz")


# --- arrow ------------------------------------------------------------------------------------------


def test_arrow_has_the_columns_of_the_spark_source(store: Store, records: list[Record]) -> None:
    table = pa.Table.from_batches(store.arrow())
    assert table.schema.names == COMMITLOG.names
    assert table.num_rows == len(records)
    assert table["physical_offset"].to_pylist() == offsets(records)
    assert [dict(row) for row in table["properties"].to_pylist()] == [record["properties"] for record in records]


def test_arrow_gives_some_columns_of_some_records(store: Store, records: list[Record]) -> None:
    topic = records[0]["topic"]
    table = pa.Table.from_batches(store.arrow(["queue_offset", "topic"], topic=topic))
    assert table.schema.names == ["queue_offset", "topic"]
    assert table["queue_offset"].to_pylist() == [r["queue_offset"] for r in records if r["topic"] == topic]
    query = Query(end_physical_offset=records[7]["physical_offset"])
    assert sum(batch.num_rows for batch in store.arrow(["size"], query=query)) == 7


def test_arrow_gives_damage_as_rows_or_leaves_it_out_or_raises(mixed: Path) -> None:
    flip(mixed, 4, 1048576)
    errors = [e for batch in Store(mixed).arrow(["record_error"]) for e in batch.column(0).to_pylist() if e]
    assert errors == ["no record's magic number"]
    assert sum(batch.num_rows for batch in Store(mixed).arrow(["size"], mode="DROPMALFORMED")) == 3233
    with pytest.raises(FormatError):
        list(Store(mixed).arrow(mode="FAILFAST"))


def test_arrow_inflates_bodies_on_request(golden: Golden) -> None:
    store = Store(golden("mixed") / "store")
    stored, plain = (
        [
            body
            for batch in store.arrow(["body"], topic="Compressed", decompress=wanted)
            for body in batch[0].to_pylist()
        ]
        for wanted in (False, True)
    )
    assert len(stored) == len(plain)
    assert stored != plain


@pytest.mark.parametrize(
    "options", [{"columns": ["nosuch"]}, {"columns": []}, {"mode": "LENIENT"}, {"topic": "T", "query": Query()}]
)
def test_arrow_refuses_what_it_does_not_know(mixed: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        list(Store(mixed).arrow(**options))


# --- the object -------------------------------------------------------------------------------------


def test_segments_are_the_files_in_order(store: Store) -> None:
    segments = store.segments()
    assert [segment.start_offset for segment in segments] == sorted(segment.start_offset for segment in segments)
    assert all(Path(segment.path).stat().st_size == segment.size_bytes for segment in segments)


def test_topics_are_those_of_the_queues_or_of_the_log(searched: Store, records: list[Record]) -> None:
    assert searched.topics() == sorted({record["topic"] for record in records})


def test_a_store_may_be_a_path_a_text_or_a_uri(golden: Golden) -> None:
    path = golden("exotic") / "store"
    for given in (path, str(path), f"{path}/", path.as_uri()):
        assert len(list(Store(given).messages())) == 600
    assert repr(Store(path)) == f"Store({str(path)!r})"


def test_a_notebook_shows_a_small_card(store: Store, records: list[Record]) -> None:
    shown = store._repr_html_()
    assert shown.startswith("<div ")
    assert "://" not in shown.replace(store.path, ""), "it fetches something"
    assert f"0 to {records[-1]['physical_offset']:,}" in shown
    assert f"{datetime.fromtimestamp(records[0]['store_timestamp'] / 1000, UTC):%Y-%m-%d}" in shown
    assert min(record["topic"] for record in records) in shown


def test_a_notebook_shows_names_as_text(tmp_path: Path) -> None:
    root = tmp_path / "<b>store"
    write_commitlog(root, [], 4096)
    (root / "consumequeue" / "<script>").mkdir(parents=True)
    shown = Store(root)._repr_html_()
    assert "<b>" not in shown
    assert "<script>" not in shown
    assert "no messages" in shown


@pytest.mark.parametrize(
    ("tags", "queue_offsets"),
    [("a || b", [0, 1]), ("a", [0]), (["a", "c||d"], [0, 2]), ("*", [0, 1, 2, 3]), ("", [0, 1, 2, 3]), ([], [])],
)
def test_a_text_of_tags_is_an_expression(tmp_path: Path, tags: str | list[str], queue_offsets: list[int]) -> None:
    messages = [plain_message(properties_bytes=encode_properties({"TAGS": tag})) for tag in ("a", "b", "c||d")]
    write_commitlog(tmp_path, [*messages, plain_message()], 4096)
    assert [message.queue_offset for message in Store(tmp_path).messages(tags=tags)] == queue_offsets


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"queue_id": "0"}, "queue_id '0': give an int of 64 bits"),
        ({"from_offset": 1.5}, r"from_offset 1\.5: give an int of 64 bits"),
        ({"to_offset": 1 << 63}, "to_offset 9223372036854775808: give an int of 64 bits"),
        ({"from_time": "2026-01-01"}, "time '2026-01-01': give a datetime, or milliseconds since 1970 as an int"),
        ({"from_time": 1.7e12}, "time 1700000000000.0: give a datetime"),
        ({"to_time": pandas.NaT}, "time NaT: give a datetime"),
        ({"tags": b"TagA"}, "tags b'TagA': give texts"),
        ({"tags": 5}, "tags 5: give texts"),
    ],
)
def test_an_argument_of_another_type_is_named(golden: Golden, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        list(Store(golden("mixed") / "store").messages("Orders", **arguments))


def test_names_and_keys_that_are_no_texts_are_named(golden: Golden) -> None:
    store: Any = Store(golden("mixed") / "store")
    for read in (store.messages, store.arrow, partial(store.query, key="k")):
        with pytest.raises(OptionError, match=r"topic \['Orders'\]: give a text"):
            read(topic=["Orders"])
    for name, value in {"key": 4711, "uniq_key": b"U", "msg_id": b"7F"}.items():
        with pytest.raises(OptionError, match=f"{name} {value}: give a text"):
            store.query(topic="Orders", **{name: value})


def test_numbers_of_numpy_and_times_of_pandas_are_taken(golden: Golden) -> None:
    store = Store(golden("mixed") / "store")
    frame = store.arrow(topic="Orders").to_pandas(["queue_id", "queue_offset", "store_timestamp"])
    row = frame.iloc[40]
    (message,) = store.query(topic="Orders", queue_id=frame["queue_id"][40], offset=frame["queue_offset"][40])
    later = store.messages("Orders", row["queue_id"], from_time=row["store_timestamp"])
    assert message.physical_offset in offsets(later)
    milliseconds = frame["store_timestamp"].astype("datetime64[ms, UTC]").astype("int64")[40]
    assert offsets(store.messages("Orders", from_time=milliseconds)) == offsets(
        store.messages("Orders", from_time=row["store_timestamp"])
    )


def test_a_time_beyond_the_calendar_is_shown_as_a_number(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [plain_message()], 4096, first_store_timestamp_ms=1 << 62)
    assert f"{1 << 62} ms" in Store(tmp_path)._repr_html_()


def test_no_store_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path / "nowhere")
    for read in (store.segments, lambda: list(store.messages()), lambda: store.query(msg_id="0" * 32)):
        with pytest.raises(StoreNotFoundError, match="nowhere"):
            read()


def test_the_package_is_light_to_import_and_has_its_names() -> None:
    code = (
        "import sys, rmq_formats\n"
        "assert rmq_formats.__version__\n"
        "assert not {'numba', 'pyarrow', 'numpy'} & set(sys.modules), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    for name in rmq_formats.__all__:
        assert getattr(rmq_formats, name) is not None
    assert set(rmq_formats.__all__) <= set(dir(rmq_formats))
    with pytest.raises(AttributeError, match="nosuch"):
        rmq_formats.nosuch  # noqa: B018
