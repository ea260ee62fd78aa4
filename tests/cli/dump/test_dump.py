"""``rmq dump`` against Java's own reading of the golden stores."""

import json
import shutil
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.index import IndexHeader
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_files import flip

Golden = Callable[[str], Path]
Lines = Callable[[str], list[bytes]]
FILE_BYTES = 1048576  # of mixed


def test_records_are_javas_byte_for_byte(rmq: Rmq, golden: Golden, golden_name: str, expected_lines: Lines) -> None:
    done = rmq("dump", golden(golden_name) / "store", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout_bytes == b"".join(expected_lines(golden_name))


def test_a_commitlog_directory_is_dumped_like_its_store(rmq: Rmq, golden: Golden, expected_lines: Lines) -> None:
    done = rmq("dump", golden("exotic") / "store" / "commitlog", "--json")
    assert done.stdout_bytes == b"".join(expected_lines("exotic"))


@pytest.mark.parametrize("renamed", [False, True])
def test_one_file_is_dumped_with_its_own_records(
    rmq: Rmq, golden: Golden, expected_lines: Lines, tmp_path: Path, renamed: bool
) -> None:
    path = golden("mixed") / "store" / "commitlog" / f"{FILE_BYTES:020d}"
    if renamed:  # then the records say where they stood
        path = Path(shutil.copy(path, tmp_path / "segment.bin"))
    done = rmq("dump", path, "--json")
    wanted = [line for line in expected_lines("mixed") if FILE_BYTES <= offset_of(line) < 2 * FILE_BYTES]
    assert (done.exit_code, done.stdout_bytes) == (0, b"".join(wanted))


def offset_of(line: bytes) -> int:
    return int(json.loads(line)["physical_offset"])


def test_from_begins_at_the_next_record(rmq: Rmq, golden: Golden, expected_lines: Lines) -> None:
    store, lines = golden("mixed") / "store", expected_lines("mixed")
    offsets = [offset_of(line) for line in lines]
    boundary = bisect_left(offsets, FILE_BYTES)  # of the second file's first record
    for begin in (offsets[10], offsets[10] + 1, offsets[11] - 1, offsets[boundary - 1] + 1, FILE_BYTES, offsets[-1]):
        done = rmq("dump", store, "--json", "--from", begin, "--limit", 3)
        first = bisect_left(offsets, begin)
        assert (done.exit_code, done.stdout_bytes) == (0, b"".join(lines[first : first + 3]))


def test_a_dump_from_an_offset_after_the_log_is_empty(rmq: Rmq, golden: Golden) -> None:
    done = rmq("dump", golden("mixed") / "store", "--json", "--from", 1 << 50)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    done = rmq("dump", golden("mixed") / "store", "--from", 1 << 50)
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1)
    assert done.stderr == f"rmq: {golden('mixed') / 'store'}: has nothing from {1 << 50} on\n"


@pytest.mark.parametrize("limit", [0, 1, 600, 10**6])
def test_limit_counts_the_records_that_are_printed(rmq: Rmq, golden: Golden, expected_lines: Lines, limit: int) -> None:
    wanted = [line for line in expected_lines("mixed") if json.loads(line)["topic"] == "Orders"][:limit]
    done = rmq("dump", golden("mixed") / "store", "--json", "--topic", "Orders", "--limit", limit)
    assert done.stdout_bytes == b"".join(wanted)


def test_without_bodies_the_rest_is_the_same(rmq: Rmq, golden: Golden, golden_name: str, expected_lines: Lines) -> None:
    done = rmq("dump", golden(golden_name) / "store", "--json", "--no-body")
    for line, expected in zip(done.stdout_bytes.splitlines(), expected_lines(golden_name), strict=True):
        fields = json.loads(expected)
        del fields["body_base64"]
        assert line.decode() == json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def test_damage_is_reported_and_the_rest_is_dumped(
    rmq: Rmq, copy_of: Callable[[str], Path], expected_lines: Lines
) -> None:
    store, lines = copy_of("mixed"), expected_lines("mixed")
    second, third = json.loads(lines[1]), json.loads(lines[2])
    flip(store, second["physical_offset"] + 95, FILE_BYTES)  # in the body
    flip(store, third["physical_offset"] + 4, FILE_BYTES)  # the magic number
    done = rmq("dump", store, "--json")
    assert done.exit_code == 1
    assert done.stdout_bytes == b"".join([lines[0], *lines[3:]])
    assert done.stderr.splitlines() == [
        f"rmq: damage at offset {second['physical_offset']}, {second['size']} bytes: body CRC does not match",
        f"rmq: damage at offset {third['physical_offset']}, {third['size']} bytes: no record's magic number",
    ]


