"""Whatever way records are found, the rows are those of a filtered scan."""

import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.arrow.schema import COMMITLOG, Mode
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK
from rmq_formats.codecs.message_id import decode_message_id, encode_message_id
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.errors import FormatError, OptionError, StoreNotFoundError
from rmq_formats.read import plan as planning
from rmq_formats.read import task as reading
from rmq_formats.read.plan import PointReadTask, QueuesTask, ReadPlan, ScanTask, Task, plan_read
from rmq_formats.read.query import AccessPath, Query, QueueBounds, ReadOptions, parse_tags
from rmq_formats.read.task import read_task
from rmq_formats.storage.segments import ArrowStorage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_offline.rebuild.job import rebuild_store
from rmq_offline.rebuild.options import RebuildOptions
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.tasks.store_sizes import StoreSizes
from tests.support.oracles.consumequeue import goes_to_consumequeue
from tests.support.processes import warm_processes
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import flip, write_commitlog

Row = dict[str, Any]
FIRST_MS = 1_700_000_000_000
FILE_BYTES = 65536


def plan_for(root: Path, query: Query, access_path: AccessPath = AccessPath.AUTO, **options: Any) -> ReadPlan:
    files = open_store(str(root))
    return plan_read(files, query, access_path=access_path, **options)


def rows_of(root: Path, plan: ReadPlan, query: Query, mode: Mode = Mode.PERMISSIVE) -> list[Row]:
    rows = [row for task in plan.tasks for row in rows_of_task(str(root), task, query, mode)]
    return sorted(rows, key=lambda row: row["physical_offset"])


def rows_of_task(root: str, task: Task, query: Query, mode: Mode = Mode.PERMISSIVE) -> list[Row]:
    options = ReadOptions(tuple(COMMITLOG.names), query, mode)
    batches = read_task(root, task, options)
    return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts="strict")]


def read(root: Path, query: Query, access_path: AccessPath = AccessPath.AUTO, **options: Any) -> list[Row]:
    return rows_of(root, plan_for(root, query, access_path, **options), query)


def all_rows(root: Path) -> list[Row]:
    return read(root, Query(), AccessPath.SCAN)


def offsets(rows: list[Row]) -> list[int]:
    return [row["physical_offset"] for row in rows]


def dispatched(rows: list[Row]) -> list[Row]:
    return [row for row in rows if goes_to_consumequeue(row["sys_flag"])]


def check_ways(root: Path, query: Query, expected: list[Row], *ways: AccessPath) -> None:
    for way in (AccessPath.SCAN, AccessPath.AUTO, *ways):
        assert read(root, query, way, split_bytes=100_000) == expected, way


@pytest.fixture(params=["mixed", "crash", "exotic", "exotic_crc"])
def golden_store(request: pytest.FixtureRequest, golden: Callable[[str], Path]) -> Path:
    return golden(request.param) / "store"


@pytest.mark.long
def test_each_topic_of_a_golden_store_is_the_same_by_its_queues(golden_store: Path) -> None:
    by_topic = defaultdict(list)
    for row in dispatched(all_rows(golden_store)):
        by_topic[row["topic"]].append(row)
    for topic, expected in by_topic.items():
        check_ways(golden_store, Query(topics=frozenset([topic])), expected, AccessPath.CONSUMEQUEUE)


@pytest.mark.long
def test_keys_of_a_golden_store_are_the_same_by_its_index(golden_store: Path) -> None:
    rows = all_rows(golden_store)
    keyed = [row for row in rows if row["keys"] and row["uniq_key"]]
    for row in random.Random(1).sample(keyed, 12):
        topics, key, uniq_key = frozenset([row["topic"]]), row["keys"][-1], row["uniq_key"]
        of_topic = [other for other in dispatched(rows) if other["topic"] == row["topic"]]
        with_key = [other for other in of_topic if key in other["keys"]]
        check_ways(golden_store, Query(topics=topics, key=key), with_key, AccessPath.INDEX, AccessPath.CONSUMEQUEUE)
        with_uniq_key = [other for other in of_topic if uniq_key == other["uniq_key"]]
        check_ways(golden_store, Query(topics=topics, uniq_key=uniq_key), with_uniq_key, AccessPath.INDEX)
        without_topic = [other for other in rows if uniq_key == other["uniq_key"]]
        check_ways(golden_store, Query(uniq_key=uniq_key), without_topic, AccessPath.INDEX)


