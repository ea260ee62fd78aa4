"""A damaged log costs the units of the damaged records and nothing else, and each fault is reported."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rmq_formats.codecs.consumequeue import MAX_GAP_UNITS, PRE_BLANK, Unit
from rmq_formats.codecs.layout import MAGIC_BLANK, UNIT_BYTES
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import encode_record
from rmq_formats.codecs.record_frame import DamageCode
from rmq_offline.rebuild.report import RebuildReport
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, Kind
from tests.conftest import GOLDEN_SETTINGS
from tests.support.stores.rebuilt_stores import (
    SMALL,
    Splits,
    built,
    by_codecs,
    commitlog_only,
    golden_options,
    message,
    patch,
    rebuild,
    small_store,
    stored_messages,
)
from tests.support.stores.store_files import tree, write_commitlog

EXOTIC = golden_options(GOLDEN_SETTINGS["exotic"])
FILE_BYTES = GOLDEN_SETTINGS["exotic"].commitlog_file_bytes


@dataclass(frozen=True)
class Exotic:
    """A copy of a golden store's log, to be damaged, and what Java made of it when it was whole."""

    store: Path
    out: Path
    expected: Path
    records: list[dict[str, Any]]

    def patch(self, physical_offset: int, data: bytes) -> None:
        patch(self.store, physical_offset, data, FILE_BYTES)

    def file(self, number: int) -> Path:
        return sorted((self.store / "commitlog").iterdir())[number]

    def rebuild(self, splits: int = 1) -> RebuildReport:
        return rebuild(self.store, self.out, EXOTIC, Splits(splits))

    def lost(self, begin: int, end: int) -> set[int]:
        """Physical offsets of the records that have a byte in a range."""
        return {
            record["physical_offset"]
            for record in self.records
            if record["physical_offset"] < end and record["physical_offset"] + record["size"] > begin
        }

    def check(self, lost: set[int]) -> None:
        """All units but those of the lost records are where they were; the codecs agree in all."""
        assert lost
        found, expected = built(self.out), built(self.expected)
        for path, image in expected.queues.items():
            units, whole = units_of(found.queues.get(path, bytes(len(image)))), units_of(image)
            gone = [number for number, unit in enumerate(whole) if unit.size > 0 and unit.physical_offset in lost]
            assert [unit for number, unit in enumerate(units) if number not in gone] == [
                unit for number, unit in enumerate(whole) if number not in gone
            ]
            fillers = {Unit.decode(PRE_BLANK), Unit(0, 0, 0)}  # a gap's, and those past a queue's new end
            assert {units[number] for number in gone} <= fillers
        assert found == by_codecs(self.store, EXOTIC)


def units_of(image: bytes) -> list[Unit]:
    return [Unit.decode(image, at) for at in range(0, len(image), UNIT_BYTES)]


@pytest.fixture
def exotic(golden: Callable[[str], Path], tmp_path: Path) -> Exotic:
    expected = golden("exotic") / "expected"
    records = [json.loads(line) for line in (expected / "messages.jsonl").read_text("utf-8").splitlines()]
    return Exotic(commitlog_only(golden("exotic") / "store", tmp_path / "store"), tmp_path / "out", expected, records)


def of_kind(report: RebuildReport, kind: Kind) -> list[Finding]:
    found = [finding for finding in report.findings if finding.kind == kind]
    assert report.finding_counts.get(kind.code, 0) == len(found)
    return found


def damages(report: RebuildReport) -> list[tuple[int | None, int | None]]:
    return [(finding.physical_offset, finding.size) for finding in of_kind(report, finding_kinds.LOG_DAMAGED)]