def test_a_missing_file_is_reported(rmq: Rmq, copy_of: Callable[[str], Path], expected_lines: Lines) -> None:
    store = copy_of("mixed")
    (store / "commitlog" / f"{FILE_BYTES:020d}").unlink()
    done = rmq("dump", store, "--json")
    assert (done.exit_code, one_line(done.stderr)) == (1, "no file holds the log at offset 1048576 (1048576 bytes)")
    gone = range(FILE_BYTES, 2 * FILE_BYTES)
    assert done.stdout_bytes == b"".join(line for line in expected_lines("mixed") if offset_of(line) not in gone)
    assert rmq("dump", store, "--json", "--from", 2 * FILE_BYTES).exit_code == 0


def test_people_read_place_tags_keys_and_body(rmq: Rmq, golden: Golden) -> None:
    done = rmq("dump", golden("mixed") / "store", "--topic", "OneByte", "--limit", 1)
    assert done.exit_code == 0
    heading, place, *rest = done.stdout.splitlines()
    assert heading.split() == ["offset", "size", "stored", "topic/queue", "#queue", "offset"]
    assert place.split()[-2:] == ["OneByte/3", "#0"]
    assert rest[-1].strip().startswith("body 1 B: ")
    assert "body" not in rmq("dump", golden("mixed") / "store", "--limit", 1, "--no-body").stdout


def test_text_for_people_fits_80_columns_and_cannot_steer_a_terminal(rmq: Rmq, golden: Golden) -> None:
    done = rmq("dump", golden("mixed") / "store")
    assert done.stdout.count("\n") > 3000
    assert all(line.isprintable() for line in done.stdout.splitlines())
    bodies = [line for line in done.stdout.splitlines() if line.strip().startswith("body ")]
    assert all(len(line) <= 80 for line in bodies)


