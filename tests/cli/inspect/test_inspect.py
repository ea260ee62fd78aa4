"""``rmq inspect`` against what the golden stores are known to hold."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.codecs.checkpoint import Checkpoint
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.record_strategies import plain_message
from tests.support.stores.store_files import flip, write_commitlog

Golden = Callable[[str], Path]
Lines = Callable[[str], list[bytes]]


def inspected(rmq: Rmq, path: Path, exit_code: int = 0) -> dict[str, Any]:
    done = rmq("inspect", path, "--json")
    assert (done.exit_code, done.stderr) == (exit_code, "")
    assert done.stdout.count("\n") == 1
    return dict(json.loads(done.stdout))


def test_a_stores_figures_are_those_of_its_records(
    rmq: Rmq, golden: Golden, golden_name: str, expected_lines: Lines
) -> None:
    facts = inspected(rmq, golden(golden_name) / "store")
    records = [json.loads(line) for line in expected_lines(golden_name)]
    log = facts["commitlog"]
    assert facts["kind"] == "store"
    assert log["messages"] == len(records)
    assert log["bytes"] == sum(record["size"] for record in records)
    assert log["first_physical_offset"] == records[0]["physical_offset"]
    assert log["last_physical_offset"] == records[-1]["physical_offset"]
    assert log["end_physical_offset"] == records[-1]["physical_offset"] + records[-1]["size"]
    assert log["first_store_timestamp"] == min(record["store_timestamp"] for record in records)
    assert log["last_store_timestamp"] == max(record["store_timestamp"] for record in records)
    assert (log["findings"], log["finding_count"]) == ([], 0)
    assert sum(file["messages"] for file in log["files"]) == len(records)
    assert facts["abort"] is (golden_name == "crash")
    assert facts["checkpoint"]["physic_msg_timestamp_ms"] > 0


def test_topics_and_queues_are_those_of_the_records(
    rmq: Rmq, golden: Golden, golden_name: str, expected_lines: Lines
) -> None:
    facts = inspected(rmq, golden(golden_name) / "store")
    queues: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for line in expected_lines(golden_name):
        record = json.loads(line)
        queues[record["topic"], record["queue_id"]].append((record["queue_offset"], record["size"]))
    found = {
        (topic["topic"], queue["queue_id"]): queue
        for topic in facts["commitlog"]["topics"]
        for queue in topic["queues"]
    }
    assert set(found) == set(queues)
    for name, records in queues.items():
        offsets = [offset for offset, _ in records]
        assert found[name] == {
            "queue_id": name[1],
            "messages": len(records),
            "min_offset": min(offsets),
            "max_offset": max(offsets) + 1,
            "bytes": sum(size for _, size in records),
        }
    by_topic = Counter({topic["topic"]: topic["messages"] for topic in facts["commitlog"]["topics"]})
    assert by_topic == Counter(json.loads(line)["topic"] for line in expected_lines(golden_name))


def test_queue_files_and_index_files_are_counted(rmq: Rmq, golden: Golden, golden_name: str) -> None:
    facts = inspected(rmq, golden(golden_name) / "store")
    units = sum(queue["units"] for queue in facts["consumequeue"])
    assert units == facts["commitlog"]["messages"]
    entries = [
        json.loads(line) for line in rmq("dump", golden(golden_name) / "store" / "index", "--json").stdout.splitlines()
    ]
    assert sum(file["entries"] for file in facts["index"]) == len(entries)
    for file in facts["index"]:
        assert (file["slots"], file["max_entries"]) in {(500, 2000), (50, 200)}
        assert file["end_physical_offset"] >= file["begin_physical_offset"]
    if golden_name == "exotic_crc":
        assert sum(queue["units"] for queue in facts["consumequeue_ext"]) == units


def test_a_part_of_a_store_has_its_own_figures(rmq: Rmq, golden: Golden) -> None:
    store = golden("mixed") / "store"
    assert inspected(rmq, store / "commitlog")["commitlog"]["messages"] == 3234
    segment = inspected(rmq, store / "commitlog" / "00000000000001048576")
    assert (segment["kind"], len(segment["commitlog"]["files"])) == ("commitlog", 1)
    assert segment["commitlog"]["first_physical_offset"] == 1048576
    queue = inspected(rmq, store / "consumequeue" / "Orders" / "1")["consumequeue"]
    assert [(item["topic"], item["queue_id"], item["units"]) for item in queue] == [("Orders", 1, 182)]
    assert len(inspected(rmq, store / "consumequeue" / "Orders")["consumequeue"]) == 4
    index = sorted((store / "index").iterdir())[-1]
    assert inspected(rmq, index)["index"][0]["entries"] == 409
    assert len(inspected(rmq, store / "index")["index"]) == 4
    assert "Orders" in inspected(rmq, store / "config" / "topics.json")["config"]["topicConfigTable"]
    assert inspected(rmq, store / "checkpoint")["checkpoint"]["confirm_physical_offset"] == 0


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("mixed/store/commitlog/00000000000000000000", "commitlog"),
        ("mixed/store/consumequeue/Orders/0/00000000000000000000", "consumequeue"),
        ("exotic_crc/store/consumequeue_ext/Exotic/0/00000000000000000000", "consumequeue_ext"),
        ("mixed/store/checkpoint", "checkpoint"),
        ("mixed/store/config/topics.json", "config"),
    ],
)
def test_a_misplaced_file_is_recognised_by_its_content(
    rmq: Rmq, golden: Golden, tmp_path: Path, source: str, kind: str
) -> None:
    name, _, inner = source.partition("/")
    copy = Path(shutil.copy(golden(name) / inner, tmp_path / "copy"))
    assert inspected(rmq, copy)["kind"] == kind


def test_a_misplaced_index_file_is_recognised_by_its_content(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    source = sorted((golden("mixed") / "store" / "index").iterdir())[0]
    facts = inspected(rmq, Path(shutil.copy(source, tmp_path / "copy")))
    assert (facts["kind"], facts["index"][0]["entries"]) == ("index", 1999)


@pytest.mark.parametrize("content", [b"", b"text\n" * 100, bytes(100), b"\xff" * 5000])
def test_a_file_of_something_else_is_refused(rmq: Rmq, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "something"
    path.write_bytes(content)
    done = rmq("inspect", path)
    assert done.exit_code == 2
    assert one_line(done.stderr) == f"{path}: not a file of a store that rmq knows. Give a store."


def test_a_directory_of_something_else_is_refused(rmq: Rmq, tmp_path: Path) -> None:
    assert one_line(rmq("inspect", tmp_path).stderr) == f"{tmp_path}: holds no store and no files of one. Give a store."
    (tmp_path / "a").write_text("a")
    assert rmq("inspect", tmp_path).exit_code == 2


def test_damage_is_listed_in_the_order_of_the_log(
    rmq: Rmq, copy_of: Callable[[str], Path], expected_lines: Lines
) -> None:
    store = copy_of("mixed")
    damaged = [json.loads(line) for line in expected_lines("mixed")[5:9:3]]
    for record in damaged:
        flip(store, record["physical_offset"] + 4, 1048576)
    (store / "commitlog" / "00000000000001048576").unlink()
    facts = inspected(rmq, store, exit_code=1)
    found = [(item["code"], item["physical_offset"], item["size"]) for item in facts["commitlog"]["findings"]]
    assert found == [
        *(("commitlog.damaged", record["physical_offset"], record["size"]) for record in damaged),
        ("commitlog.segment.missing", 1048576, 1048576),
    ]
    shown = rmq("inspect", store)
    assert shown.exit_code == 1
    assert "3 findings" in shown.stdout
    assert "no record's magic number" in shown.stdout


@pytest.mark.parametrize("offset", [0, 2109964])
def test_only_the_checkpoint_of_a_later_broker_has_an_offset_of_queues(rmq: Rmq, tmp_path: Path, offset: int) -> None:
    (tmp_path / "checkpoint").write_bytes(Checkpoint(1, 1, 1, logics_physical_offset=offset).encode())
    shown = rmq("inspect", tmp_path / "checkpoint").output
    assert "confirmed offset" in shown
    assert (f"flushed up to offset {offset}, by a broker 5.5 or later" in shown) == (offset > 0)


def test_a_damaged_checkpoint_or_index_file_does_not_hide_the_rest(rmq: Rmq, copy_of: Callable[[str], Path]) -> None:
    store = copy_of("mixed")
    (store / "checkpoint").write_bytes(b"short")
    index = sorted((store / "index").iterdir())[1]
    index.write_bytes(index.read_bytes()[:1000])
    facts = inspected(rmq, store, exit_code=1)
    assert "checkpoint" not in facts
    assert facts["errors"] == [f"{store}/checkpoint: the bytes end within a checkpoint (found 5)"]
    assert [bool(file["error"]) for file in facts["index"]] == [False, True, False, False]
    assert facts["commitlog"]["messages"] == 3234
    assert rmq("inspect", store / "checkpoint").exit_code == 2
    assert "no number of slots fits" in " ".join(rmq("inspect", store).stdout.split())


def test_half_messages_have_no_queue(rmq: Rmq, tmp_path: Path) -> None:
    write_commitlog(tmp_path, [plain_message(sys_flag=flag) for flag in (0, 4, 8, 12)], 4096)
    facts = inspected(rmq, tmp_path)
    assert (facts["commitlog"]["messages"], facts["commitlog"]["without_queue"]) == (4, 2)
    assert facts["commitlog"]["topics"][0]["messages"] == 2
    assert "2 messages, prepared or rolled back" in rmq("inspect", tmp_path).stdout


def test_a_queue_that_begins_later_has_its_first_offset(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    done = rmq("inspect", golden("mixed") / "expected" / "consumequeue", "--json")
    assert done.exit_code == 0  # the directory of a store without the rest of it
    store = tmp_path / "store"
    write_commitlog(store, [plain_message() for _ in range(30)], 1000)
    (store / "commitlog" / f"{0:020d}").unlink()
    rmq("rebuild", store, "--index-slots", 10, "--index-entries", 100)
    log_queue = inspected(rmq, store)["commitlog"]["topics"][0]["queues"][0]
    queue = inspected(rmq, store)["consumequeue"][0]
    assert log_queue["min_offset"] == queue["min_offset"] > 0
    assert log_queue["max_offset"] == queue["max_offset"] == 30
    assert queue["units"] == log_queue["messages"]


def test_an_empty_store_has_no_messages(rmq: Rmq, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    (tmp_path / "checkpoint").write_bytes(Checkpoint().encode())
    facts = inspected(rmq, tmp_path)
    assert facts["commitlog"]["messages"] == 0
    assert facts["commitlog"]["first_physical_offset"] is None
    assert rmq("inspect", tmp_path).exit_code == 0


@pytest.mark.parametrize("part", ["", "commitlog", "consumequeue", "index", "checkpoint"])
def test_text_for_people_fits_80_columns(rmq: Rmq, golden: Golden, part: str) -> None:
    done = rmq("inspect", golden("mixed") / "store" / part)
    assert (done.exit_code, done.stderr) == (0, "")
    heading, *lines = done.stdout.splitlines()
    assert str(golden("mixed")) in heading
    assert all(len(line.rstrip()) <= 80 for line in lines)


def test_long_topics_are_folded_and_not_cut(rmq: Rmq, golden: Golden) -> None:
    done = rmq("inspect", golden("exotic") / "store")
    assert all(len(line.rstrip()) <= 80 for line in done.stdout.splitlines()[1:])
    assert "".join(done.stdout.split()).count("0123456789") > 15