def test_message_ids_of_a_golden_store_are_one_read(golden_store: Path) -> None:
    rows = all_rows(golden_store)
    for row in random.Random(2).sample(rows, 10):
        query = Query(msg_id=decode_message_id(row["msg_id"]))
        check_ways(golden_store, query, [row])
        plan = plan_for(golden_store, query)
        assert plan.access_path is AccessPath.MESSAGE_ID
        assert [type(task) for task in plan.tasks] == [PointReadTask]


@pytest.mark.long
def test_splits_of_any_size_give_each_row_of_a_golden_store_once(golden_store: Path) -> None:
    expected = all_rows(golden_store)
    for options in ({"split_bytes": 4096}, {"split_bytes": 33_333}, {"min_tasks": 7}):
        assert read(golden_store, Query(), **options) == expected


def test_queues_and_offsets_bound_what_is_read(golden: Callable[[str], Path]) -> None:
    root = golden("mixed") / "store"
    rows = dispatched(all_rows(root))
    bounds = {("Orders", 1): QueueBounds(10, 20), ("Orders", 2): QueueBounds(first_offset=150)}
    query = Query(queues={"Orders": frozenset([0, 1, 2])}, bounds=bounds)
    expected = [
        row
        for row in rows
        if row["topic"] == "Orders"
        and (
            row["queue_id"] == 0
            or (row["queue_id"] == 1 and 10 <= row["queue_offset"] < 20)
            or (row["queue_id"] == 2 and row["queue_offset"] >= 150)
        )
    ]
    check_ways(root, query, expected, AccessPath.CONSUMEQUEUE)
    pattern = Query(topic_pattern="Or.*|Tx")
    expected = [row for row in rows if row["topic"] in {"Orders", "Ordered", "Tx"}]
    check_ways(root, pattern, expected, AccessPath.CONSUMEQUEUE)