def test_units_have_their_queue_offsets(rmq: Rmq, golden: Golden, expected_lines: Lines) -> None:
    done = rmq("dump", golden("mixed") / "store" / "consumequeue", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    units = [json.loads(line) for line in done.stdout.splitlines()]
    assert list(units[0]) == ["topic", "queue_id", "queue_offset", "physical_offset", "size", "tags_code"]
    records = [json.loads(line) for line in expected_lines("mixed")]
    names = ("topic", "queue_id", "queue_offset", "physical_offset", "size")
    found = sorted(tuple(unit[name] for name in names) for unit in units)
    assert found == sorted(tuple(record[name] for name in names) for record in records)


@pytest.mark.parametrize("part", ["Orders", "Orders/2", "Orders/2/00000000000000000000"])
def test_a_part_of_the_queues_is_dumped_with_its_units(rmq: Rmq, golden: Golden, part: str) -> None:
    done = rmq("dump", golden("mixed") / "store" / "consumequeue" / part, "--json", "--from", 3, "--limit", 2)
    units = [json.loads(line) for line in done.stdout.splitlines()]
    queue_id = 0 if part == "Orders" else 2
    assert [(unit["topic"], unit["queue_id"], unit["queue_offset"]) for unit in units] == [
        ("Orders", queue_id, 3),
        ("Orders", queue_id, 4),
    ]


def test_units_of_a_copied_queue_have_no_topic(rmq: Rmq, golden: Golden, tmp_path: Path) -> None:
    source = golden("mixed") / "store" / "consumequeue" / "Orders" / "2"
    copy = Path(shutil.copytree(source, tmp_path / "queue"))
    unit = json.loads(rmq("dump", copy, "--json", "--limit", 1).stdout)
    assert (unit["topic"], unit["queue_id"], unit["queue_offset"]) == (None, None, 0)


def test_a_topic_chooses_among_the_queues(rmq: Rmq, golden: Golden) -> None:
    done = rmq("dump", golden("mixed") / "store" / "consumequeue", "--json", "--topic", "Ordered")
    assert {json.loads(line)["topic"] for line in done.stdout.splitlines()} == {"Ordered"}


def test_offsets_without_a_unit_are_reported(rmq: Rmq, copy_of: Callable[[str], Path]) -> None:
    path = copy_of("mixed") / "consumequeue" / "Orders" / "2" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[40:80] = bytes(40)
    path.write_bytes(data)
    done = rmq("dump", path, "--json", "--limit", 1000)
    assert (done.exit_code, one_line(done.stderr)) == (1, "Orders/2: 2 places without a unit, and units behind them")
    assert [json.loads(line)["queue_offset"] for line in done.stdout.splitlines()][:3] == [0, 1, 4]


def test_ext_units_stand_at_the_addresses_that_the_queue_has(rmq: Rmq, golden: Golden) -> None:
    store = golden("exotic_crc") / "store"
    ext = [json.loads(line) for line in rmq("dump", store / "consumequeue_ext", "--json").stdout.splitlines()]
    units = [json.loads(line) for line in rmq("dump", store / "consumequeue", "--json").stdout.splitlines()]
    assert [unit["address"] for unit in ext] == [unit["tags_code"] for unit in units]
    assert len(ext) == 600


def test_index_entries_are_those_of_the_file(rmq: Rmq, golden: Golden) -> None:
    directory = golden("mixed") / "store" / "index"
    entries = [json.loads(line) for line in rmq("dump", directory, "--json").stdout.splitlines()]
    assert list(entries[0]) == [
        "index_file", "entry", "slot", "key_hash", "physical_offset", "store_timestamp", "previous_entry",
    ]  # fmt: skip
    for path in sorted(directory.iterdir()):
        header = IndexHeader.decode(path.read_bytes())
        own = [entry for entry in entries if entry["index_file"] == path.name]
        assert [entry["entry"] for entry in own] == list(range(1, header.index_count))
        assert own[0]["physical_offset"] == header.begin_physical_offset
        assert own[-1]["physical_offset"] == header.end_physical_offset
        assert all(entry["slot"] == entry["key_hash"] % 500 for entry in own)
        for entry in own:
            if entry["previous_entry"]:
                assert own[entry["previous_entry"] - 1]["slot"] == entry["slot"]
    assert [path.name for path in sorted(directory.iterdir())] == sorted({entry["index_file"] for entry in entries})


def test_a_damaged_index_file_is_reported_and_the_next_one_read(rmq: Rmq, copy_of: Callable[[str], Path]) -> None:
    directory = copy_of("mixed") / "index"
    first, second = sorted(directory.iterdir())[:2]
    first.write_bytes(first.read_bytes()[:1000])
    done = rmq("dump", directory, "--json", "--limit", 1)
    assert done.exit_code == 1
    assert str(first) in one_line(done.stderr)
    assert json.loads(done.stdout)["index_file"] == second.name


def test_a_checkpoint_and_a_config_file_are_shown(rmq: Rmq, golden: Golden) -> None:
    store = golden("mixed") / "store"
    checkpoint = json.loads(rmq("dump", store / "checkpoint", "--json").stdout)
    assert checkpoint["physic_msg_timestamp_ms"] == 1795230345897
    topics = json.loads(rmq("dump", store / "config" / "topics.json").stdout)
    assert "Orders" in topics["topicConfigTable"]
    assert rmq("dump", store / "config" / "delayOffset.json", "--json").stdout.count("\n") == 1


@pytest.mark.parametrize("part", ["consumequeue", "consumequeue_ext", "index"])
def test_each_kind_has_text_for_people_within_80_columns(rmq: Rmq, golden: Golden, part: str) -> None:
    done = rmq("dump", golden("exotic_crc") / "store" / part, "--limit", 5)
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if not line.startswith("L0123")]  # the topic of 200 letters
    assert len(lines) >= 7
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("part", ["index", "checkpoint", "config/topics.json"])
def test_a_topic_of_what_has_none_is_refused(rmq: Rmq, golden: Golden, part: str) -> None:
    done = rmq("dump", golden("mixed") / "store" / part, "--topic", "Orders")
    assert done.exit_code == 2
    assert "--topic" in one_line(done.stderr)


def test_a_dump_of_a_store_without_records_is_empty(rmq: Rmq, tmp_path: Path) -> None:
    commitlog = tmp_path / "store" / "commitlog"
    commitlog.mkdir(parents=True)
    assert "no CommitLog files" in one_line(rmq("dump", tmp_path / "store").stderr)
    (commitlog / f"{0:020d}").write_bytes(bytes(4096))
    (commitlog / f"{4096:020d}").write_bytes(b"")  # as a broker that died at once leaves it
    done = rmq("dump", tmp_path / "store", "--json")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("command", ["dump", "inspect"])
@pytest.mark.parametrize(("store", "database"), [("rocksdb", "config/topics"), ("rocksdb_crash", "config/rdb")])
def test_a_database_of_config_is_given_by_its_name(
    rmq: Rmq, golden: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, command: str, store: str, database: str
) -> None:
    directory = golden(store) / "store" / database
    assert rmq(command, directory).exit_code == 0
    monkeypatch.chdir(directory)
    result = rmq(command, ".")
    assert result.exit_code == 2
    assert "holds no store" in result.stderr
