"""Messages of light queues (LMQ) by their places there, in every way of reading, and offsets of their consumers."""

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rmq_formats.errors import OptionError, StoreLayoutError
from rmq_formats.read.lag import plan_lag, read_lag
from rmq_formats.read.plan import ReadPlan, plan_read
from rmq_formats.read.query import AccessPath, Query, QueueBounds, ReadOptions
from rmq_formats.read.task import read_task
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from rmq_offline.spark.commitlog_source import CommitLogSource
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.cli.conftest import Rmq
from tests.layouts.test_sources import rows_of
from tests.support.oracles.light_queues import light_places
from tests.support.stores.light_records import LightQueues
from tests.support.stores.rebuilt_stores import rebuild
from tests.support.stores.store_files import write_commitlog

Golden = Callable[[str], Path]
DEVICE = "%LMQ%device0"


def units(store: Path, name: str) -> list[int]:
    """Physical offsets in a light queue's files, by place."""
    data = b"".join(path.read_bytes() for path in sorted((store / "consumequeue" / name / "0").iterdir()))
    found = [struct.unpack_from(">qi", data, at) for at in range(0, len(data), 20)]
    return [offset for offset, size in found if size]


def physical_offsets(store: Path, query: Query, access_path: AccessPath) -> list[int]:
    plan = plan_read(open_store(str(store)), query, access_path=access_path)
    batches: Iterator = (
        batch for task in plan.tasks for batch in read_task(str(store), task, ReadOptions(("physical_offset",), query))
    )
    return [offset for batch in batches for offset in batch.column(0).to_pylist()]


@pytest.mark.parametrize("access_path", [AccessPath.SCAN, AccessPath.CONSUMEQUEUE, AccessPath.AUTO])
def test_each_queue_has_the_messages_of_its_units(access_path: AccessPath, golden: Golden) -> None:
    store = golden("lmq") / "store"
    names = sorted(path.name for path in (store / "consumequeue").glob("%LMQ%*"))[::9]
    assert DEVICE in names
    for name in names:
        expected = units(store, name)
        assert physical_offsets(store, Query(topics=frozenset([name])), access_path) == expected
        bounds = {(name, 0): QueueBounds(1, 3)}
        query = Query(queues={name: frozenset([0])}, bounds=bounds)
        assert physical_offsets(store, query, access_path) == expected[1:3]


def test_odd_lists_are_read_as_java_dispatches_them(golden: Golden) -> None:
    """By a scan alone: the store has no queues; the oracle says what stands in each."""
    store = golden("lmq_odd") / "store"
    expected: dict[tuple[str, int], list[int]] = {}
    for message in Store(store).messages():
        if message.sys_flag & 12 in {0, 8}:
            for name, queue_id, _ in light_places(message):
                expected.setdefault((name, queue_id), []).append(message.physical_offset)
    names = [name for name, _ in expected if name.startswith("%LMQ%")]
    assert len(names) > 40
    for name in names:
        found = [message.physical_offset for message in Store(store).messages(name) if message.topic != name]
        assert found == expected[name, 0]


def test_messages_come_as_they_were_stored(golden: Golden) -> None:
    store = Store(golden("lmq") / "store")
    found = list(store.messages(DEVICE))
    assert [message.physical_offset for message in found] == units(golden("lmq") / "store", DEVICE)
    for place, message in enumerate(found):
        assert (DEVICE, 0, place) in light_places(message)
        assert message.topic != DEVICE
    assert list(store.messages(DEVICE, 0, 3, 7)) == found[3:7] == list(store.messages(DEVICE, None, 3, 7))
    assert store.query(topic=DEVICE, queue_id=0, offset=5) == [found[5]]
    assert store.query(topic=DEVICE, queue_id=0, offset=1 << 40) == []
    assert store.query(topic=DEVICE, queue_id=1, offset=5) == []
    assert store.query(topic=DEVICE, time=found[4].store_timestamp_ms)[0].store_timestamp_ms >= (
        found[4].store_timestamp_ms
    )
    key = next(message for message in found if message.properties.get("KEYS"))
    assert key in store.query(topic=DEVICE, key=key.properties["KEYS"].split()[0])