def test_tags_times_and_places_bound_what_is_read(golden: Callable[[str], Path]) -> None:
    root = golden("mixed") / "store"
    rows = all_rows(root)
    tagged = Query(tags=parse_tags("TagC || created"))
    check_ways(root, tagged, [row for row in rows if row["tags"] in {"TagC", "created"}])
    topics = frozenset(["Clicks"])
    by_queue = Query(topics=topics, tags=frozenset(["TagC"]))
    expected = [row for row in dispatched(rows) if row["topic"] == "Clicks" and row["tags"] == "TagC"]
    check_ways(root, by_queue, expected, AccessPath.CONSUMEQUEUE)
    times = sorted(round(row["store_timestamp"].timestamp() * 1000) for row in rows)
    first_ms, end_ms = times[len(times) // 3], times[len(times) // 2]
    expected = [row for row in rows if first_ms <= round(row["store_timestamp"].timestamp() * 1000) < end_ms]
    check_ways(root, Query(first_ms=first_ms, end_ms=end_ms), expected)
    begin, end = rows[100]["physical_offset"] + 1, rows[2500]["physical_offset"]
    expected = rows[101:2500]
    check_ways(root, Query(first_physical_offset=begin, end_physical_offset=end), expected)


def test_an_expression_of_tags_is_read_as_the_client_reads_it() -> None:
    assert parse_tags(" a || b|| ") == {"a", "b"}
    assert parse_tags("*") is None
    assert parse_tags(" ") is None
    assert parse_tags("*||a") == {"*", "a"}


# --- small stores -------------------------------------------------------------------------------------


def rebuilt(root: Path, *, index: bool = True) -> None:
    sizes = StoreSizes(
        consumequeue_file_bytes=400,
        consumequeue_ext_file_bytes=0,
        index_slots=20,
        index_entries=100,
        delay_levels_ms=delay_levels_ms("1s 5s"),
    )
    options = RebuildOptions(consumequeue=True, index=index, sizes=sizes)
    rebuild_store(str(root), None, options, ProcessRunner(1))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """600 records of 6 topics in 4 queues each, one topic rare; keys, tags; ConsumeQueue and Index beside it."""
    stored = [
        plain_message(
            "Rare" if number % 50 == 0 else f"Topic{number % 5}",
            bytes([number % 256]) * 300,
            queue_id=number % 4,
            properties_bytes=encode_properties(
                {"KEYS": f"key-{number} shared-{number % 7}", "UNIQ_KEY": f"u{number}", "TAGS": f"t{number % 3}"}
            ),
        )
        for number in range(600)
    ]
    write_commitlog(tmp_path, stored, FILE_BYTES)
    rebuilt(tmp_path)
    return tmp_path


def test_the_cheapest_way_is_taken(small: Path) -> None:
    rare = frozenset(["Rare"])
    assert plan_for(small, Query()).access_path is AccessPath.SCAN
    assert plan_for(small, Query(topics=frozenset(["Topic1"]))).access_path is AccessPath.SCAN
    assert plan_for(small, Query(topics=rare)).access_path is AccessPath.CONSUMEQUEUE
    keyed = Query(topics=rare, key="key-50")
    plan = plan_for(small, keyed)
    assert plan.access_path is AccessPath.INDEX
    assert plan.scanned_bytes < FILE_BYTES
    assert "the Index has 1 entries for the key" in str(plan)
    assert [row["uniq_key"] for row in rows_of(small, plan, keyed)] == ["u50"]
    assert plan_for(small, Query(key="key-50")).access_path is AccessPath.SCAN
    by_id = Query(msg_id=decode_message_id(all_rows(small)[7]["msg_id"]), topics=rare)
    assert plan_for(small, by_id).access_path is AccessPath.MESSAGE_ID


def test_an_asked_for_way_must_fit(small: Path) -> None:
    with pytest.raises(OptionError, match="subscribe"):
        plan_for(small, Query(), AccessPath.CONSUMEQUEUE)
    with pytest.raises(OptionError, match="key or uniqKey"):
        plan_for(small, Query(), AccessPath.INDEX)
    with pytest.raises(StoreNotFoundError, match="consumequeue/Nope"):
        plan_for(small, Query(topics=frozenset(["Nope"])), AccessPath.CONSUMEQUEUE)
    for path in (small / "index").iterdir():
        path.unlink()
    with pytest.raises(StoreNotFoundError, match="no index files"):
        plan_for(small, Query(key="a"), AccessPath.INDEX)


def test_half_messages_and_rollbacks_are_rows_of_the_log_but_of_no_queue(tmp_path: Path) -> None:
    flags = [0, FLAG_TRANSACTION_PREPARED, FLAG_TRANSACTION_ROLLBACK, 0x8]
    stored = [
        plain_message("Tx", bytes(200), queue_id=0, sys_flag=flag, properties_bytes=b"KEYS\x01k\x02") for flag in flags
    ] + [plain_message("Other", bytes(20_000)) for _ in range(12)]
    write_commitlog(tmp_path, stored, FILE_BYTES * 8)
    rebuilt(tmp_path)
    rows = all_rows(tmp_path)[:4]
    assert [row["sys_flag"] for row in rows] == flags
    by_queue = Query(topics=frozenset(["Tx"]))
    assert plan_for(tmp_path, by_queue).access_path is AccessPath.CONSUMEQUEUE
    check_ways(tmp_path, by_queue, [rows[0], rows[3]], AccessPath.CONSUMEQUEUE)
    check_ways(tmp_path, Query(key="k"), [rows[0], rows[1], rows[3]], AccessPath.INDEX)
    check_ways(tmp_path, Query(topics=frozenset(["Tx"]), key="k"), [rows[0], rows[3]], AccessPath.INDEX)
    check_ways(tmp_path, Query(topic_values=frozenset(["Tx"])), rows)


def test_what_was_not_dispatched_yet_is_scanned(small: Path) -> None:
    rows = all_rows(small)
    rare = Query(topics=frozenset(["Rare"]))
    expected = [row for row in rows if row["topic"] == "Rare"]
    cut = rows[500]["physical_offset"]
    for path in (small / "consumequeue").rglob("0" * 5 + "*"):  # as if dispatch had come to record 500 only
        data = bytearray(path.read_bytes())
        for at in range(0, len(data), 20):
            if int.from_bytes(data[at : at + 8], "big") >= cut:
                data[at : at + 20] = bytes(20)
        path.write_bytes(data)
    plan = plan_for(small, rare)
    assert plan.access_path is AccessPath.CONSUMEQUEUE
    assert {type(task) for task in plan.tasks} == {QueuesTask, ScanTask}
    assert rows_of(small, plan, rare) == expected
    sound = [row for row in expected if row["physical_offset"] < cut]
    assert read(small, rare, AccessPath.CONSUMEQUEUE) == sound


def test_what_the_index_does_not_know_is_scanned(small: Path) -> None:
    query = Query(topics=frozenset(["Topic1"]), key="shared-3")
    expected = [row for row in all_rows(small) if row["topic"] == "Topic1" and "shared-3" in row["keys"]]
    files = sorted((small / "index").iterdir())
    assert len(files) > 8
    for lost in ([files[-1]], [files[0]], [files[4]]):
        for path in lost:
            path.unlink()
        plan = plan_for(small, query)
        assert plan.access_path is AccessPath.INDEX
        assert rows_of(small, plan, query) == expected
    for path in files[5:-1]:
        path.unlink()
    plan = plan_for(small, query)
    assert plan.access_path is AccessPath.SCAN
    assert "know too little" in plan.reason
    assert rows_of(small, plan, query) == expected


def test_an_index_file_that_is_none_makes_the_log_be_scanned(small: Path) -> None:
    path = min((small / "index").iterdir())
    path.write_bytes(path.read_bytes()[:500])
    query = Query(topics=frozenset(["Rare"]), key="key-50")
    plan = plan_for(small, query)
    assert plan.access_path is not AccessPath.INDEX
    assert "not an IndexFile" in plan.reason or plan.access_path is AccessPath.CONSUMEQUEUE
    assert [row["uniq_key"] for row in rows_of(small, plan, query)] == ["u50"]


def test_keys_with_one_hash_are_told_apart(tmp_path: Path) -> None:
    stored = [
        plain_message("T", bytes(3000), properties_bytes=encode_properties({"KEYS": key}))
        for key in ("AaAa", "BBBB") * 20
    ]
    write_commitlog(tmp_path, stored, FILE_BYTES)
    rebuilt(tmp_path)
    rows = all_rows(tmp_path)
    query = Query(topics=frozenset(["T"]), key="BBBB")
    plan = plan_for(tmp_path, query)
    assert plan.access_path is AccessPath.INDEX
    assert "39 entries" in plan.reason  # the last record may lack keys in the index: it is scanned
    check_ways(tmp_path, query, rows[1::2], AccessPath.INDEX)


def test_a_topic_without_queues_is_looked_for_in_the_log(small: Path) -> None:
    for path in sorted((small / "consumequeue" / "Rare").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    query = Query(topics=frozenset(["Rare", "Topic1"]))
    plan = plan_for(small, query)
    assert plan.access_path is AccessPath.SCAN
    assert "topic Rare has none" in plan.reason
    assert len(rows_of(small, plan, query)) == 12 + 120 - 0
    assert read(small, Query(topics=frozenset(["Nope"]))) == []


def test_after_a_crash_the_derived_files_are_not_believed(small: Path) -> None:
    (small / "abort").write_text("")
    (small / "lock").write_text("lock")
    query = Query(topics=frozenset(["Rare"]), key="key-50")
    plan = plan_for(small, query)
    assert plan.access_path is AccessPath.SCAN
    assert "did not shut down" in plan.reason
    with lock_held(small / "lock"):
        assert plan_for(small, query).access_path is AccessPath.INDEX
    assert plan_for(small, query).access_path is AccessPath.SCAN


@contextmanager
def lock_held(path: Path) -> Iterator[None]:
    """Another process holds the store's lock, as a broker does."""
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR);"
        "fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0); print('held', flush=True); sys.stdin.read()"
    )
    with warm_processes.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.communicate("")


