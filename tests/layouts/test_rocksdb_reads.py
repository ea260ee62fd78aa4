"""Reads by a ConsumeQueue in RocksDB: its units as rows, look-ups by queue offset, ends of queues, inspect."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs import rocksdb_queue as codec
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.read.lag import plan_lag, read_lag
from rmq_formats.read.plan import plan_read
from rmq_formats.read.query import AccessPath, Query, QueueBounds
from rmq_formats.read.queue_choice import choose_queues, open_units
from rmq_formats.read.queue_databases import QUEUE_DATABASES
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.store import Store
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.cli.conftest import Rmq
from tests.layouts.conftest import Untouched
from tests.layouts.test_rocksdb_verify import changed
from tests.layouts.test_sources import expected_records, rows_of

Golden = Callable[[str], Path]


def listed(golden: Golden, name: str) -> list[tuple]:
    """The units that Java lists: topic, queue, queue offset, physical offset, size, tags code."""
    rows = []
    for line in (golden(name) / "expected" / "rocksdb" / "consumequeue.tsv").read_text("ascii").splitlines():
        family, *texts = line.split("\t")
        key, value = map(bytes.fromhex, texts)
        if family == "default":
            numbers = [int.from_bytes(data, "big", signed=True) for data in (value[:8], value[8:12], value[12:20])]
            queue = int.from_bytes(key[-13:-9], "big"), int.from_bytes(key[-8:], "big")
            rows.append((key[5:-14].decode(), *queue, *numbers))
    return rows


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq", "rocksdb_crash"])
@pytest.mark.parametrize("split_bytes", ["1k", "64m"])
def test_each_unit_is_a_row(name: str, split_bytes: str, golden: Golden, untouched: Untouched) -> None:
    with untouched(golden(name) / "store"):
        rows = rows_of(ConsumeQueueSource, golden(name) / "store", splitBytes=split_bytes)
    # each unit is of one message
    assert sorted(tuple(row.values()) for row in rows) == sorted((*unit, 1) for unit in listed(golden, name))


def test_rows_are_chosen_by_topic_and_offset(golden: Golden) -> None:
    store = golden("rocksdb") / "store"
    offsets = json.dumps({"Orders": {"0": 3}}), json.dumps({"Orders": {"0": 7}})
    rows = rows_of(
        ConsumeQueueSource, store, assign='{"Orders":[0]}', startingOffsets=offsets[0], endingOffsets=offsets[1]
    )
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [
        ("Orders", 0, offset) for offset in range(3, 7)
    ]


def test_a_damaged_database_gives_no_rows_in_silence(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    path = store / "consumequeue" / "000011.sst"
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match="a RocksDB that cannot be read"):
        rows_of(ConsumeQueueSource, store)


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq"])
def test_a_message_is_looked_up_by_its_place_in_the_queue(name: str, golden: Golden, untouched: Untouched) -> None:
    store = golden(name) / "store"
    records = [row for row in expected_records(golden(name)) if not row["topic"].startswith(("%", "RMQ", "SCHED"))]
    plans = []
    with untouched(store):
        for row in records[:: len(records) // 20]:
            found = Store(store).query(
                topic=row["topic"], queue_id=row["queue_id"], offset=row["queue_offset"], on_plan=plans.append
            )
            assert [message.physical_offset for message in found] == [row["physical_offset"]]
    assert {(plan.access_path, plan.scanned_bytes) for plan in plans} == {(AccessPath.CONSUMEQUEUE, 0)}


def test_a_message_is_looked_up_by_its_place_in_a_light_queue(golden: Golden) -> None:
    units = {row[:3]: row[3] for row in listed(golden, "rocksdb_lmq") if row[0].startswith("%LMQ%device0")}
    plans = []
    for (topic, queue_id, offset), physical_offset in list(units.items())[:5]:
        found = Store(golden("rocksdb_lmq") / "store").query(
            topic=topic, queue_id=queue_id, offset=offset, on_plan=plans.append
        )
        assert [message.physical_offset for message in found] == [physical_offset]
    assert {plan.access_path for plan in plans} == {AccessPath.CONSUMEQUEUE}


def test_what_the_database_lacks_is_scanned(golden: Golden, golden_copy: Golden) -> None:
    query = Query(topics=frozenset(["Orders"]), bounds={("Orders", 0): QueueBounds(3, 4)})
    plan = plan_read(open_store(str(golden("rocksdb_crash") / "store")), query)
    assert plan.access_path is AccessPath.SCAN
    store = golden_copy("rocksdb")
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").mkdir()
    (store / "consumequeue" / "CURRENT").write_text("MANIFEST-000001\n")
    plan = plan_read(open_store(str(store)), query)
    assert plan.access_path is AccessPath.SCAN
    assert "a RocksDB that cannot be read" in plan.reason


def test_without_the_library_messages_are_scanned_for(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    store = golden("rocksdb") / "store"
    (message,) = Store(store).query(topic="Orders", queue_id=0, offset=3)
    assert (message.topic, message.queue_id, message.queue_offset) == ("Orders", 0, 3)
    with pytest.raises(StoreError, match=r"rmq-lake\[rocksdb\]"):
        rows_of(ConsumeQueueSource, store)


def lag(store: Path) -> list[dict]:
    files = open_store(str(store))
    tasks = plan_lag(files, None, Query())
    return [row for task in tasks for row in read_lag(files.root, task).to_pylist()]


def test_lag_is_counted_by_the_units(golden: Golden, untouched: Untouched) -> None:
    store, records = golden("rocksdb") / "store", expected_records(golden("rocksdb"))
    times = {(row["topic"], row["queue_id"], row["queue_offset"]): row["store_timestamp"] for row in records}
    ends: dict[tuple[str, int], int] = {}
    for topic, queue_id, queue_offset, *_ in listed(golden, "rocksdb"):
        ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), queue_offset + 1)
    with untouched(store):
        rows = lag(store)
    assert {row["topic"] for row in rows} >= {"Orders", "Ordered"}
    behind = 0
    for row in rows:
        queue = row["topic"], row["queue_id"]
        assert row["max_offset"] == ends.get(queue, 0)
        assert row["min_offset"] == 0
        if row["committed_offset"] is not None and row["lag_messages"]:
            behind += 1
            told = row["next_timestamp"].timestamp()
            assert round(told * 1000) == times[(*queue, row["committed_offset"])]
    assert behind


def test_lag_of_a_killed_broker_is_counted_by_the_log(golden: Golden) -> None:
    ends = {row["topic"]: row["max_offset"] for row in lag(golden("rocksdb_crash") / "store")}
    assert ends["RMQ_SYS_TRANS_HALF_TOPIC"] > 0


def test_a_group_at_a_gap_waits_for_the_message_after_it(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb")
    row = next(row for row in lag(store) if (row["committed_offset"] or 0) + 1 < row["max_offset"])
    topic, queue_id, gap = row["topic"], row["queue_id"], row["committed_offset"] or 0
    with changed(store) as (units, _):
        stored = units[codec.unit_key(topic, queue_id, gap + 1)]
        for offset in range(gap + 1):
            del units[codec.unit_key(topic, queue_id, offset)]
    files = open_store(str(store))
    with open_units(files, choose_queues(files)) as queues:
        queue = queues.units_of(topic, queue_id)
        message = queue.first_message(gap, gap + 2)
        assert message.queue_offset == gap + 1
        assert message.physical_offset == int.from_bytes(stored[:8], "big")
        assert queue.first_message(gap, gap + 1) is None
        assert queue.max_offset(message.physical_offset) == 0


def test_inspect_has_a_row_for_each_queue(golden: Golden, rmq: Rmq, untouched: Untouched) -> None:
    store = golden("rocksdb") / "store"
    with untouched(store):
        facts = json.loads(rmq("inspect", store, "--json").stdout)["consumequeue"]
        shown = " ".join(rmq("inspect", store).stdout.split())
    assert sum(queue["units"] for queue in facts) == 709
    (queue,) = (item for item in facts if (item["topic"], item["queue_id"]) == ("Tx", 0))
    assert (queue["min_offset"], queue["max_offset"], queue["first_physical_offset"]) == (0, 2, 1262834)
    assert "ConsumeQueue in a database: 16 topics, 49 queues, 709 units" in shown


def test_a_database_that_has_lost_its_file_current_is_not_shown_as_one_without_queues(
    golden: Golden, rmq: Rmq, tmp_path: Path
) -> None:
    directory = shutil.copytree(golden("rocksdb") / "store" / "consumequeue", tmp_path / "consumequeue")
    (directory / "CURRENT").unlink()
    for command in (("inspect", directory), ("dump", directory)):
        done = rmq(*command)
        assert done.exit_code != 0, command
        assert "a RocksDB that cannot be read" in done.stderr


def test_each_layout_with_a_database_of_queues_is_read() -> None:
    assert {layout for layout in StoreLayout if layout.rules.queue_signs} == QUEUE_DATABASES.keys()
    assert all(
        layout.rules.offline_write_refusal for layout in QUEUE_DATABASES
    )  # the reason not to read files in its place
