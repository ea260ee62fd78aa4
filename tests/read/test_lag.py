"""How far groups are behind in a store at rest, beside a count of its units and records one by one."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.consumequeue import Unit
from rmq_formats.codecs.fastjson import loads
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.read.lag import plan_lag, read_lag
from rmq_formats.read.query import Query
from rmq_formats.storage.store_files import open_store

Row = dict[str, Any]
Golden = Callable[[str], Path]
EVERY_TOPIC = Query()


def lag(store: Path, groups: frozenset[str] | None = None, query: Query = EVERY_TOPIC) -> list[Row]:
    """The rows, store times in ms."""
    files = open_store(str(store))
    rows = [row for task in plan_lag(files, groups, query) for row in read_lag(files.root, task).to_pylist()]
    for row in rows:
        for name in ("next_timestamp", "max_timestamp"):
            row[name] = None if row[name] is None else round(row[name].timestamp() * 1000)
    return rows


def units(store: Path, topic: str, queue_id: int) -> Iterator[tuple[int, Unit]]:
    """Queue offsets and units of a queue, as its files have them."""
    for path in sorted((store / "consumequeue" / topic / str(queue_id)).glob("*")):
        data, base = path.read_bytes(), int(path.name) // UNIT_BYTES
        found = (Unit.decode(data, number * UNIT_BYTES) for number in range(len(data) // UNIT_BYTES))
        yield from ((base + number, unit) for number, unit in enumerate(found) if unit.is_written)


def expected(store: Path, messages: Path) -> list[Row]:
    """The same by the codecs, and the records as Java decoded them; of a store whose log is whole."""
    stored = map(json.loads, messages.read_text("utf-8").splitlines())
    stored_ms = {one["physical_offset"]: one["store_timestamp"] for one in stored}
    offsets: Any = loads((store / "config" / "consumerOffset.json").read_text())
    topics: Any = loads((store / "config" / "topics.json").read_text())
    rows = []
    for name, queues in offsets["offsetTable"].items():
        topic, group = name.split("@")
        for queue_id in range(topics["topicConfigTable"][topic]["readQueueNums"]):
            times = {offset: stored_ms[unit.physical_offset] for offset, unit in units(store, topic, queue_id)}
            committed, end = queues.get(str(queue_id)), max(times, default=-1) + 1
            behind = end - (committed or 0)
            first, last = (times[committed or 0], times[end - 1]) if behind else (None, None)
            rows.append(
                {
                    "group": group, "topic": topic, "queue_id": queue_id, "min_offset": 0,
                    "committed_offset": committed, "max_offset": end, "lag_messages": behind,
                    "lag_seconds": (last - first) / 1000 if first and last else 0.0, "next_timestamp": first,
                    "max_timestamp": last,
                }
            )  # fmt: skip
    return sorted(rows, key=lambda row: (row["topic"], row["queue_id"], row["group"]))


def commit(store: Path, name: str, queues: dict[int, int]) -> None:
    """Set a group's offsets, as ``topic@group``."""
    path = store / "config" / "consumerOffset.json"
    table: Any = loads(path.read_text())
    table["offsetTable"][name] = queues
    path.write_text(json.dumps(table))


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Path:
    """A copy of a store of the original, in which some groups are behind."""
    copy = tmp_path / "store"
    shutil.copytree(golden("mixed") / "store", copy)
    commit(copy, "Orders@golden_cg_ok", {0: 182, 1: 100, 3: 0})
    commit(copy, "Orders@other", {1: 181})
    return copy


@pytest.mark.parametrize("name", ["mixed", "crash"])
def test_the_originals_offsets_are_told(golden: Golden, name: str) -> None:
    found = lag(golden(name) / "store")
    assert found == expected(golden(name) / "store", golden(name) / "expected" / "messages.jsonl")
    assert len({row["group"] for row in found}) > 1


def test_who_is_behind_is_told_in_messages_and_seconds(store: Path, golden: Golden) -> None:
    found = lag(store)
    assert found == expected(store, golden("mixed") / "expected" / "messages.jsonl")
    by_queue = {(row["group"], row["queue_id"]): row for row in found if row["topic"] == "Orders"}
    assert [by_queue["golden_cg_ok", queue]["lag_messages"] for queue in range(4)] == [0, 82, 182, 182]
    assert by_queue["golden_cg_ok", 1]["lag_seconds"] > by_queue["other", 1]["lag_seconds"] == 0
    assert by_queue["golden_cg_ok", 2]["committed_offset"] is None


def test_groups_and_topics_can_be_chosen(store: Path) -> None:
    chosen = lag(store, frozenset(["other"]))
    assert [(row["group"], row["topic"], row["lag_messages"]) for row in chosen] == [
        ("other", "Orders", lagging) for lagging in (182, 1, 182, 182)
    ]
    assert {row["topic"] for row in lag(store, query=Query(topics=frozenset(["Ordered"])))} == {"Ordered"}
    assert {row["topic"] for row in lag(store, query=Query(topic_pattern="Ord.*"))} == {"Ordered", "Orders"}


def test_what_retention_has_deleted_has_no_time(store: Path) -> None:
    whole = {(row["topic"], row["queue_id"], row["group"]): row for row in lag(store)}
    first, second = sorted((store / "commitlog").iterdir())[:2]
    first.unlink()
    deleted = int(second.name)
    for row in lag(store):
        there = [
            offset for offset, unit in units(store, row["topic"], row["queue_id"]) if unit.physical_offset >= deleted
        ]
        assert row["min_offset"] == (there[0] if there else row["max_offset"])
        before = whole[row["topic"], row["queue_id"], row["group"]]
        is_known = (row["committed_offset"] or 0) >= row["min_offset"]
        wanted = {"min_offset": row["min_offset"]} if is_known else {
            "min_offset": row["min_offset"], "lag_seconds": None, "next_timestamp": None,
            "max_timestamp": before["max_timestamp"] if there else None,
        }  # fmt: skip
        assert row == before | wanted
    orders = [row for row in lag(store) if row["topic"] == "Orders" and row["committed_offset"] == 0]
    assert [row["lag_seconds"] for row in orders] == [None]


