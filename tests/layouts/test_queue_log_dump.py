"""Dump and inspect of queues' own logs and of units of 46 bytes, in tiered storage, compacted topics, batch queues."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats import Store
from rmq_formats.codecs.tiered import cluster_directory, segment_name
from tests.cli.conftest import Rmq
from tests.layouts.conftest import Untouched, refusal
from tests.layouts.test_queue_logs import BROKER, LOG_BYTES, tier_file

Golden = Callable[[str], Path]


def dumped(rmq: Rmq, path: Path, *more: object) -> list[dict[str, Any]]:
    result = rmq("dump", path, "--json", *more)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def inspected(rmq: Rmq, path: Path) -> dict[str, Any]:
    result = rmq("inspect", path, "--json")
    assert result.exit_code == 0, result.output
    assert rmq("inspect", path).exit_code == 0
    return dict(json.loads(result.stdout))


def test_records_of_a_tier_s_queue_are_dumped(rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden("tiered") / "store"
    with untouched(store):
        found = dumped(rmq, store / "tiered" / BROKER / "Orders/0/COMMIT_LOG", "--no-body")
    assert [row["queue_offset"] for row in found] == list(range(180))
    assert found[166]["physical_offset"] == 65403
    one = dumped(rmq, tier_file(store, "Orders/0", 1), "--no-body")
    assert one == found[166:]
    assert dumped(rmq, store / "tiered" / BROKER / "Orders/0/COMMIT_LOG", "--no-body", "--from", 65403) == one


def test_units_of_a_tier_s_queue_are_dumped(rmq: Rmq, golden: Golden) -> None:
    store = golden("tiered") / "store"
    records = dumped(rmq, store / "tiered" / BROKER / "Orders/0/COMMIT_LOG", "--no-body")
    units = dumped(rmq, store / "tiered" / BROKER / "Orders/0/CONSUME_QUEUE")
    assert [(unit["topic"], unit["queue_id"], unit["queue_offset"]) for unit in units] == [
        ("Orders", 0, number) for number in range(180)
    ]
    assert [(unit["physical_offset"], unit["size"]) for unit in units] == [
        (record["physical_offset"], record["size"]) for record in records
    ]
    assert dumped(rmq, tier_file(store, "Orders/0", 1, "CONSUME_QUEUE")) == units[100:]


def test_records_and_units_of_a_compacted_topic_are_dumped(rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden("compaction") / "store"
    with untouched(store):
        records = dumped(rmq, store / "compaction/compactionLog/Profiles/0", "--no-body")
        units = dumped(rmq, store / "compaction/compactionCq", "--topic", "Profiles")
    assert len(records) == len(units) == 31
    for name in ("queue_offset", "physical_offset", "size", "store_timestamp"):
        assert [row[name] for row in records] == [row[name] for row in units]
    assert {row["batch_size"] for row in units} == {1}
    assert dumped(rmq, store / f"compaction/compactionCq/Profiles/0/{96600:020d}") == units[25:]
    assert dumped(rmq, store / "compaction/compactionCq/Profiles/0", "--from", 244) == units[25:]
    assert rmq("dump", store / "compaction/compactionCq/Profiles").stdout.count("\n") == 33


def test_a_full_file_s_end_unit_is_no_fault(rmq: Rmq, golden: Golden) -> None:
    tree = golden("compaction") / "expected" / "compaction" / "compactionCq"
    assert len(dumped(rmq, tree / "Profiles" / "0" / f"{0:020d}")) == 84


def test_logs_of_several_queues_are_refused(rmq: Rmq, golden: Golden) -> None:
    store = golden("compaction") / "store"
    for path in ("compaction/compactionLog", "compaction/compactionLog/Profiles"):
        assert "give one queue's directory" in refusal(rmq, "dump", store / path)
    tier = golden("tiered") / "store" / "tiered"
    assert "give a queue's COMMIT_LOG or CONSUME_QUEUE directory" in refusal(rmq, "dump", tier)


@pytest.mark.parametrize("copied", ["copied", f"{0:020d}"])
def test_units_of_batch_queues_are_dumped(copied: str, rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    store = golden("bcq") / "store"
    units = dumped(rmq, store / "batchconsumequeue" / "BatchOrders")
    end: dict[int, int] = {}
    for unit in units:
        assert unit["queue_offset"] == end.get(unit["queue_id"], 0)
        end[unit["queue_id"]] = unit["queue_offset"] + unit["batch_size"]
    file = store / "batchconsumequeue" / "BatchOrders" / "0" / f"{0:020d}"
    shutil.copy(file, tmp_path / copied)
    without = [{**unit, "topic": None, "queue_id": None} for unit in dumped(rmq, file)]
    assert dumped(rmq, tmp_path / copied) == without
    assert inspected(rmq, store)["batchconsumequeue"][0]["topic"].startswith("Batch")


def test_damage_is_told(rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy("compaction")
    path = store / "compaction/compactionCq/Profiles/0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[4500] = 7
    path.write_bytes(data)
    result = rmq("dump", path)
    assert (result.exit_code, result.stderr.count("bytes behind it")) == (1, 1)


def test_inspect_names_the_parts_of_a_tier(rmq: Rmq, golden: Golden, untouched: Untouched) -> None:
    store = golden("tiered") / "store"
    with untouched(store):
        found = inspected(rmq, store / "tiered")
    assert len(found["tier"]) == 13
    orders = next(log for log in found["tier"] if (log["topic"], log["queue_id"]) == ("Orders", 0))
    assert orders == {
        "cluster": "GoldenCluster", "broker": "golden-a", "topic": "Orders", "queue_id": 0, "files": 2,
        "size_bytes": 70996, "unit_files": 2, "min_place": 0, "max_place": 70996,
    }  # fmt: skip
    assert "golden-a: Orders" in rmq("inspect", store / "tiered").stdout
    log = inspected(rmq, store / "tiered" / BROKER / "Orders/0/COMMIT_LOG")["commitlog"]
    assert (log["messages"], log["finding_count"]) == (180, 0)
    assert inspected(rmq, store / "tiered" / BROKER / "Orders/0/CONSUME_QUEUE")["consumequeue"][0]["units"] == 180


def test_inspect_names_the_logs_of_compacted_topics(rmq: Rmq, golden: Golden) -> None:
    store = golden("compaction") / "store"
    found = inspected(rmq, store)
    assert [(log["topic"], log["queue_id"], log["files"]) for log in found["compacted"]] == [
        ("Profiles", 0, 2), ("Settings", 0, 2), ("Settings", 1, 2),
    ]  # fmt: skip
    log = inspected(rmq, store / "compaction/compactionLog/Settings/0")["commitlog"]
    assert (log["messages"], log["finding_count"]) == (len(list(Store(store).compacted().messages("Settings", 0))), 0)
    assert log["size_bytes"] < LOG_BYTES
    queue = inspected(rmq, store / "compaction/compactionCq/Settings/0")["batchconsumequeue"][0]
    assert (queue["min_offset"], queue["max_offset"], queue["units"]) == (138, 220, log["messages"])


def test_records_with_sums_of_their_own_are_sound_in_a_tier(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    """Such a sum is over the physical offset, too, which is another one in the tier; the tier keeps the old sum."""
    store = golden("exotic_crc") / "store"
    messages = [message for message in Store(store).messages() if message.topic == "Exotic" and message.queue_id == 0]
    log = b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))
    data = b""
    for message in messages:
        record = bytearray(log[message.physical_offset :][: message.size])
        record[28:36] = len(data).to_bytes(8, "big")
        data += record
    queue = tmp_path / "tier" / cluster_directory("c") / "b" / "Exotic" / "0"
    (queue / "COMMIT_LOG").mkdir(parents=True)
    (queue / "COMMIT_LOG" / segment_name(0)).write_bytes(data)
    found = [row for batch in Store(store, tier=tmp_path / "tier", log="tiered") for row in batch.to_pylist()]
    assert [row["queue_offset"] for row in found] == [message.queue_offset for message in messages]
    assert not any(row["record_error"] for row in found)
    assert len(list(Store(store, tier=tmp_path / "tier", log="tiered").messages(strict=True))) == len(messages) > 10
    assert len(dumped(rmq, queue / "COMMIT_LOG")) == len(dumped(rmq, queue / "COMMIT_LOG" / segment_name(0))) > 10
    assert inspected(rmq, queue / "COMMIT_LOG")["commitlog"]["finding_count"] == 0
    report = json.loads(rmq("verify", store, "--tier", tmp_path / "tier", "--json", "--workers", 1).stdout)
    assert {code for code in report["finding_counts"] if code.startswith("queue_log")} == {"queue_log.unit.missing"}


def test_a_gap_in_a_tier_is_told(rmq: Rmq, golden_copy: Golden) -> None:
    store = golden_copy("tiered")
    path = tier_file(store, "Orders/0", 1)
    path.rename(path.with_name(segment_name(70_000)))
    result = rmq("dump", path.parent)
    assert result.exit_code == 1
    assert "no file holds the log at offset 65403" in result.stderr
