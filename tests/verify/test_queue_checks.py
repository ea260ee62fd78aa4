"""ConsumeQueue files against the log, both ways."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_formats.codecs.consumequeue import PRE_BLANK, Unit
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.store_files import with_sizes
from tests.support.stores.verified_stores import (
    REBUILT,
    SIZES,
    codes,
    copied,
    message,
    only,
    patch,
    rebuild,
    sound_store,
    verify,
)

COUNT = 200  # 50 units a queue, 20 a file


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("queues") / "store"
    sound_store(root, COUNT)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


def queue_file(store: Path, start: int = 0, topic: str = "Orders", queue_id: int = 1) -> Path:
    return store / "consumequeue" / topic / str(queue_id) / f"{start:020d}"


def unit_at(path: Path, number: int) -> Unit:
    return Unit.decode(path.read_bytes(), number * UNIT_BYTES)


def put(path: Path, number: int, unit: Unit | bytes) -> None:
    patch(path, number * UNIT_BYTES, unit if isinstance(unit, bytes) else unit.encode())


def check_one(store: Path, code: str, queue_offset: int, count: int = 1) -> None:
    report = verify(store)
    assert codes(report) == {code: count}
    found = only(report, code)
    assert (found.topic, found.queue_id, found.queue_offset, found.count) == ("Orders", 1, queue_offset, count)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("consumequeue.unit.size", lambda unit: replace(unit, size=unit.size + 1)),
        ("consumequeue.unit.tags_code", lambda unit: replace(unit, tags_code=unit.tags_code ^ 1)),
        ("consumequeue.unit.dangling", lambda unit: replace(unit, physical_offset=unit.physical_offset + 1)),
        ("consumequeue.unit.dangling", lambda unit: replace(unit, physical_offset=1 << 40)),
        ("consumequeue.unit.dangling", lambda unit: replace(unit, physical_offset=-5)),
        ("consumequeue.unit.zero", lambda _: bytes(UNIT_BYTES)),
        ("consumequeue.unit.missing", lambda _: PRE_BLANK),
    ],
)
def test_a_unit_that_is_not_its_records_is_told(store: Path, code: str, change: Callable[[Unit], Unit | bytes]) -> None:
    path = queue_file(store)
    put(path, 7, change(unit_at(path, 7)))
    check_one(store, code, 7)


def test_a_unit_of_another_place_is_a_duplicate_or_displaced(store: Path) -> None:
    path = queue_file(store)
    first, second, seventh = (unit_at(path, number) for number in (3, 4, 7))
    put(path, 7, first)
    check_one(store, "consumequeue.unit.duplicate", 7)
    put(path, 7, seventh)
    put(path, 3, second)
    put(path, 4, first)
    report = verify(store)
    assert codes(report)["consumequeue.unit.displaced"] == 2


def test_units_in_a_row_are_one_finding_with_a_count(store: Path) -> None:
    put(queue_file(store), 5, bytes(6 * UNIT_BYTES))
    check_one(store, "consumequeue.unit.zero", 5, 6)


def test_units_missing_at_the_end_are_no_zeros_in_the_middle(store: Path) -> None:
    put(queue_file(store, 800), 6, bytes(4 * UNIT_BYTES))
    check_one(store, "consumequeue.unit.not_added", 46, 4)  # another queue names later messages
    (store / "abort").write_text("1")
    check_one(store, "consumequeue.unit.missing", 46, 4)  # after a kill a broker dispatches the log's last files


def test_units_missing_at_the_end_may_reach_over_a_file_that_is_missing(store: Path) -> None:
    queue_file(store, 800).unlink()
    put(queue_file(store, 400), 16, bytes(4 * UNIT_BYTES))
    assert codes(verify(store)) == {"consumequeue.unit.not_added": 14}


def test_bytes_behind_the_last_unit_are_found_at_any_place(store: Path) -> None:
    patch(queue_file(store, 800), 399, b"\x01")
    check_one(store, "consumequeue.unit.behind_end", 59)


def test_units_of_records_behind_the_logs_end_are_told_apart(store: Path) -> None:
    put(queue_file(store, 800), 10, Unit(1 << 20, 100, 5))
    check_one(store, "consumequeue.unit.beyond", 50)


def test_a_missing_file_is_told_by_where_it_is_missing(store: Path) -> None:
    queue_file(store, 400).unlink()
    check_one(store, "consumequeue.file.missing", 20, 20)
    queue_file(store, 0).unlink()
    report = verify(store)
    assert codes(report) == {"consumequeue.minimum": 40}
    queue_file(store, 800).unlink()
    report = verify(store)
    assert codes(report) == {"consumequeue.missing": 50}
    shutil.rmtree(queue_file(store).parent)
    assert codes(verify(store)) == {"consumequeue.missing": 50}


def test_a_queue_that_begins_with_fillers_where_records_are_has_a_wrong_minimum(store: Path) -> None:
    put(queue_file(store), 0, PRE_BLANK * 8)
    check_one(store, "consumequeue.minimum", 0, 8)


def test_a_queue_that_begins_with_a_file_of_the_log_begins_late(store: Path) -> None:
    """A broker that was killed dispatches whole files of the log: a queue that was deleted comes back from there on."""
    second_file = sorted((store / "commitlog").iterdir())[1]
    places = [unit_at(queue_file(store), number).physical_offset for number in range(20)]
    first = sum(place < int(second_file.name) for place in places)
    assert 0 < first < 19
    put(queue_file(store), 0, PRE_BLANK * first)
    check_one(store, "consumequeue.begins_late", 0, first)
    put(queue_file(store), first, PRE_BLANK)
    check_one(store, "consumequeue.minimum", 0, first + 1)


def test_files_of_other_sizes_and_names_are_found(store: Path) -> None:
    os.truncate(queue_file(store, 400), 399)
    report = verify(store)
    found = only(report, "consumequeue.file.size")
    assert (found.expected, found.actual) == ("400", "399")
    assert codes(report) == {"consumequeue.file.size": 1, "consumequeue.unit.tags_code": 1}
    os.truncate(queue_file(store, 400), 0)
    assert codes(verify(store)) == {"consumequeue.file.size": 1, "consumequeue.unit.zero": 20}
    queue_file(store, 400).rename(queue_file(store, 410))
    assert codes(verify(store)) == {"consumequeue.file.name": 1, "consumequeue.file.missing": 20}


def test_what_is_no_file_of_a_queue_is_told(store: Path) -> None:
    (queue_file(store).parent / "notes.txt").write_text("x")
    (queue_file(store).parent / "old").mkdir()
    (store / "consumequeue" / "README").write_text("x")
    (store / "consumequeue" / "Orders" / "x1").mkdir()
    (store / "consumequeue" / "Orders" / "007").mkdir()
    report = verify(store)
    assert codes(report) == {"consumequeue.foreign": 1, "store.stray": 4}
    assert report.messages == report.units == COUNT


def test_a_queue_whose_directory_is_a_file_is_missing_and_the_file_is_told(store: Path) -> None:
    shutil.rmtree(queue_file(store).parent)
    queue_file(store).parent.write_text("no directory")
    assert codes(verify(store)) == {"store.stray": 1, "consumequeue.missing": 50}
    shutil.rmtree(store / "consumequeue")
    (store / "consumequeue").write_text("no directory")
    assert codes(verify(store)) == {"consumequeue.unreadable": 1, "consumequeue.missing": COUNT}


def test_a_queue_of_a_negative_id_is_one_as_in_the_original(tmp_path: Path) -> None:
    sound_store(tmp_path, [message(number, queue_id=-1) for number in range(9)])
    assert "store.stray" not in codes(verify(tmp_path))
    shutil.copytree(tmp_path / "consumequeue" / "Orders" / "-1", tmp_path / "consumequeue" / "Orders" / "-2")
    assert codes(verify(tmp_path))["consumequeue.unit.dangling"] > 0


def test_a_file_that_cannot_be_opened_is_a_finding(store: Path) -> None:
    path = queue_file(store, 400)
    path.unlink()
    path.symlink_to(path)  # a loop: root may open everything else
    report = verify(store)
    assert set(codes(report)) <= {"consumequeue.unreadable", "consumequeue.file.missing", "consumequeue.unit.zero"}
    assert codes(report)


# --- the front of a queue ---------------------------------------------------------------------


@pytest.fixture
def shortened(base: Path, tmp_path: Path) -> Path:
    """A store whose broker has deleted its log's oldest files."""
    store = copied(base, tmp_path / "store")
    for path in sorted((store / "commitlog").iterdir())[:4]:
        path.unlink()
    return store


