"""Dump, inspect and query of other layouts: each file is read as what it is, or refused by name or content."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.storage.rocksdb import Pairs, make_rocksdb
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.store import Store
from rmq_offline.spark.consumequeue_source import ConsumeQueueSource
from tests.cli.conftest import Rmq
from tests.layouts.conftest import Untouched, refusal
from tests.layouts.test_sources import rows_of

LAYOUTS = {
    "dledger": {StoreLayout.DLEDGER},
    "dledger_crash": {StoreLayout.DLEDGER},
    "dledger_mixed": {StoreLayout.DLEDGER},
    "lmq": {StoreLayout.LIGHT_QUEUES},
    "bcq": {StoreLayout.BATCH_QUEUES},
    "rocksdb": {StoreLayout.ROCKSDB_QUEUES, StoreLayout.ROCKSDB_CONFIG},
    "rocksdb_crash": {StoreLayout.ROCKSDB_QUEUES, StoreLayout.ROCKSDB_CONFIG},
    "rocksdb_lmq": {StoreLayout.ROCKSDB_QUEUES, StoreLayout.ROCKSDB_CONFIG},
    "tiered": {StoreLayout.TIERED},
    "compaction": {StoreLayout.COMPACTION},
    "controller": {StoreLayout.CONTROLLER},
}
REFUSED = {  # a path below a store, and words of the line
    "dledger_mixed": {
        "dledger-n0": "DLedger", "dledger-n0/checkpoint": "dledger-n0/data", "dledger-n0/currterm": "dledger-n0/data",
    },
    "rocksdb_lmq": {
        "consumequeue/000004.log": "RocksDB", "consumequeue/CURRENT": "RocksDB", "consumequeue/000010.sst": "RocksDB",
        "config/rdb/CURRENT": "RocksDB", "config/rdb/000009.sst": "RocksDB",
    },
    "tiered": {
        "tiered/1cfb8c9b_GoldenCluster/golden-a/rmq_sys_INDEX/0/INDEX": "the Index of tiered storage",
        "tiered/1cfb8c9b_GoldenCluster/golden-a/rmq_sys_INDEX/0/INDEX/cfcd208400000000000000000000": "the Index of",
    },
}  # fmt: skip
Golden = Callable[[str], Path]


def test_inspect_names_the_layout(layout_name: str, rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden(layout_name) / "store"
    with untouched(store):
        result = rmq("inspect", store, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found["layouts"]) == {layout.value for layout in LAYOUTS[layout_name]}
    assert all(path.startswith(str(store)) for path in found["layouts"].values())
    records = (golden(layout_name) / "expected" / "messages.jsonl").read_text("utf-8").count("\n")
    assert found["commitlog"]["messages"] == records
    assert "consumequeue" in found
    shown = " ".join(rmq("inspect", store).stdout.split())
    assert all(layout.value in shown for layout in LAYOUTS[layout_name])


def test_inspect_of_a_classic_store_names_none(rmq: Rmq, golden: Golden) -> None:
    assert "layouts" not in json.loads(rmq("inspect", golden("exotic") / "store", "--json").stdout)


@pytest.mark.parametrize(
    ("name", "path", "words"), [(name, path, words) for name, own in REFUSED.items() for path, words in own.items()]
)
@pytest.mark.parametrize("command", ["dump", "inspect"])
def test_files_of_other_layouts_are_refused_by_name(
    command: str, name: str, path: str, words: str, rmq: Rmq, golden: Golden, untouched: Untouched
) -> None:
    place = golden(name) / "store" / path
    assert place.exists()
    with untouched(golden(name) / "store"):
        line = refusal(rmq, command, place)
    assert words in line
    assert "rmq does not read" in line or "give its directory" in line


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("rocksdb_lmq", "consumequeue/000010.sst", "RocksDB"),
    ],
)
@pytest.mark.parametrize("copy", ["copied", "00000000000000000000"])
def test_copied_files_are_refused_by_content(
    name: str, path: str, words: str, copy: str, rmq: Rmq, golden: Golden, tmp_path: Path
) -> None:
    (tmp_path / copy).write_bytes((golden(name) / "store" / path).read_bytes())
    for place in (tmp_path / copy, tmp_path) if copy.isdigit() else (tmp_path / copy,):
        line = refusal(rmq, "dump", place)
        assert words in line
        assert "by its content" in line


def test_a_commitlog_directory_without_files_beside_dledger_is_refused(rmq: Rmq, golden_copy: Golden) -> None:
    directory = golden_copy("dledger") / "commitlog"
    directory.mkdir(exist_ok=True)
    assert not list(directory.iterdir())
    for command in ("inspect", "dump"):
        assert f"{directory}: no CommitLog files" in refusal(rmq, command, directory)


def test_the_index_of_a_dledger_log_is_dumped(rmq: Rmq, golden: Golden, untouched: Untouched, tmp_path: Path) -> None:
    store = golden("dledger_mixed") / "store"
    path = store / "dledger-n0" / "index" / f"{0:020d}"
    with path.open("rb") as file:
        (tmp_path / "copied").write_bytes(file.read(100_000))  # of 160 MiB, all but zeros
    with untouched(store):
        lines = rmq("dump", path.parent, "--json").stdout.splitlines()
        found = json.loads(rmq("inspect", path.parent, "--json").stdout)["entry_index"]
    entries = [item.physical_offset for item in Store(store).messages() if item.physical_offset >= 524_288]
    rows = [json.loads(line) for line in lines]
    assert [row["physical_offset"] for row in rows] == entries
    assert [row["index"] for row in rows] == list(range(len(rows)))
    assert (found["units"], found["last_index"], found["faults"]) == (len(rows), len(rows) - 1, 0)
    for place in (path, tmp_path / "copied"):
        assert rmq("dump", place, "--json", "--from", 7, "--limit", 2).stdout.splitlines() == lines[7:9]
    assert "index" in rmq("inspect", path).stdout


def test_a_place_of_that_index_without_a_unit_is_told(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    with (golden("dledger") / "store" / "dledger-n0" / "index" / f"{0:020d}").open("rb") as file:
        data = bytearray(file.read(100_000))
    data[64:68] = b"\xff" * 4
    (tmp_path / "copied").write_bytes(data)
    result = rmq("dump", tmp_path / "copied", "--limit", 3)
    assert result.exit_code == 1
    assert "no unit of entry 2" in result.stderr
    assert rmq("inspect", tmp_path / "copied").exit_code == 1


@pytest.mark.parametrize("name", ["rocksdb", "rocksdb_lmq"])
def test_units_in_rocksdb_are_dumped(name: str, rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden(name) / "store"
    with untouched(store):
        lines = rmq("dump", store / "consumequeue", "--json").stdout.splitlines()
        shown = rmq("dump", store / "consumequeue", "--topic", "Orders", "--from", 1).stdout
        facts = json.loads(rmq("inspect", store / "consumequeue", "--json").stdout)["consumequeue"]
    rows = [json.loads(line) for line in lines]
    known = rows_of(ConsumeQueueSource, store)
    columns = ("topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        tuple(row[column] for column in columns) for row in known
    ]
    assert sum(queue["units"] for queue in facts) == len(rows)
    assert sum(line.startswith(" ") for line in shown.splitlines()) == 1 + sum(
        row["topic"] == "Orders" and row["queue_offset"] > 0 for row in rows
    )


def test_a_damaged_database_is_told_in_a_line(rmq: Rmq, golden_copy: Golden, untouched: Untouched) -> None:
    store = golden_copy("rocksdb")
    for path in (store / "consumequeue").glob("*.sst"):
        path.write_bytes(path.read_bytes()[:100])
    with untouched(store):
        result = rmq("dump", store / "consumequeue")
        assert (result.exit_code, len(result.stderr.splitlines())) == (1, 1)
        assert "RocksDB" in refusal(rmq, "inspect", store / "consumequeue")


@pytest.mark.parametrize("topic", ["CURRENT", "batchconsumequeue", "CONSUME_QUEUE"])
def test_topics_named_as_a_layout_are_dumped(topic: str, rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    shutil.copytree(golden("exotic") / "store" / "consumequeue" / "Exotic", tmp_path / "consumequeue" / topic)
    for place in (tmp_path / "consumequeue", tmp_path / "consumequeue" / topic):
        result = rmq("dump", place, "--limit", 1)
        assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", LAYOUTS)
def test_dump_prints_every_record(name: str, rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    with untouched(golden(name) / "store"):
        result = rmq("dump", golden(name) / "store", "--json", "--no-body")
    expected = [json.loads(line) for line in (golden(name) / "expected" / "messages.jsonl").read_bytes().splitlines()]
    assert result.exit_code == 0
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["physical_offset"] for row in found] == [row["physical_offset"] for row in expected]


@pytest.mark.parametrize("name", ["dledger", "dledger_mixed", "bcq", "rocksdb_lmq", "rocksdb_crash", "lmq"])
def test_query_finds_what_a_scan_finds(name: str, rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden(name) / "store"
    rows = [json.loads(line) for line in rmq("dump", store, "--json", "--no-body").stdout.splitlines()]
    row = next(item for item in reversed(rows) if not item["topic"].startswith(("%", "RMQ", "SCHEDULE", "Warm")))
    where = ("--topic", row["topic"], "--queue", row["queue_id"], "--offset", row["queue_offset"])
    with untouched(store):
        result = rmq("query", store, "--json", *where)
    assert result.exit_code == 0, result.output
    assert row["physical_offset"] in {json.loads(line)["physical_offset"] for line in result.stdout.splitlines()}


def test_query_shows_the_messages_of_the_inner_batch_that_has_the_offset(rmq: Rmq, golden: Golden) -> None:
    where = ("--topic", "BatchOrders", "--queue", 1, "--offset", 2)
    result = rmq("query", golden("bcq") / "store", "--json", *where)
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    base, count = int(record["properties"]["INNER_BASE"]), int(record["properties"]["INNER_NUM"])
    assert base < 2 < base + count
    shown = rmq("query", golden("bcq") / "store", *where).stdout
    assert f"an inner batch of {count} messages" in shown
    assert all(f"BatchOrders/1 #{offset}" in shown for offset in range(base, base + count))


def test_what_a_broker_keeps_in_rocksdbstore_is_told(rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy("mixed_551")
    assert "rocksdbstore" not in json.loads(rmq("inspect", store, "--json").stdout)
    shutil.rmtree(store / "rocksdbstore")
    pairs = Pairs(b"k1k2", 2, b"vv", 1)
    make_rocksdb(store / "rocksdbstore", {"default": iter(()), "timer": iter([pairs]), "trans": iter([pairs])})
    told = json.loads(rmq("inspect", store, "--json").stdout)
    assert told["rocksdbstore"] == {
        "timers (timerRocksDBEnable)": 2, "half messages (transRocksDBEnable)": 2,
    }  # fmt: skip
    assert "timers (timerRocksDBEnable): 2 pairs" in rmq("inspect", store).stdout