def test_a_log_ahead_of_its_queues_counts_after_a_kill(store: Path) -> None:
    whole = lag(store)
    (store / "abort").touch()
    (store / "checkpoint").write_bytes(Checkpoint().encode())
    for path in sorted((store / "consumequeue" / "Orders").glob("*/*"))[-2:]:
        path.write_bytes(bytes(path.stat().st_size))  # the last files of queue 3
    shutil.rmtree(store / "consumequeue" / "Ordered" / "2")
    assert lag(store) == whole


def test_units_that_lead_beyond_the_log_do_not_count_after_a_kill(store: Path) -> None:
    (store / "abort").touch()
    last = sorted((store / "commitlog").iterdir())[-1]
    last.write_bytes(bytes(last.stat().st_size))
    end = int(last.name)
    for row in lag(store):
        there = [offset for offset, unit in units(store, row["topic"], row["queue_id"]) if unit.physical_offset < end]
        assert row["max_offset"] == max(there, default=-1) + 1
        assert row["lag_messages"] == max(0, row["max_offset"] - (row["committed_offset"] or 0))


def test_the_table_of_a_broker_killed_while_it_wrote_is_its_bak(store: Path) -> None:
    whole, path = lag(store), store / "config" / "consumerOffset.json"
    backup = path.with_name(f"{path.name}.bak")
    text = path.read_text()
    path.rename(backup)
    assert lag(store) == whole
    path.write_text(text[: len(text) // 2])
    assert lag(store) == whole
    path.write_text("")
    assert lag(store) == whole
    backup.write_text("[]")
    with pytest.raises(StoreError, match=r"consumerOffset.json: the file is empty.* and .*\.bak: .* not a JSON object"):
        lag(store)


def test_without_a_table_no_group_is_known(store: Path) -> None:
    (store / "config" / "consumerOffset.json").unlink()
    assert lag(store) == []


def test_without_topics_the_queues_with_an_offset_are_told(store: Path) -> None:
    (store / "config" / "topics.json").unlink()
    found = [(row["queue_id"], row["lag_messages"]) for row in lag(store, frozenset(["other"]))]
    assert found == [(1, 1)]


def test_offsets_of_deleted_topics_and_of_broadcasts_are_left_out(store: Path) -> None:
    whole = lag(store)
    commit(store, "Deleted@golden_cg", {0: 3})
    commit(store, "Orders@golden_cg@broadcast", {0: 3})
    assert lag(store) == whole


def test_an_offset_below_0_is_none_as_for_a_broker(store: Path) -> None:
    commit(store, "Orders@other", {0: -1})
    (first, *_) = lag(store, frozenset(["other"]))
    assert (first["committed_offset"], first["lag_messages"]) == (None, 182)


def test_a_topic_with_more_queues_than_any_broker_has_is_an_error(store: Path) -> None:
    topics = store / "config" / "topics.json"
    table: Any = loads(topics.read_text())
    table["topicConfigTable"]["Orders"]["readQueueNums"] = (1 << 31) - 1
    topics.write_text(json.dumps(table))
    with pytest.raises(StoreError, match="topic Orders has 2147483647 queues"):
        lag(store)


def test_records_that_are_damaged_have_no_time(store: Path) -> None:
    for segment in (store / "commitlog").iterdir():
        segment.write_bytes(b"\x7f" * segment.stat().st_size)
    rows = [row for row in lag(store, frozenset(["other"])) if row["lag_messages"]]
    assert {(row["lag_seconds"], row["next_timestamp"], row["max_timestamp"]) for row in rows} == {(None, None, None)}


def test_an_offset_beyond_the_queue_is_no_lag(store: Path) -> None:
    commit(store, "Orders@other", dict.fromkeys(range(4), 1000))
    assert [(row["lag_messages"], row["lag_seconds"]) for row in lag(store, frozenset(["other"]))] == [(0, 0.0)] * 4


def test_a_topic_that_is_no_directory_has_no_messages(store: Path) -> None:
    topics = store / "config" / "topics.json"
    table: Any = loads(topics.read_text())
    table["topicConfigTable"]["../../up"] = {"topicName": "../../up", "readQueueNums": 1}
    topics.write_text(json.dumps(table))
    commit(store, "../../up@other", {0: 3})
    assert lag(store, query=Query(topics=frozenset(["../../up"])))[0]["max_offset"] == 0


@pytest.mark.parametrize("name", ["tiered", "compaction", "controller"])
def test_layouts_beside_the_log_are_read(golden: Golden, name: str) -> None:
    rows = lag(golden(name) / "store")
    assert [row for row in rows if row["lag_seconds"] is None] == []


def test_offsets_in_two_files_are_not_guessed_at(store: Path) -> None:
    (store / "config" / "lmqConsumerOffset.json").write_text('{"offsetTable":{}}')
    with pytest.raises(StoreLayoutError, match=r"lmqConsumerOffset\.json"):
        lag(store)


def test_a_store_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no such store"):
        lag(tmp_path / "absent")
    (tmp_path / "config").mkdir()
    with pytest.raises(StoreNotFoundError, match="no CommitLog files"):
        lag(tmp_path)