def test_units_of_deleted_records_are_normal_at_the_front(shortened: Path) -> None:
    report = verify(shortened)
    assert codes(report) == {}
    assert report.messages < COUNT
    assert codes(report, informing=True).get("consumequeue.expired", 0) > 0


@pytest.mark.long
def test_a_queue_that_was_rebuilt_from_the_rest_begins_with_fillers(shortened: Path) -> None:
    rebuild(shortened, replace(REBUILT, from_log_alone=True))
    report = verify(shortened)
    assert codes(report) == {}
    path = sorted(queue_file(shortened).parent.iterdir())[0]
    assert path.read_bytes().startswith(PRE_BLANK)
    for at in range(UNIT_BYTES):
        data = bytearray(path.read_bytes())
        data[at] ^= 0x5A
        path.write_bytes(data)
        assert set(codes(verify(shortened))) & {"consumequeue.pre_blank", "consumequeue.unit.dangling"}, at
        data[at] ^= 0x5A
        path.write_bytes(data)


def test_a_unit_of_a_deleted_record_behind_a_living_one_dangles(shortened: Path) -> None:
    path = queue_file(shortened, 800)
    put(path, 9, Unit(100, 150, 3))
    assert codes(verify(shortened)) == {"consumequeue.unit.dangling": 1}


