"""Queue files and a RocksDB beside each other: what goes further is read, files where both go as far."""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.errors import StoreError, StoreLayoutError, StoreLockedError
from rmq_formats.read import queue_choice
from rmq_formats.read.lag import plan_lag, read_lag
from rmq_formats.read.query import Query
from rmq_formats.read.queue_choice import QueueChoice, choose_queues
from rmq_formats.read.ranges import log_bounds
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.storage.store_files import open_store
from rmq_formats.store import Store
from rmq_offline.spark.commitlog_source import CommitLogSource
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.layouts.conftest import Untouched, held
from tests.layouts.test_rocksdb_reads import listed
from tests.layouts.test_sources import rows_of

Golden = Callable[[str], Path]
CONSUMEQUEUE = {"accessPath": "consumequeue", "subscribe": "Orders"}
FILE_BYTES = 6000  # of a queue's file; no queue of these stores has 300 messages


def put_files(store: Path, units: list[tuple], end: int | None = None, *, light: bool = True) -> None:
    """Write queue files with the database's units whose records begin before an end of the log."""
    queues: dict[Path, bytearray] = {}
    for topic, queue_id, queue_offset, physical_offset, size, tags_code in sorted(units):
        if light or not topic.startswith("%LMQ%"):
            queue = store / "consumequeue" / topic / str(queue_id)
            data = queues.setdefault(queue, bytearray(FILE_BYTES))
            if end is None or physical_offset < end:
                data[queue_offset * 20 : queue_offset * 20 + 20] = Unit(physical_offset, size, tags_code).encode()
    for queue, data in queues.items():
        queue.mkdir(parents=True)
        (queue / f"{0:020}").write_bytes(data)


def add_a_message(store: Path, units: list[tuple]) -> tuple:
    """Put the last message of the topic Orders behind the log's end; return its unit."""
    topic, queue_id, queue_offset, physical_offset, size, tags_code = max(
        (unit for unit in units if unit[0] == "Orders"), key=lambda unit: unit[3]
    )
    segments = Store(store).segments()
    end = log_bounds(LocalStorage(), segments)[1]
    (segment,) = (segment for segment in segments if segment.start_offset <= physical_offset < segment.end_offset)
    assert segment.start_offset <= end <= segment.end_offset - size
    with Path(segment.path).open("r+b") as file:
        file.seek(physical_offset - segment.start_offset)
        record = file.read(size)
        file.seek(end - segment.start_offset)
        file.write(record)
    return topic, queue_id, queue_offset + 1, end, size, tags_code