@pytest.mark.parametrize("splits", [1, 40])
def test_a_flipped_byte_in_a_body_costs_that_record(exotic: Exotic, splits: int) -> None:
    record = exotic.records[137]
    exotic.patch(record["physical_offset"] + record["size"] // 2, b"\xfe\xff")
    report = exotic.rebuild(splits)
    exotic.check({record["physical_offset"]})
    assert damages(report) == [(record["physical_offset"], record["size"])]
    assert of_kind(report, finding_kinds.LOG_DAMAGED)[0].detail == DamageCode.BODY_CRC.text
    assert len(of_kind(report, finding_kinds.QUEUE_OFFSET_GAP)) == 1


@pytest.mark.parametrize("splits", [1, 7, 90])
def test_a_kilobyte_of_garbage_costs_the_records_under_it(exotic: Exotic, splits: int) -> None:
    begin = exotic.records[200]["physical_offset"] + 50
    exotic.patch(begin, np.random.default_rng(5).bytes(1024))
    report = exotic.rebuild(splits)
    lost = exotic.lost(begin, begin + 1024)
    exotic.check(lost)
    assert [offset for offset, _ in damages(report)] == [min(lost)], "one stretch, whatever split it lies in"
    assert sum(size or 0 for _, size in damages(report)) == sum(
        record["size"] for record in exotic.records if record["physical_offset"] in lost
    )


@pytest.mark.parametrize("splits", [1, 50])
@pytest.mark.parametrize("begin", [0, 30_000, FILE_BYTES + 64])
def test_a_zeroed_range_costs_its_records(exotic: Exotic, begin: int, splits: int) -> None:
    exotic.patch(begin, bytes(8192))
    report = exotic.rebuild(splits)
    lost = exotic.lost(begin, begin + 8192)
    exotic.check(lost)
    assert [offset for offset, _ in damages(report)] == [min(lost)]


def test_a_truncated_file_costs_the_records_after_the_cut(exotic: Exotic) -> None:
    path = exotic.file(1)
    with path.open("r+b") as file:
        file.truncate(20_000)
    report = exotic.rebuild(20)
    lost = exotic.lost(FILE_BYTES + 20_000, 2 * FILE_BYTES)
    exotic.check(lost)
    assert damages(report) == [(min(lost), FILE_BYTES + 20_000 - min(lost))]
    (finding,) = of_kind(report, finding_kinds.SEGMENT_SIZE)
    assert (finding.path, finding.physical_offset, finding.size) == (str(path), FILE_BYTES, 20_000)


@pytest.mark.parametrize("number", [0, 1, 3])
@pytest.mark.parametrize("size", [0, 5])
def test_a_file_that_is_almost_empty_costs_its_own_records(exotic: Exotic, number: int, size: int) -> None:
    path = exotic.file(number)
    path.write_bytes(path.read_bytes()[:size])
    report = exotic.rebuild()
    exotic.check(exotic.lost(number * FILE_BYTES, (number + 1) * FILE_BYTES))
    assert [finding.path for finding in of_kind(report, finding_kinds.SEGMENT_SIZE)] == [str(path)]
    assert damages(report) == ([(number * FILE_BYTES, 5)] if size else [])


def test_a_missing_file_is_reported_with_the_lost_range(exotic: Exotic) -> None:
    exotic.file(2).unlink()
    report = exotic.rebuild(9)
    exotic.check(exotic.lost(2 * FILE_BYTES, 3 * FILE_BYTES))
    (finding,) = of_kind(report, finding_kinds.SEGMENT_MISSING)
    assert (finding.physical_offset, finding.size) == (2 * FILE_BYTES, FILE_BYTES)


def test_queues_without_their_first_files_begin_with_pre_blanks(exotic: Exotic) -> None:
    exotic.file(0).unlink()
    report = exotic.rebuild()
    lost = exotic.lost(0, FILE_BYTES)
    assert built(exotic.out) == by_codecs(exotic.store, EXOTIC)
    assert report.finding_counts == {}, "a broker deletes its oldest files all the time"
    assert report.messages == len(exotic.records) - len(lost)


@pytest.mark.parametrize(
    "name", ["notes.txt", "0", "00000000000000065536.bak", "a" * 20, ".0000000000000000000", "99999999999999999999"]
)
def test_foreign_files_in_the_commitlog_are_ignored_and_reported(exotic: Exotic, name: str) -> None:
    (exotic.store / "commitlog" / name).write_bytes(b"\xff" * 3000)
    (exotic.store / "commitlog" / f"{9 * FILE_BYTES:020d}").mkdir()
    (exotic.store / "commitlog" / "dangling").symlink_to("nowhere")
    report = exotic.rebuild()
    assert built(exotic.out) == built(exotic.expected)
    (found,) = of_kind(report, finding_kinds.SEGMENT_FOREIGN)
    assert (found.path, found.size) == (str(exotic.store / "commitlog" / name), 3000)
    assert report.finding_counts == {"commitlog.foreign": 1}


def test_a_record_within_a_body_gets_no_unit(tmp_path: Path) -> None:
    inner = encode_record(message(7), queue_offset=0, physical_offset=1088, store_timestamp_ms=5)
    bodies = [bytes(800)] + [inner * 3 + bytes(1500)] + [bytes(900)] * 3
    write_commitlog(tmp_path / "store", [message(1, body=body) for body in bodies], 8192)
    outer = list(stored_messages(tmp_path / "store"))[1]
    assert outer.physical_offset + 88 < 1088
    body = bytes(1088 - outer.physical_offset - 88) + inner + bytes(len(outer.body))
    write_commitlog(tmp_path / "store", [message(1, body=part[: len(outer.body)]) for part in (bodies[0], body)], 8192)
    for splits in (1, 2, 3, 5, 8, 13, 21, 34):
        rebuild(tmp_path / "store", tmp_path / f"out{splits}", SMALL, Splits(splits))
        assert built(tmp_path / f"out{splits}") == by_codecs(tmp_path / "store"), splits
    assert len(list(stored_messages(tmp_path / "store"))) == 2


def test_records_of_an_earlier_life_after_the_blank_get_no_units(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 60, 16384)
    records = list(stored_messages(store))
    at = records[20].physical_offset
    patch(store, at, (16384 - at).to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big", signed=True), 16384)
    for splits in (1, 5, 30):
        report = rebuild(store, tmp_path / f"out{splits}", SMALL, Splits(splits))
        assert report.messages == 20
        assert built(tmp_path / f"out{splits}") == by_codecs(store)


def set_queue_offset(store: Path, physical_offset: int, queue_offset: int) -> None:
    patch(store, physical_offset + 20, queue_offset.to_bytes(8, "big", signed=True))


@pytest.mark.parametrize("wild", [1 << 40, 1 << 60, (1 << 63) - 1, -1, -(1 << 63), 20 + MAX_GAP_UNITS])
def test_a_wild_queue_offset_is_reported_and_costs_at_most_its_own_unit(tmp_path: Path, wild: int) -> None:
    store = small_store(tmp_path / "store")
    victim = list(stored_messages(store))[50]
    set_queue_offset(store, victim.physical_offset, wild)
    report = rebuild(store, tmp_path / "out")
    (finding,) = of_kind(report, finding_kinds.QUEUE_OFFSET_DISPLACED)
    assert (finding.physical_offset, finding.queue_offset, finding.topic) == (victim.physical_offset, wild, "Topic2")
    if wild not in {(1 << 63) - 1, -1, -(1 << 63)}:  # which a broker skips, as their places are below the queue's end
        set_queue_offset(store, victim.physical_offset, victim.queue_offset)
    assert built(tmp_path / "out").queues == by_codecs(store).queues


@pytest.mark.parametrize("wild", [(1 << 63) - 1, -1, 1 << 62, (1 << 63) // 20])
def test_a_queue_of_one_record_with_an_impossible_offset_is_not_written(tmp_path: Path, wild: int) -> None:
    write_commitlog(tmp_path / "store", [message(0), message(1), message(0, "Alone")], 4096)
    victim = list(stored_messages(tmp_path / "store"))[2]
    set_queue_offset(tmp_path / "store", victim.physical_offset, wild)
    report = rebuild(tmp_path / "store", tmp_path / "out")
    assert [finding.topic for finding in of_kind(report, finding_kinds.QUEUE_OFFSET_DISPLACED)] == ["Alone"]
    assert sorted(tree(tmp_path / "out" / "consumequeue")) == [f"Topic0/0/{0:020d}", f"Topic1/1/{0:020d}"]


def test_of_a_repeated_queue_offset_the_first_record_has_it(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    records = [record for record in stored_messages(store) if (record.topic, record.queue_id) == ("Topic0", 0)]
    set_queue_offset(store, records[9].physical_offset, records[4].queue_offset)
    report = rebuild(store, tmp_path / "out", SMALL, Splits(30))
    assert built(tmp_path / "out") == by_codecs(store)
    (finding,) = of_kind(report, finding_kinds.QUEUE_OFFSET_REPEATED)
    assert (finding.physical_offset, finding.queue_offset) == (records[9].physical_offset, 4)
    assert len(of_kind(report, finding_kinds.QUEUE_OFFSET_GAP)) == 1


UNSAFE = ["../../evil", "a/b", "..", ".", "/etc/evil", "nul\0", "x" * 256, "\ufffd"]


@pytest.mark.parametrize("topic", UNSAFE)
def test_a_topic_that_is_no_directory_name_is_reported_and_not_written(tmp_path: Path, topic: str) -> None:
    write_commitlog(tmp_path / "deep" / "store", [message(0), message(1, topic), message(1), message(1, topic)], 4096)
    (tmp_path / "deep" / "out").mkdir()
    report = rebuild(tmp_path / "deep" / "store", tmp_path / "deep" / "out")
    (finding,) = of_kind(report, finding_kinds.LOG_TOPIC)
    assert (finding.topic, finding.physical_offset) == (
        topic,
        list(stored_messages(tmp_path / "deep" / "store"))[1].physical_offset,
    )
    assert set(tree(tmp_path / "deep" / "out" / "consumequeue")) == {f"Topic0/0/{0:020d}", f"Topic1/1/{0:020d}"}
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"store", "out"}
    assert (report.queues, report.units) == (2, 2)
    assert built(tmp_path / "deep" / "out").index == by_codecs(tmp_path / "deep" / "store").index


def test_a_topic_that_is_not_utf_8_is_reported_and_not_written(tmp_path: Path) -> None:
    write_commitlog(tmp_path / "store", [message(0), message(1, "TOPIC")], 4096)
    victim = list(stored_messages(tmp_path / "store"))[1]
    patch(tmp_path / "store", victim.physical_offset + 88 + len(victim.body) + 1, b"\xff\xfe")
    report = rebuild(tmp_path / "store", tmp_path / "out")
    assert len(of_kind(report, finding_kinds.LOG_TOPIC)) == 1
    assert list(tree(tmp_path / "out" / "consumequeue")) == [f"Topic0/0/{0:020d}"]


def test_all_faults_are_counted_and_the_first_thousand_listed(tmp_path: Path) -> None:
    write_commitlog(tmp_path / "store", [message(0, body=b"b") for _ in range(1300)], 1 << 18)
    for record in stored_messages(tmp_path / "store"):
        patch(tmp_path / "store", record.physical_offset + 20, bytes(7) + b"\x01", 1 << 18)
    report = rebuild(tmp_path / "store", tmp_path / "out")
    assert report.finding_counts == {finding_kinds.QUEUE_OFFSET_REPEATED.code: 1299}
    assert len(report.findings) == 1000


def test_index_files_are_in_order_despite_a_wild_store_timestamp(tmp_path: Path) -> None:
    messages = [message(number, properties_bytes=encode_properties({"KEYS": str(number)})) for number in range(100)]
    write_commitlog(tmp_path / "store", messages, 1 << 16)
    for wild in (1 << 61, 1 << 47, 253_402_300_799_999, -1, 0):
        patch(
            tmp_path / "store",
            list(stored_messages(tmp_path / "store"))[38].physical_offset + 56,
            wild.to_bytes(8, "big", signed=True),
            1 << 16,
        )
        rebuild(tmp_path / "store", tmp_path / "out")
        names = sorted(tree(tmp_path / "out" / "index"))
        assert len(names) == 6
        assert all(len(name) == 17 and name.isdigit() for name in names)
        offsets = [int.from_bytes((tmp_path / "out" / "index" / name).read_bytes()[16:24], "big") for name in names]
        assert offsets == sorted(offsets)


def test_a_log_of_garbage_leads_to_empty_directories(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / f"{0:020d}").write_bytes(b"garbage!" * 512)
    report = rebuild(tmp_path / "store", tmp_path / "out", SMALL, Splits(7))
    assert damages(report) == [(0, 4096)]
    assert tree(tmp_path / "out") == {}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["consumequeue", "index"]


def test_a_file_that_nothing_was_written_to_is_no_fault(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    (store / "commitlog" / f"{1 << 20:020d}").write_bytes(bytes(4096))
    (store / "commitlog" / f"{(1 << 20) + 4096:020d}").write_bytes(bytes(4096))
    report = rebuild(store, tmp_path / "out", SMALL, Splits(11))
    assert list(report.finding_counts) == [finding_kinds.SEGMENT_MISSING.code]
    assert built(tmp_path / "out") == by_codecs(store)