def test_times_are_looked_up_without_queues_too(golden: Golden, golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    moment = list(Store(store).messages(DEVICE))[4].store_timestamp_ms
    with_queues = Store(store).query(topic=DEVICE, time=moment)
    (store / "consumequeue").rename(store.parent / "elsewhere")
    plans: list[ReadPlan] = []
    assert Store(store).query(topic=DEVICE, time=moment, on_plan=plans.append) == with_queues
    assert [plan.access_path for plan in plans] == [AccessPath.SCAN]


def test_the_index_is_not_asked_for_light_queues(golden: Golden) -> None:
    query = Query(topics=frozenset([DEVICE]), key="k")
    with pytest.raises(OptionError, match="the Index has no keys of light queues"):
        plan_read(open_store(str(golden("lmq") / "store")), query, access_path=AccessPath.INDEX)


def test_topics_and_light_queues_are_read_together(golden: Golden) -> None:
    store = golden("lmq") / "store"
    orders = [message.physical_offset for message in Store(store).messages("Orders")]
    rows = rows_of(CommitLogSource, store, subscribe=f"Orders,{DEVICE}")
    assert {row["physical_offset"] for row in rows} == {*orders, *units(store, DEVICE)}
    assert len(rows) == len({row["physical_offset"] for row in rows})
    by_pattern = rows_of(CommitLogSource, store, subscribePattern="%LMQ%device[01]")
    assert {row["physical_offset"] for row in by_pattern} == {*units(store, DEVICE), *units(store, "%LMQ%device1")}
    values = Query(topics=frozenset([DEVICE]), topic_values=frozenset(["Orders"]))
    found = physical_offsets(store, values, AccessPath.CONSUMEQUEUE)
    assert found == sorted(set(orders) & set(units(store, DEVICE)))
    assert found == physical_offsets(store, values, AccessPath.SCAN)
    assert 0 < len(found) < len(units(store, DEVICE))


def test_sources_take_offsets_of_light_queues(golden: Golden) -> None:
    store = golden("lmq") / "store"
    options = {
        "assign": json.dumps({DEVICE: [0]}), "startingOffsets": json.dumps({DEVICE: {"0": 2}}),
        "endingOffsets": json.dumps({DEVICE: {"0": 6}}),
    }  # fmt: skip
    assert [row["physical_offset"] for row in rows_of(CommitLogSource, store, **options)] == units(store, DEVICE)[2:6]
    rows = rows_of(ConsumeQueueSource, store, **options)
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in rows] == [
        (DEVICE, 0, at) for at in (2, 3, 4, 5)
    ]
    assert [row["physical_offset"] for row in rows] == units(store, DEVICE)[2:6]


def test_query_prints_a_message_of_a_light_queue(rmq: Rmq, golden: Golden) -> None:
    store = golden("lmq") / "store"
    result = rmq("query", store, "--topic", DEVICE, "--queue", 0, "--offset", 2, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["physical_offset"] == units(store, DEVICE)[2]
    absent = rmq("query", store, "--topic", "%LMQ%nobody", "--queue", 0, "--offset", 2)
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert "no such topic: %LMQ%nobody" in absent.stderr


def test_a_log_of_many_light_queues_is_filtered_by_one(tmp_path: Path) -> None:
    light = LightQueues()
    stored = [light.message(*(f"%LMQ%{(first + n) % 1000}" for n in range(0, 300, 3))) for first in range(400)]
    write_commitlog(tmp_path, stored, 1 << 20)
    scanned = [message.physical_offset for message in Store(tmp_path).messages("%LMQ%77")]
    rebuild(tmp_path)
    assert units(tmp_path, "%LMQ%77") == scanned != []


# --- offsets of consumers ---------------------------------------------------------------------


def lag(store: Path) -> dict[tuple[str, str, int], dict]:
    tasks = plan_lag(open_store(str(store)), None, Query())
    rows = [row for task in tasks for row in read_lag(str(store), task).to_pylist()]
    return {(row["group"], row["topic"], row["queue_id"]): row for row in rows}


def test_lag_in_light_queues_is_told(golden: Golden) -> None:
    store = golden("lmq") / "store"
    config = json.loads((store / "config" / "lmqConsumerOffset.json").read_text().replace("{0:", '{"0":'))
    found = lag(store)
    for name, offset in config["lmqOffsetTable"].items():
        topic, _, group = name.partition("@")
        row, end = found[group, topic, 0], len(units(store, topic))
        assert (row["committed_offset"], row["max_offset"], row["lag_messages"]) == (offset, end, end - offset)
        assert (row["next_timestamp"] is not None) == (offset < end)
    assert ("CID_RMQ_SYS_TRANS", "RMQ_SYS_TRANS_HALF_TOPIC", 0) in found


def test_offsets_are_read_from_the_backup_and_never_from_two_files(golden_copy: Golden) -> None:
    store = golden_copy("lmq")
    expected = lag(store)
    path = store / "config" / "lmqConsumerOffset.json"
    path.rename(path.with_name(f"{path.name}.bak"))
    assert lag(store) == expected
    (store / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    with pytest.raises(StoreLayoutError, match="move away the file that the broker does not read"):
        lag(store)
