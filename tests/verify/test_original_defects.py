"""Defects of the original that a verification has to survive; apache/rocketmq issue numbers in the names."""

from pathlib import Path

import pytest

from rmq_formats.codecs.index import IndexEntry, entry_position
from rmq_formats.codecs.record_frame import body_crc
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    FIRST_MS,
    codes,
    flip_at,
    log_path,
    message,
    only,
    patch,
    rebuild,
    sound_store,
    verify,
)


def test_9121_a_crc_of_zero_over_a_body_is_checked_like_any_other(tmp_path: Path) -> None:
    """The original took a stored CRC of 0 for none, and one that is 0 by right for damage."""
    zero = bytes.fromhex("9d0ad96d")  # whose CRC-32 is 0
    assert body_crc(zero) == 0
    placed = sound_store(tmp_path, [message(n, body=zero if n == 3 else b"some body") for n in range(8)])
    assert codes(verify(tmp_path)) == {}
    path, at = log_path(tmp_path, placed[5])
    patch(path, at + 8, bytes(4))
    report = verify(tmp_path)
    assert codes(report) == {"commitlog.body_crc": 1, "consumequeue.unit.lost": 1}
    assert only(report, "commitlog.body_crc").physical_offset == placed[5]


def test_10017_stale_bytes_of_a_recycled_file_are_not_taken_for_records(tmp_path: Path) -> None:
    """Their CRCs are right; only the physical offset that they name tells where they stood."""
    placed = sound_store(tmp_path, [message(n) for n in range(60)])
    files = sorted((tmp_path / "commitlog").iterdir())
    at = placed[-1] % FILE_BYTES + 200
    data = bytearray(files[-1].read_bytes())
    data[at:] = files[0].read_bytes()[placed[2] :][: FILE_BYTES - at]
    files[-1].write_bytes(data)
    end = max(index for index, byte in enumerate(files[-1].read_bytes()[:at]) if byte) + 1
    assert end < at
    report = verify(tmp_path)
    assert report.messages == 60
    assert set(codes(report)) <= {"commitlog.tail", "commitlog.stale"}
    data[end:] = files[0].read_bytes()[placed[2] :][: FILE_BYTES - end]
    files[-1].write_bytes(data)
    report = verify(tmp_path)
    assert report.messages == 60
    assert codes(report) == {"commitlog.stale": 1}
    found = only(report, "commitlog.stale")
    assert (found.expected, found.actual) == (str(found.physical_offset), str(placed[2]))


def test_7437_properties_that_no_crc_covers_are_found_by_the_queues_and_the_index(tmp_path: Path) -> None:
    placed = sound_store(tmp_path, 40)
    for name, code in (("TAGS", "consumequeue.unit.tags_code"), ("UNIQ_KEY", "index.entry.wrong")):
        path, at = log_path(tmp_path, placed[12])
        value_at = path.read_bytes().index(f"{name}\x01".encode(), at) + len(name) + 1
        flip_at(path, value_at, 0x01)
        report = verify(tmp_path)
        assert code in codes(report)
        flip_at(path, value_at, 0x01)
    assert codes(verify(tmp_path)) == {}


@pytest.mark.parametrize("link", [7, 8, 25])
def test_pr_8018_index_chains_that_go_round_end(tmp_path: Path, link: int) -> None:
    sound_store(tmp_path, 40)
    path = sorted((tmp_path / "index").iterdir())[0]
    at = entry_position(7, 50)
    item = IndexEntry.decode(path.read_bytes(), at)
    patch(path, at, IndexEntry(item.key_hash, item.physical_offset, item.seconds, link).encode())
    report = verify(tmp_path)
    assert codes(report) == {"index.cycle": 1}


@pytest.mark.parametrize(
    "directory", ["commitlog", "consumequeue/Orders/0", "consumequeue/Orders", "consumequeue", "index"]
)
def test_3257_stray_files_stop_nothing_and_are_told(tmp_path: Path, directory: str) -> None:
    sound_store(tmp_path, 40)
    (tmp_path / directory / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    report = verify(tmp_path)
    assert report.messages == report.units == 40
    (found,) = (finding for finding in report.findings if finding.kind.code != "checkpoint.missing")
    assert found.path == str(tmp_path / directory / ".DS_Store")
    assert found.kind.code in {"commitlog.foreign", "consumequeue.foreign", "store.stray"}


@pytest.mark.parametrize(
    "junk", [b"\0", b"\xff", b"\x00\x00\x00\x00\xcb\xd4\x31\x94", b"\x00\x00\x00\x08\xda\xa3\x20\xa7"]
)
def test_289_and_6767_illegal_magics_do_not_make_a_scan_go_round(tmp_path: Path, junk: bytes) -> None:
    placed = sound_store(tmp_path, 60)
    path, at = log_path(tmp_path, placed[8])
    end = placed[16] - placed[8]
    patch(path, at, (junk * end)[:end])
    report = verify(tmp_path)
    assert report.messages == 52
    assert codes(report)["consumequeue.unit.lost"] == 8
    assert {finding.physical_offset for finding in report.findings if finding.kind.code.startswith("commitlog")} == {
        placed[8]
    }


def test_1852_a_rebuild_that_brought_a_deleted_topic_back_is_told(tmp_path: Path) -> None:
    write_commitlog(tmp_path, [message(n) for n in range(20)], FILE_BYTES, FIRST_MS)
    rebuild(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text('{"topicConfigTable":{"Orders":{"topicName":"Orders"}}}')
    assert codes(verify(tmp_path)) == {"consumequeue.topic.unknown": 1}


def test_9455_a_store_timestamp_of_another_century_stops_nothing(tmp_path: Path) -> None:
    placed = write_commitlog(tmp_path, [message(n) for n in range(30)], FILE_BYTES, FIRST_MS)
    path, at = log_path(tmp_path, placed[9])
    for value in (1 << 62, 0, -1, FIRST_MS * 3):
        patch(path, at + 56, value.to_bytes(8, "big", signed=True))
        rebuild(tmp_path)
        report = verify(tmp_path)
        assert report.messages == 30
        assert "commitlog.store_timestamp" in codes(report)