def test_asking_for_the_lock_does_not_take_it(small: Path) -> None:
    (small / "abort").write_text("")
    (small / "lock").write_text("")
    plan_for(small, Query(topics=frozenset(["Rare"])))
    with lock_held(small / "lock"):
        assert (small / "lock").read_text() == ""


def test_damage_is_a_row_only_where_no_condition_looks_at_a_record(small: Path) -> None:
    rows = all_rows(small)
    flip(small, rows[100]["physical_offset"] + 5, FILE_BYTES)  # Rare
    flip(small, rows[150]["physical_offset"] + 100, FILE_BYTES)  # Rare, in its body
    damaged = all_rows(small)
    assert [row["physical_offset"] for row in damaged if row["record_error"]] == [
        rows[number]["physical_offset"] for number in (100, 150)
    ]
    begin, end = rows[90]["physical_offset"], rows[120]["physical_offset"]
    in_range = read(small, Query(first_physical_offset=begin, end_physical_offset=end))
    assert in_range == damaged[90:120]
    rare = Query(topics=frozenset(["Rare"]))
    expected = [row for row in damaged if row["topic"] == "Rare"]
    assert len(expected) == 11
    check_ways(small, rare, expected, AccessPath.CONSUMEQUEUE)
    plan = plan_for(small, rare)
    assert plan.access_path is AccessPath.CONSUMEQUEUE
    assert offsets(rows_of(small, plan, rare, Mode.DROPMALFORMED)) == [
        row["physical_offset"] for row in expected if not row["record_error"]
    ]
    with pytest.raises(FormatError, match=f"body CRC .* at offset {rows[150]['physical_offset']}") as raised:
        rows_of(small, plan, rare, Mode.FAILFAST)
    assert raised.value.path is not None