# --- topics, gaps, damage ---------------------------------------------------------------------


def topics_json(*names: str, batch: tuple[str, ...] = ()) -> str:
    configs = [f'"{name}":{{"topicName":"{name}"}}' for name in names]
    configs += [f'"{name}":{{"topicName":"{name}","attributes":{{"queue.type":"BatchCQ"}}}}' for name in batch]
    return f'{{"dataVersion":{{}},"topicConfigTable":{{{",".join(configs)}}}}}'


def test_topics_that_the_config_does_not_know_are_told_only_if_there_is_a_config(store: Path) -> None:
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(topics_json("Orders"))
    report = verify(store)
    assert codes(report) == {"consumequeue.topic.unknown": 1}
    assert only(report, "consumequeue.topic.unknown").topic == "Clicks"
    shutil.rmtree(store / "consumequeue" / "Clicks")
    report = verify(store)
    assert codes(report, informing=True) == {"consumequeue.topic.deleted": 100, "checkpoint.missing": 1}
    (store / "config" / "topics.json").write_text("{")
    assert codes(verify(store)) == {"consumequeue.missing": 100, "config.lost": 1}


def test_the_queue_of_a_deleted_topic_that_came_back_need_not_begin_at_its_first_message(store: Path) -> None:
    """A broker that was killed dispatches the log's end again, whatever topics there are, with fillers up to there."""
    put(queue_file(store), 0, PRE_BLANK * 8)
    assert codes(verify(store)) == {"consumequeue.minimum": 8}
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(topics_json("Clicks"))
    report = verify(store)
    assert codes(report, informing=True) == {
        "consumequeue.topic.unknown": 1, "consumequeue.topic.deleted": 8, "checkpoint.missing": 1
    }  # fmt: skip
    queue_file(store, 0).unlink()
    assert codes(verify(store), informing=True)["consumequeue.topic.deleted"] == 20
    put(queue_file(store, 800), 7, bytes(3 * UNIT_BYTES))
    assert codes(verify(store), informing=True)["consumequeue.topic.deleted"] == 23
    put(queue_file(store, 400), 5, bytes(UNIT_BYTES))
    assert codes(verify(store))["consumequeue.unit.zero"] == 1


def test_a_light_queue_of_no_message_dangles_and_a_lost_batch_queue_is_missing(store: Path) -> None:
    (store / "config").mkdir()
    (store / "config" / "topics.json").write_text(topics_json("Orders", batch=("Clicks",)))
    shutil.rmtree(store / "consumequeue" / "Clicks")
    (store / "consumequeue" / "%LMQ%light" / "0").mkdir(parents=True)
    (store / "consumequeue" / "%LMQ%light" / "0" / f"{0:020d}").write_bytes(unit_at(queue_file(store), 0).encode() * 20)
    report = verify(store)
    assert codes(report) == {"consumequeue.missing": 100, "consumequeue.unit.dangling": 20}
    assert {finding.topic for finding in report.findings if finding.kind.code == "consumequeue.missing"} == {"Clicks"}
    assert only(report, "consumequeue.unit.dangling").topic == "%LMQ%light"
    assert "consumequeue.not_checked" not in codes(report, informing=True)