def middle(units: list[tuple]) -> int:
    """Where a record begins in the middle of the log."""
    places = sorted(unit[3] for unit in units)
    return places[len(places) // 2]


def choice(store: Path, *, wants_light: bool = False) -> QueueChoice:
    return choose_queues(open_store(str(store)), wants_light=wants_light)


def lag(store: Path) -> list[dict]:
    tasks = plan_lag(open_store(str(store)), None, Query())
    return [row for task in tasks for row in read_lag(str(store), task).to_pylist()]


def units_of(store: Path, **options: str) -> list[tuple]:
    return sorted(tuple(row.values())[:6] for row in rows_of(ConsumeQueueSource, store, **options))


@pytest.fixture
def units(golden: Golden) -> list[tuple]:
    return sorted(listed(golden, "rocksdb"))


def test_files_from_before_a_database_are_not_read(
    golden_copy: Golden, golden: Golden, units: list[tuple], untouched: Untouched
) -> None:
    store = golden_copy("rocksdb")
    put_files(store, units, middle(units))
    with untouched(store):
        assert choice(store).database == str(store / "consumequeue")
        assert units_of(store) == units
        assert lag(store) == lag(golden("rocksdb") / "store")
        assert Store(store).topics() == sorted({message.topic for message in Store(store).messages()})
        for options in (CONSUMEQUEUE, {"accessPath": "index", "key": "k"}):
            with pytest.raises(StoreLayoutError, match="the ConsumeQueue is in RocksDB"):
                rows_of(CommitLogSource, store, **options)


def test_directories_without_files_are_no_queue_files(golden_copy: Golden, golden: Golden, units: list[tuple]) -> None:
    store = golden_copy("rocksdb")
    (store / "consumequeue" / "Ghost" / "0").mkdir(parents=True)
    (store / "consumequeue" / "Ghost" / "0" / "notes.txt").touch()
    assert not open_store(str(store)).layouts.has_queue_files
    assert units_of(store) == units
    assert "Ghost" not in Store(store).topics()
    assert len(Store(store).topics()) == len(Store(golden("rocksdb") / "store").topics())
    with pytest.raises(StoreLayoutError, match="the ConsumeQueue is in RocksDB"):
        rows_of(CommitLogSource, store, accessPath="index", key="k")


def test_files_of_a_broker_that_writes_both_are_read_without_a_look_into_the_database(
    golden_copy: Golden, golden: Golden, units: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_copy("rocksdb")
    put_files(store, units)
    ends = Counter(unit[:2] for unit in units)
    shutil.rmtree(store / "config")  # such a broker has files there, and without the library they alone are read
    (store / "config").mkdir()
    offsets = {"offsetTable": {"Orders@g": {str(queue_id): 1 for topic, queue_id in ends if topic == "Orders"}}}
    (store / "config" / "consumerOffset.json").write_text(json.dumps(offsets))
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    with held(store / "consumequeue" / "LOCK"):
        assert choice(store, wants_light=True) == QueueChoice()
        assert units_of(store) == units
        assert Store(store).topics() == sorted({unit[0] for unit in units})
        assert len(rows_of(CommitLogSource, store, **CONSUMEQUEUE)) == sum(unit[0] == "Orders" for unit in units)
        found = {(row["topic"], row["queue_id"]): row["max_offset"] for row in lag(store)}
    assert found == {queue: count for queue, count in ends.items() if queue[0] == "Orders"}


def test_a_database_from_before_files_is_not_read(golden_copy: Golden) -> None:
    store = golden_copy("rocksdb_crash")  # its broker was killed before it had put anything in
    scanned = [
        (row["topic"], row["queue_id"], row["queue_offset"], row["physical_offset"], row["size"], 0)
        for row in rows_of(CommitLogSource, store)
    ]
    put_files(store, scanned)
    assert choice(store, wants_light=True) == QueueChoice()
    assert units_of(store) == sorted(scanned)


def test_without_the_library_it_is_not_guessed_which_one_to_read(
    golden_copy: Golden, units: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_copy("rocksdb")
    put_files(store, units, middle(units))
    shutil.rmtree(store / "config")  # which is in RocksDB, too
    topics = Store(store).topics()
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    for source, options in ((ConsumeQueueSource, {}), (CommitLogSource, CONSUMEQUEUE)):
        with pytest.raises(StoreError, match=r"/consumequeue: is a RocksDB, .*rmq-lake\[rocksdb\]"):
            rows_of(source, store, **options)
    assert Store(store).topics() == topics  # which a scan tells


def test_files_that_end_long_before_the_log_need_a_database_that_no_broker_has_open(
    golden_copy: Golden, units: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden_copy("rocksdb")
    shutil.rmtree(store / "config")
    put_files(store, units, middle(units))
    with held(store / "consumequeue" / "LOCK"):
        assert choice(store) == QueueChoice()  # a broker that writes both dispatches the log's end in a moment
        monkeypatch.setattr(queue_choice, "_LIVE_LAG_BYTES", 1000)
        with pytest.raises(StoreLockedError, match="/consumequeue: a running broker"):
            units_of(store)


def test_light_queues_are_not_left_out_without_the_library(
    golden_copy: Golden, golden: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, units = golden_copy("rocksdb_lmq"), listed(golden, "rocksdb_lmq")
    put_files(store, units, light=False)
    shutil.rmtree(store / "config")
    (store / "config").mkdir()
    (store / "config" / "lmqConsumerOffset.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, "rocksdict", None)
    with pytest.raises(StoreError, match=r"/consumequeue: is a RocksDB, .*rmq-lake\[rocksdb\]"):
        units_of(store)
    topic = next(unit[0] for unit in units if not unit[0].startswith("%"))
    assert units_of(store, subscribe=topic) == sorted(unit for unit in units if unit[0] == topic)


def test_light_queues_that_the_database_alone_has_are_read(golden_copy: Golden, golden: Golden) -> None:
    store, units = golden_copy("rocksdb_lmq"), sorted(listed(golden, "rocksdb_lmq"))
    put_files(store, units, light=False)
    assert choice(store).light_database is None
    assert choice(store, wants_light=True) == QueueChoice(light_database=str(store / "consumequeue"))
    assert units_of(store) == units
    assert lag(store) == lag(golden("rocksdb_lmq") / "store")


def test_light_queues_of_a_database_from_before_are_not_read(golden_copy: Golden, golden: Golden) -> None:
    store, units = golden_copy("rocksdb_lmq"), sorted(listed(golden, "rocksdb_lmq"))
    put_files(store, [*units, add_a_message(store, units)], light=False)
    assert choice(store, wants_light=True) == QueueChoice()


def test_a_store_with_one_layout_costs_no_look_into_its_queues(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the queues were walked")

    monkeypatch.setattr(queue_choice, "walk_queues", refuse)
    monkeypatch.setattr(queue_choice, "open_queues", refuse)
    assert choice(golden("rocksdb") / "store").database == str(golden("rocksdb") / "store" / "consumequeue")
    for name in ("lmq", "bcq", "mixed_551"):
        assert choice(golden(name) / "store", wants_light=True) == QueueChoice()


def test_a_database_in_a_directory_of_its_own_is_compared_as_well(golden_copy: Golden, units: list[tuple]) -> None:
    store = golden_copy("rocksdb")
    (store / "consumequeue").rename(store / "consumequeue_rocksdb")
    put_files(store, units, middle(units))
    assert choice(store).database == str(store / "consumequeue_rocksdb")
    assert units_of(store) == units
    shutil.rmtree(store / "consumequeue")
    put_files(store, units)
    assert choice(store).database is None