@pytest.mark.parametrize("body_bytes", [300, 100_000])
def test_damage_is_told_once_wherever_a_read_ends_and_the_next_begins(tmp_path: Path, body_bytes: int) -> None:
    stored = [plain_message("Topic", bytes([number]) * body_bytes) for number in range(9)]
    placed = write_commitlog(tmp_path, stored, 1 << 20)
    flip(tmp_path, placed[5], 1 << 20)  # its size: no frame is there
    damaged = all_rows(tmp_path)
    assert [row["physical_offset"] for row in damaged if row["record_error"]] == [placed[5]]
    for cut in (placed[4], placed[5] - 1, placed[5], placed[5] + 1, placed[5] + 100, placed[6]):
        before = read(tmp_path, Query(end_physical_offset=cut))
        assert [*before, *read(tmp_path, Query(first_physical_offset=cut))] == damaged, cut


def test_segments_of_other_times_are_passed_over(tmp_path: Path) -> None:
    hour = 3_600_000
    placed = []
    for number in range(6):  # six segments, two hours apart
        directory = tmp_path / str(number)
        write_commitlog(
            directory, [plain_message(body=bytes(50)) for _ in range(4)], 4096, FIRST_MS + 2 * number * hour
        )
        data = (directory / "commitlog" / f"{0:020d}").read_bytes()
        (tmp_path / "commitlog").mkdir(exist_ok=True)
        image = bytearray(data)
        for at in range(0, 4 * 150, 150):
            assert int.from_bytes(image[at : at + 4], "big") == 150
            image[at + 28 : at + 36] = (number * 4096 + at).to_bytes(8, "big")
        image[4 * 150 : 4 * 150 + 8] = (4096 - 4 * 150).to_bytes(4, "big") + bytes.fromhex("cbd43194")
        (tmp_path / "commitlog" / f"{number * 4096:020d}").write_bytes(image)
        placed += [number * 4096 + at for at in range(0, 4 * 150, 150)]
    rows = all_rows(tmp_path)
    assert offsets(rows) == placed
    query = Query(first_ms=FIRST_MS + 6 * hour, end_ms=FIRST_MS + 6 * hour + 3)
    plan = plan_for(tmp_path, query)
    assert {task.split.file_offset // 4096 for task in plan.tasks if isinstance(task, ScanTask)} <= {2, 3}
    check_ways(tmp_path, query, rows[12:15])
    assert len(plan_for(tmp_path, query, AccessPath.SCAN).tasks) == 6
    check_ways(tmp_path, Query(end_ms=FIRST_MS + 1), rows[:1])
    check_ways(tmp_path, Query(first_ms=FIRST_MS + 10 * hour), rows[20:])
    check_ways(tmp_path, Query(first_ms=FIRST_MS + 100 * hour), [])


def test_what_comes_after_planning_is_not_read(small: Path) -> None:
    query = Query()
    plan = plan_for(small, query)
    rows = rows_of(small, plan, query)
    last = max((small / "commitlog").iterdir())
    file_offset = int(last.name)
    end = rows[-1]["physical_offset"] + rows[-1]["size"]
    tail = bytearray(last.read_bytes())
    first = tail[rows[-1]["physical_offset"] - file_offset : end - file_offset]
    first[28:36] = end.to_bytes(8, "big")
    tail[end - file_offset : end - file_offset + len(first)] = first
    last.write_bytes(tail)
    assert rows_of(small, plan, query) == rows
    assert len(all_rows(small)) == len(rows) + 1


def test_a_message_id_of_another_host_or_of_no_record_finds_nothing(small: Path) -> None:
    place = all_rows(small)[3]["physical_offset"]
    host = Host(bytes([10, 0, 0, 2]), 10911)
    for other, offset in ((Host(bytes([1, 2, 3, 4]), 1), place), (host, place + 1), (host, 1 << 40)):
        check_ways(small, Query(msg_id=decode_message_id(encode_message_id(other, offset))), [])


def test_places_are_cut_into_tasks(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "POINTS_PER_TASK", 5)
    query = Query(topics=frozenset(["Topic1"]), key="shared-3")
    plan = plan_for(small, query)
    assert sum(isinstance(task, PointReadTask) for task in plan.tasks) > 2
    assert len(rows_of(small, plan, query)) == len({*offsets(read(small, query, AccessPath.SCAN))})


def test_a_store_behind_an_arrow_file_system_gives_the_same_rows(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rare = Query(topics=frozenset(["Rare"]))
    queries = [Query(), rare, Query(topics=frozenset(["Rare"]), key="key-50")]
    expected = [read(small, query) for query in queries]
    uri = small.as_uri()
    monkeypatch.setattr(reading, "open_store", lambda root: StoreFiles(ArrowStorage(root), root))
    for query, rows in zip(queries, expected, strict=True):
        for way in (AccessPath.AUTO, AccessPath.CONSUMEQUEUE if query.reads_queues else AccessPath.SCAN):
            plan = plan_read(StoreFiles(ArrowStorage(uri), uri), query, access_path=way)
            found = [row for task in plan.tasks for row in rows_of_task(uri, task, query)]
            assert sorted(found, key=lambda row: row["physical_offset"]) == rows
    assert "not local" in plan_read(StoreFiles(ArrowStorage(uri), uri), rare).reason


def test_a_store_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no such store"):
        plan_for(tmp_path / "none", Query())
    with pytest.raises(StoreNotFoundError, match="holds no store"):
        plan_for(tmp_path, Query())


def test_a_store_of_zeros_has_no_rows_and_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    assert plan_for(tmp_path, Query()).tasks == ()