def test_a_gap_that_units_explain_by_damage_is_not_told_twice(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[1]
    patch(path, 1000, b"\xff" * 1000)
    report = verify(store)
    assert {code for code in codes(report) if not code.startswith("commitlog.")} == {"consumequeue.unit.lost"}
    assert "commitlog.queue_offset.gap" not in codes(report)
    assert codes(report)["consumequeue.unit.lost"] == COUNT - report.messages > 3
    rebuild(store)
    report = verify(store)
    assert codes(report)["commitlog.queue_offset.gap"] == COUNT - report.messages


def test_delayed_messages_are_compared_with_the_levels_that_their_queues_tell(tmp_path: Path) -> None:
    messages = [
        message(n, topic="SCHEDULE_TOPIC_XXXX", queue_id=n % 3, properties_bytes=f"DELAY\x01{n % 3 + 1}\x02".encode())
        for n in range(30)
    ]
    store = tmp_path / "store"
    sound_store(store, messages, with_sizes(REBUILT, delay_levels_ms=(2000, 7000, 11000)))
    assert codes(verify(store), informing=True) == {"consumequeue.former_delay": 30, "checkpoint.missing": 1}
    assert codes(verify(store, replace(SIZES, delay_levels_ms=(2000, 7000, 11000)))) == {}
    report = verify(store, replace(SIZES, delay_levels_ms=None))
    assert codes(report) == {}
    assert '"2s 7s 11s 30s' in only(report, "store.layout").detail
    patch(store / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "1" / f"{0:020d}", 5 * UNIT_BYTES + 18, b"\x77")
    assert codes(verify(store, replace(SIZES, delay_levels_ms=None))) == {"consumequeue.unit.tags_code": 1}


def test_the_levels_are_told_though_the_messages_of_all_last_units_are_lost(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copied(golden("crash") / "store", tmp_path / "store")
    sorted((store / "commitlog").iterdir())[1].unlink()
    found = codes(verify(store, VerifyOptions()))
    assert found["consumequeue.unit.beyond"] > 100
    assert "consumequeue.unit.tags_code" not in found


def test_the_levels_are_told_though_a_misplaced_file_overlaps_the_right_one(
    golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copied(golden("mixed") / "store", tmp_path / "store")
    shutil.copy(store / "commitlog" / f"{0:020d}", store / "commitlog" / f"{524288:020d}")
    found = codes(verify(store, VerifyOptions()))
    assert found["commitlog.segment.overlap"] == 2
    assert "consumequeue.unit.tags_code" not in found


def test_a_wrong_size_that_is_given_is_told_and_not_corrected(store: Path) -> None:
    report = verify(store, replace(SIZES, consumequeue_file_bytes=800))
    assert codes(report)["consumequeue.file.size"] == 8
    assert codes(report)["consumequeue.file.name"] == 4
    assert codes(verify(store, VerifyOptions())) == {}


# --- ConsumeQueueExt --------------------------------------------------------------------------

EXT = with_sizes(REBUILT, consumequeue_ext_file_bytes=104)
EXT_SIZES = replace(SIZES, consumequeue_ext_file_bytes=104)


@pytest.fixture
def ext_store(tmp_path: Path) -> Path:
    sound_store(tmp_path / "store", 60, EXT)
    return tmp_path / "store"


def ext_file(store: Path, start: int = 0) -> Path:
    return store / "consumequeue_ext" / "Orders" / "1" / f"{start:020d}"


def test_addresses_lead_through_ext_files(ext_store: Path) -> None:
    assert len(list(ext_file(ext_store).parent.iterdir())) == 3
    assert codes(verify(ext_store, EXT_SIZES)) == {}
    assert codes(verify(ext_store, VerifyOptions())) == {}
    assert codes(verify(ext_store, SIZES)) == {"consumequeue.unit.tags_code": 60}


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (20 + 5, {"consumequeue_ext.unit": 1}),
        (20 + 15, {"consumequeue_ext.unit": 1}),
        (20 + 1, {"consumequeue_ext.address": 1, "consumequeue_ext.format": 1}),
        (100, {"consumequeue_ext.format": 1}),
        (103, {"consumequeue_ext.format": 1}),
    ],
    ids=["tags", "time", "size", "mark", "behind"],
)
def test_a_changed_byte_of_an_ext_file_is_found(ext_store: Path, at: int, expected: dict[str, int]) -> None:
    data = bytearray(ext_file(ext_store).read_bytes())
    data[at] ^= 0x5A
    ext_file(ext_store).write_bytes(data)
    found = codes(verify(ext_store, EXT_SIZES))
    assert expected.items() <= found.items()


def test_missing_surplus_and_foreign_ext_files_are_found(ext_store: Path) -> None:
    ext_file(ext_store, 104).unlink()
    assert codes(verify(ext_store, EXT_SIZES)) == {"consumequeue_ext.address": 5}
    put(queue_file(ext_store), 14, bytes(UNIT_BYTES))
    (ext_file(ext_store).parent / "x").write_text("")
    assert codes(verify(ext_store, EXT_SIZES)) == {
        "consumequeue_ext.address": 5, "consumequeue.unit.not_added": 1, "consumequeue_ext.foreign": 1,
    }  # fmt: skip
    os.truncate(ext_file(ext_store), 103)
    assert codes(verify(ext_store, EXT_SIZES))["consumequeue_ext.file.size"] == 1


def test_plain_tags_codes_beside_ext_files_are_sound(ext_store: Path) -> None:
    """The original falls back to them where the ext file takes no unit."""
    plain = ext_store.with_name("plain")
    sound_store(plain, 60)
    shutil.copy(queue_file(plain), queue_file(ext_store))
    report = verify(ext_store, EXT_SIZES)
    assert codes(report) == {}
    assert codes(report, informing=True)["consumequeue_ext.surplus"] == 15
