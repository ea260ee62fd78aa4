"""What a verification says of a damaged CommitLog: code, place, and whose message it was."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_formats.codecs.layout import MAGIC_BLANK
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record_frame import FrameShape, frame_shape
from rmq_formats.errors import StoreLayoutError, StoreNotFoundError
from rmq_offline.repair.job import repair_store
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.rebuilt_stores import Splits, snapshot
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    FIRST_MS,
    SIZES,
    codes,
    copied,
    flip_at,
    log_path,
    message,
    only,
    patch,
    rebuild,
    sound_store,
    verify,
    verify_with,
)

COUNT = 60


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    root = tmp_path_factory.mktemp("log") / "store"
    placed = sound_store(root, COUNT)
    assert codes(verify(root), informing=True) == {"checkpoint.missing": 1}
    return root, placed


@pytest.fixture
def store(base: tuple[Path, list[int]], tmp_path: Path) -> Path:
    return copied(base[0], tmp_path / "store")


@pytest.fixture
def placed(base: tuple[Path, list[int]]) -> list[int]:
    return base[1]


def shape_at(store: Path, physical_offset: int) -> FrameShape:
    path, at = log_path(store, physical_offset)
    shape = frame_shape(memoryview(path.read_bytes()), at, physical_offset)
    assert isinstance(shape, FrameShape)
    return shape


Where = Callable[[FrameShape], int]


@pytest.mark.parametrize(
    ("code", "where", "data"),
    [
        ("commitlog.magic", lambda s: s.position + 4, b"\x01"),
        ("commitlog.size", lambda s: s.position, b"\x7f"),
        ("commitlog.stale", lambda s: s.position + 35, b"\x01"),
        ("commitlog.body_length", lambda s: s.body_at - 4, b"\x7f"),
        ("commitlog.topic_length", lambda s: s.topic_at - 1, b"\xff"),
        ("commitlog.properties_length", lambda s: s.properties_at - 2, b"\x7f"),
        ("commitlog.total", lambda s: s.properties_at - 1, b"\x01"),
        ("commitlog.body_crc", lambda s: s.body_at, b"\x01"),
    ],
    ids=lambda value: value.split(".")[-1] if isinstance(value, str) else "",
)
def test_a_damaged_record_is_told_with_its_place_and_its_message_as_lost(
    store: Path, placed: list[int], code: str, where: Where, data: bytes
) -> None:
    path, _ = log_path(store, placed[20])
    patch(path, where(shape_at(store, placed[20])), data)
    report = verify(store)
    assert codes(report) == {code: 1, "consumequeue.unit.lost": 1}
    found = only(report, code)
    assert (found.physical_offset, found.path) == (placed[20], str(path))
    assert found.size == placed[21] - placed[20]
    lost = only(report, "consumequeue.unit.lost")
    assert (lost.topic, lost.queue_id, lost.queue_offset) == ("Clicks", 0, 5)
    assert lost.physical_offset == placed[20]
    assert report.messages == COUNT - 1
    (state,) = (segment for segment in report.segments if segment.damage_count)
    assert (state.path, state.marks) == (str(path), ((placed[20], found.size),))


def test_a_failed_body_crc_tells_both_sums_and_whose_message_it_is(store: Path, placed: list[int]) -> None:
    flip_at(log_path(store, placed[7])[0], shape_at(store, placed[7]).body_at + 2)
    found = only(verify(store), "commitlog.body_crc")
    assert (found.topic, found.queue_id, found.queue_offset) == ("Orders", 1, 1)
    assert str(found.expected).split()[0] != str(found.actual).split()[0]


def test_a_record_crc_that_does_not_match_is_found(golden: Callable[[str], Path], tmp_path: Path) -> None:
    store = copied(golden("exotic_crc") / "store", tmp_path / "store")
    path = sorted((store / "commitlog").iterdir())[0]
    flip_at(path, 40)  # the born timestamp of the first record, which nothing but its own CRC covers
    report = verify(store, VerifyOptions())
    assert only(report, "commitlog.record_crc").physical_offset == 0
    assert codes(report)["consumequeue.unit.lost"] == 1


def test_a_topic_that_is_no_directory_name_is_found(tmp_path: Path) -> None:
    placed = sound_store(tmp_path, [message(n, topic="a/b" if n == 5 else "T") for n in range(10)])
    report = verify(tmp_path)
    found = only(report, "commitlog.topic")
    assert (found.physical_offset, found.actual) == (placed[5], "b'a/b'")


@pytest.mark.parametrize(
    ("properties", "sound"),
    [
        (b"TAGS\x01a\x02K\x01\x02", True),
        (b"TAGS\x01a\x02last\x01no end", True),
        (b"a\x01b\x01c\x02", True),
        (b"", True),
        (b"TAGS\x01a\x02noseparator\x02", False),
        (b"noseparator", False),
        (b"\x01no name\x02", False),
        (b"a\x01b\x02\x02", False),
        (b"a\x01\xff\x02", False),
        (b"a\x01" + "é".encode()[:1], False),
        ("ключ\x01значение😀�\x02".encode(), True),
    ],
)
def test_properties_are_parsed(tmp_path: Path, properties: bytes, sound: bool) -> None:
    placed = sound_store(tmp_path, [message(0), message(1, properties_bytes=properties), message(2)])
    report = verify(tmp_path)
    assert codes(report) == ({} if sound else {"commitlog.properties": 1})
    if not sound:
        found = only(report, "commitlog.properties")
        assert (found.physical_offset, found.topic) == (placed[1], "Orders")


@pytest.mark.parametrize("long_value", [0, 1, 30, 31, 32, 33, 64, 1000])
def test_properties_of_any_length_are_parsed(tmp_path: Path, long_value: int) -> None:
    sound_store(
        tmp_path, [message(n, properties_bytes=encode_properties({"k": "v" * long_value, "z": "1"})) for n in range(3)]
    )
    assert codes(verify(tmp_path)) == {}


@pytest.mark.parametrize(
    ("name", "at", "value", "width"),
    [
        ("sys_flag", 36, 1 << 20, 4),
        ("born_timestamp", 40, -5, 8),
        ("port of born_host", 52, 70000, 4),
        ("port of store_host", 68, -1, 4),
        ("reconsume_times", 72, -1, 4),
        ("prepared_transaction_offset", 76, 12345678, 8),
        ("compression", 36, 1, 4),
    ],
)
def test_a_header_value_that_no_broker_writes_is_told(
    store: Path, placed: list[int], name: str, at: int, value: int, width: int
) -> None:
    path, position = log_path(store, placed[11])
    patch(path, position + at, value.to_bytes(width, "big", signed=True))
    report = verify(store)
    assert codes(report) == {"commitlog.header": 1}
    found = only(report, "commitlog.header")
    assert name in found.detail
    assert found.physical_offset == placed[11]


def write_timestamp(store: Path, physical_offset: int, ms: int) -> None:
    path, position = log_path(store, physical_offset)
    patch(path, position + 56, ms.to_bytes(8, "big", signed=True))


@pytest.mark.parametrize("splits", [1, 9])
@pytest.mark.parametrize("shift_ms", [-100, 100, 86_400_000])
@pytest.mark.parametrize("number", [1, 20, 58])
def test_one_store_timestamp_out_of_line_is_found_on_its_record(
    store: Path, placed: list[int], shift_ms: int, number: int, splits: int
) -> None:
    write_timestamp(store, placed[number], FIRST_MS + number + shift_ms)
    report = verify_with(store, SIZES, Splits(splits))
    found = only(report, "commitlog.store_timestamp")
    assert found.physical_offset == placed[number]
    assert found.actual == str(FIRST_MS + number + shift_ms)


@pytest.mark.parametrize(("back_ms", "code"), [(5000, "commitlog.clock"), (100, "commitlog.clock_step")])
def test_a_clock_that_was_set_back_is_told_once_and_is_no_damage(tmp_path: Path, back_ms: int, code: str) -> None:
    placed = write_commitlog(tmp_path, [message(n) for n in range(40)], FILE_BYTES, FIRST_MS)
    for number in range(20, 40):
        write_timestamp(tmp_path, placed[number], FIRST_MS + number - back_ms)
    rebuild(tmp_path)
    report = verify(tmp_path)
    assert codes(report, informing=True) == {code: 1, "checkpoint.missing": 1}
    assert only(report, code).physical_offset == placed[20]
    assert report.is_clean == (code == "commitlog.clock_step")


def test_a_file_without_its_end_mark_is_found(store: Path, placed: list[int]) -> None:
    path = store / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    at = data.rindex((MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")) - 4
    patch(path, at, bytes(8))
    report = verify(store)
    assert codes(report) == {"commitlog.blank": 1}
    assert only(report, "commitlog.blank").physical_offset == at


@pytest.mark.parametrize("begin", [500, 1500])
@pytest.mark.parametrize("splits", [1, 20])
def test_zeros_up_to_a_files_end_are_lost_messages_though_nothing_is_there_to_be_read(
    store: Path, splits: int, begin: int
) -> None:
    whole = verify(store)
    patch(store / "commitlog" / f"{0:020d}", begin, bytes(FILE_BYTES - begin))
    report = verify_with(store, SIZES, Splits(splits))
    found = codes(report)
    assert found["consumequeue.unit.lost"] == whole.messages - report.messages > 5
    assert not {"consumequeue.unit.dangling", "commitlog.queue_offset.gap"} & set(found)


def test_an_empty_directory_where_the_log_was_is_one_finding(store: Path) -> None:
    for path in (store / "commitlog").iterdir():
        path.unlink()
    report = verify(store)
    assert report.messages == 0
    assert codes(report) == {"commitlog.missing": 1}


def test_bytes_behind_an_end_mark_are_found(store: Path) -> None:
    path = store / "commitlog" / f"{0:020d}"
    patch(path, FILE_BYTES - 3, b"\x01")
    report = verify(store)
    assert codes(report) == {"commitlog.after_blank": 1}
    assert report.findings[0].path == str(path)


def test_bytes_behind_the_last_record_are_a_tail_and_no_more(store: Path, placed: list[int]) -> None:
    path, at = log_path(store, placed[-1])
    end = at + shape_at(store, placed[-1]).size
    patch(path, end, b"torn record")
    report = verify(store)
    assert codes(report) == {"commitlog.tail": 1}
    found = only(report, "commitlog.tail")
    assert (found.physical_offset, found.size) == (placed[-1] + end - at, 11)


@pytest.mark.parametrize("splits", [1, 3, 20])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_junk_up_to_a_files_end_is_one_finding_however_the_log_is_cut(store: Path, number: int, splits: int) -> None:
    path = sorted((store / "commitlog").iterdir())[number]
    whole = verify(store)
    begin = 1000 if number == 2 else 500
    patch(path, begin, b"\x5a" * (FILE_BYTES - begin))
    report = verify_with(store, SIZES, Splits(splits))
    (found,) = (finding for finding in report.findings if finding.kind.code.startswith("commitlog."))
    assert found.kind.code == ("commitlog.tail" if number == 2 else found.kind.code)
    assert found.physical_offset is not None
    assert found.size is not None
    assert found.physical_offset + found.size == (number + 1) * FILE_BYTES
    assert codes(report)["consumequeue.unit.lost"] == whole.messages - report.messages


def test_the_files_of_a_log_are_compared_with_each_other(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    assert len(files) >= 3
    files[1].unlink()
    report = verify(store)
    found = only(report, "commitlog.segment.missing")
    assert (found.physical_offset, found.size) == (FILE_BYTES, FILE_BYTES)
    assert codes(report)["consumequeue.unit.lost"] == COUNT - report.messages


def test_a_truncated_file_and_an_empty_one_are_found(store: Path, placed: list[int]) -> None:
    files = sorted((store / "commitlog").iterdir())
    os.truncate(files[0], 1000)
    (store / "commitlog" / f"{FILE_BYTES * len(files):020d}").touch()
    report = verify(store)
    assert only(report, "commitlog.segment.size").path == str(files[0])
    assert only(report, "commitlog.segment.empty").physical_offset == FILE_BYTES * len(files)
    torn = only(report, "commitlog.size")
    assert torn.physical_offset in placed
    assert codes(report)["consumequeue.unit.lost"] == COUNT - report.messages


def test_a_file_of_zeros_between_others_is_a_hole_and_behind_them_it_is_room(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    (store / "commitlog" / f"{FILE_BYTES * len(files):020d}").write_bytes(bytes(FILE_BYTES))
    assert codes(verify(store)) == {}
    files[1].write_bytes(bytes(FILE_BYTES))
    report = verify(store)
    assert only(report, "commitlog.segment.hole").path == str(files[1])
    assert codes(report)["consumequeue.unit.lost"] == COUNT - report.messages


def test_files_that_overlap_are_found(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    (store / "commitlog" / f"{FILE_BYTES // 2:020d}").write_bytes(bytes(FILE_BYTES))
    report = verify(store)
    found = [finding for finding in report.findings if finding.kind.code == "commitlog.segment.overlap"]
    assert {Path(str(finding.path)).name for finding in found} == {f"{FILE_BYTES // 2:020d}", files[1].name}


def test_queue_offsets_that_repeat_skip_or_stray_are_found(tmp_path: Path) -> None:
    placed = write_commitlog(tmp_path, [message(n, topic="T", queue_id=0) for n in range(30)], FILE_BYTES, FIRST_MS)
    for number, offset in ((10, 9), (15, 1 << 50)):
        path, position = log_path(tmp_path, placed[number])
        patch(path, position + 20, offset.to_bytes(8, "big"))
    rebuild(tmp_path)
    report = verify(tmp_path)
    assert codes(report) == {
        "commitlog.queue_offset.repeated": 1, "commitlog.queue_offset.displaced": 1, "commitlog.queue_offset.gap": 1,
    }  # fmt: skip
    assert only(report, "commitlog.queue_offset.repeated").physical_offset == placed[10]
    assert only(report, "commitlog.queue_offset.displaced").physical_offset == placed[15]


def test_a_segment_that_was_compressed_in_place_is_named_and_no_repair_fills_its_place(store: Path) -> None:
    files = sorted((store / "commitlog").iterdir())
    compressed = files[1].with_name(f"{files[1].name}.gz")
    compressed.write_bytes(gzip.compress(files[1].read_bytes()))
    report = verify(store)
    found = only(report, "commitlog.segment.compressed")
    assert (found.path, found.physical_offset) == (str(compressed), FILE_BYTES)
    assert codes(report) == {"commitlog.segment.compressed": 1}
    files[1].unlink()
    before = snapshot(store)
    for apply in (False, True):
        with pytest.raises(StoreLayoutError, match=r"\.gz: a segment that was compressed in place"):
            repair_store(str(store), SIZES, ProcessRunner(1), apply=apply)
    with pytest.raises(StoreLayoutError, match="compressed in place"):
        rebuild(store)
    assert snapshot(store) == before


def test_a_store_without_a_log_cannot_be_repaired(store: Path) -> None:
    for path in (store / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(StoreNotFoundError, match="nothing else to repair the store from"):
        repair_store(str(store), SIZES, ProcessRunner(1), apply=True)
