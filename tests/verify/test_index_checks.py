"""IndexFiles against the log, both ways."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest

from rmq_formats.codecs.index import IndexEntry, IndexHeader, entry_position, slot_position
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, index_file_bytes
from rmq_formats.errors import SpillError
from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.support.stores.store_files import write_commitlog
from tests.support.stores.verified_stores import (
    FILE_BYTES,
    FIRST_MS,
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

SLOTS, ENTRIES = 50, 30
COUNT = 100  # two keys each: 29 to a file, so six full files and one with 26


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("index") / "store"
    sound_store(root, COUNT)
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


def files(store: Path) -> list[Path]:
    return sorted((store / "index").iterdir())


def entry(path: Path, number: int) -> IndexEntry:
    return IndexEntry.decode(path.read_bytes(), entry_position(number, SLOTS))


def put(path: Path, number: int, item: IndexEntry | bytes) -> None:
    patch(path, entry_position(number, SLOTS), item if isinstance(item, bytes) else item.encode())


def test_a_sound_index_has_as_many_files_as_its_keys_fill(store: Path) -> None:
    report = verify(store)
    assert codes(report) == {}
    assert (len(report.index_paths), report.index_entries) == (7, 2 * COUNT)


def test_a_wrong_hash_or_offset_or_time_is_one_finding_and_the_rest_is_still_judged(store: Path) -> None:
    path = files(store)[2]
    put(path, 9, replace(entry(path, 9), key_hash=entry(path, 9).key_hash ^ 1))
    put(path, 15, replace(entry(path, 15), physical_offset=entry(path, 15).physical_offset + 1))
    put(path, 21, replace(entry(path, 21), seconds=7))
    report = verify(store)
    assert codes(report) == {"index.entry.wrong": 3}
    assert [finding.detail for finding in report.findings][:3] == ["seconds of entry 21", "entry 9", "entry 15"]
    wrong = next(finding for finding in report.findings if finding.detail == "entry 15")
    assert wrong.physical_offset == entry(path, 15).physical_offset - 1
    assert f"offset {wrong.physical_offset}" in str(wrong.expected)


@pytest.mark.parametrize("number", [1, 29])
def test_the_ends_of_a_file_are_judged_too(store: Path, number: int) -> None:
    for path in (files(store)[0], files(store)[3]):
        put(path, number, replace(entry(path, number), physical_offset=5))
        assert codes(verify(store))["index.entry.wrong"] >= 1
    put(files(store)[-1], 26, bytes(INDEX_ENTRY_BYTES))
    assert codes(verify(store))["index.entry.wrong"] == 3


def test_a_link_that_leads_elsewhere_is_a_broken_chain(store: Path) -> None:
    path = files(store)[1]
    number = next(number for number in range(1, 30) if entry(path, number).previous > 1)
    put(path, number, replace(entry(path, number), previous=entry(path, number).previous - 1))
    report = verify(store)
    assert codes(report) == {"index.chain": 1}
    assert only(report, "index.chain").detail == f"link of entry {number}"


@pytest.mark.parametrize("ahead", [0, 1, 5])
def test_a_link_to_itself_or_forward_is_a_cycle(store: Path, ahead: int) -> None:
    path = files(store)[1]
    put(path, 12, replace(entry(path, 12), previous=12 + ahead))
    report = verify(store)
    assert codes(report) == {"index.cycle": 1}
    assert only(report, "index.cycle").actual == str(12 + ahead)
    assert not report.is_clean


@pytest.mark.parametrize("value", [0, 3, 29, 30, 1 << 30, -1])
def test_a_slot_that_names_another_entry_is_found(store: Path, value: int) -> None:
    path = files(store)[1]
    key_hash = entry(path, 29).key_hash
    patch(path, slot_position(key_hash, SLOTS), pack(">i", value))
    expected = {} if value == 29 else {"index.slot": 1}
    assert codes(verify(store)) == expected


@pytest.mark.parametrize(
    ("at", "name"),
    [
        (0, "begin timestamp"),
        (8, "end timestamp"),
        (16, "begin physical offset"),
        (24, "end physical offset"),
        (32, "slot count"),
        (36, "index count"),
    ],
)
@pytest.mark.parametrize("number", [0, 3, 6])
def test_header_fields_are_compared(store: Path, at: int, name: str, number: int) -> None:
    path = files(store)[number]
    width = 8 if at < 32 else 4
    value = int.from_bytes(path.read_bytes()[at : at + width], "big")
    for other in {value + 1, max(value - 1, 0), 0} - {value}:
        patch(path, at, other.to_bytes(width, "big"))
        report = verify(store)
        assert codes(report) == {"index.header": 1}, other
        found = only(report, "index.header")
        assert (found.detail, found.expected, found.actual) == (name, str(value), str(other))


def test_entries_that_are_missing_are_told_and_what_follows_is_sound(base: Path, tmp_path: Path) -> None:
    """An Index that was made of a log without some of its messages, as after a loss of units."""
    store = copied(base, tmp_path / "store")
    placed = write_commitlog(tmp_path / "other", [message(n) for n in range(COUNT)], FILE_BYTES, FIRST_MS)
    for number in (40, 41, 42):  # their topics are damaged there, so that they give other keys
        path = tmp_path / "other" / "commitlog" / f"{placed[number] // FILE_BYTES * FILE_BYTES:020d}"
        patch(path, placed[number] % FILE_BYTES + 8, b"\1\2\3\4")
    rebuild(tmp_path / "other")
    shutil.rmtree(store / "index")
    shutil.copytree(tmp_path / "other" / "index", store / "index")
    report = verify(store)
    assert codes(report)["index.entry.missing"] == 6
    assert set(codes(report)) <= {"index.entry.missing", "index.header", "index.entry.wrong"}
    assert only(report, "index.entry.missing").physical_offset == placed[40]


def test_entries_of_damaged_records_are_information_and_break_nothing(store: Path) -> None:
    path = sorted((store / "commitlog").iterdir())[1]
    patch(path, 500, b"\xff" * 900)
    report = verify(store)
    lost = 2 * (COUNT - report.messages)
    assert lost > 6
    assert {code for code in codes(report) if code.startswith("index")} == set()
    assert codes(report, informing=True)["index.entry.lost"] == lost


def test_missing_files_are_told_by_where_they_are_missing(store: Path) -> None:
    files(store)[3].unlink()
    report = verify(store)
    assert codes(report)["index.entry.missing"] == 29
    files(store)[0].unlink()
    assert codes(verify(store))["index.begins_late"] == 29
    files(store)[-1].unlink()
    assert codes(verify(store))["index.entry.missing"] == 29 + 26
    shutil.rmtree(store / "index")
    assert codes(verify(store)) == {"index.missing": 200}


def test_an_index_older_than_the_log_is_normal(store: Path) -> None:
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    report = verify(store)
    assert {code for code in codes(report) if code.startswith("index")} == set()
    files(store)[0].unlink()
    assert {code for code in codes(verify(store)) if code.startswith("index")} == set()


def test_more_files_than_keys_explain_are_found(store: Path) -> None:
    shutil.copy(files(store)[2], store / "index" / "29991231235959000")
    report = verify(store)
    assert codes(report)["index.file.surplus"] == 29
    (store / "index" / "29991231235959000").write_bytes(bytes(files(store)[0].stat().st_size))
    report = verify(store)
    assert only(report, "index.file.surplus").path == str(files(store)[-1])


def test_keys_of_one_message_that_were_indexed_twice_are_what_recovery_does(tmp_path: Path) -> None:
    """The original's replay takes the last message again: ``phyOffset < endPhyOffset`` leaves it in."""
    messages = [message(number) for number in range(20)]
    placed = write_commitlog(tmp_path, messages, FILE_BYTES, FIRST_MS)
    rebuild(tmp_path)
    twice = tmp_path / "twice"
    repeated = [*messages[:10], messages[9], *messages[10:]]
    write_commitlog(twice, repeated, FILE_BYTES, FIRST_MS)
    rebuild(twice)
    shutil.rmtree(tmp_path / "index")
    shutil.copytree(twice / "index", tmp_path / "index")
    other = [int(value) for value in write_commitlog(tmp_path / "again", repeated, FILE_BYTES, FIRST_MS)]
    place = {offset: placed[number - (number > 9)] for number, offset in enumerate(other)}
    for path in files(tmp_path):
        _move(path, place)
    report = verify(tmp_path)
    assert codes(report, informing=True)["index.entry.repeated"] == 2
    assert set(codes(report)) <= {"index.entry.wrong", "index.header"}


def _move(path: Path, place: dict[int, int]) -> None:
    """Have an IndexFile name the records of another log."""
    header = IndexHeader.decode(path.read_bytes())
    for number in range(1, header.index_count):
        item = entry(path, number)
        put(path, number, replace(item, physical_offset=place[item.physical_offset]))
    patch(path, 16, pack(">qq", place[header.begin_physical_offset], place[header.end_physical_offset]))


def test_entries_and_bytes_behind_the_count_are_found(store: Path) -> None:
    path = files(store)[-1]
    put(path, 28, IndexEntry(5, 5, 5, 5))
    report = verify(store)
    assert codes(report) == {"index.behind": 2}
    put(path, 28, bytes(20))
    put(path, 0, b"\0" * 19 + b"\1")
    assert codes(verify(store)) == {"index.behind": 1}


def test_foreign_names_and_other_sizes_are_told(store: Path) -> None:
    (store / "index" / "readme.txt").write_text("x")
    (store / "index" / "20200101000000000").mkdir()
    os.truncate(files(store)[-2], 5)
    assert not files(store)[-2].is_dir()
    report = verify(store)
    assert codes(report)["store.stray"] == 2
    assert codes(report)["index.file.size"] == 1
    shutil.rmtree(store / "consumequeue")  # whether the log is missing is then asked of the Index
    assert codes(verify(store))["store.stray"] == 2


def test_a_truncated_file_is_judged_as_far_as_it_goes(store: Path) -> None:
    path = files(store)[4]
    os.truncate(path, entry_position(20, SLOTS))
    report = verify(store)
    assert codes(report) == {"index.file.size": 1, "index.entry.wrong": 10}


def test_a_file_that_cannot_be_opened_is_a_finding(store: Path) -> None:
    path = files(store)[2]
    path.unlink()
    (store / "index" / path.name).symlink_to("/proc/self/mem")  # opens, and gives no byte
    report = verify(store)
    assert not report.is_clean
    assert report.messages == COUNT


def test_junk_in_the_middle_of_a_file_is_one_finding(store: Path) -> None:
    path = files(store)[3]
    put(path, 10, os.urandom(8 * INDEX_ENTRY_BYTES) + os.urandom(4 * INDEX_ENTRY_BYTES))
    report = verify(store)
    assert codes(report)["index.entry.wrong"] == 12
    assert set(codes(report)) == {"index.entry.wrong"}


def test_a_whole_file_of_junk_is_told_and_the_others_are_sound(store: Path) -> None:
    path = files(store)[3]
    path.write_bytes(os.urandom(path.stat().st_size))
    report = verify(store)
    assert {finding.path for finding in report.findings if finding.kind.code.startswith("index")} == {
        str(path), str(files(store)[4]),
    }  # fmt: skip
    assert codes(report)["index.entry.missing"] == 29


@pytest.mark.parametrize("keyless", [0, 1])
def test_an_empty_last_file_is_one_that_the_original_makes(tmp_path: Path, keyless: int) -> None:
    """29 keys fill a file; the next is made when a message comes, even one without a key."""
    keyed = [message(n, properties_bytes=f"KEYS\x01k{n}\x02".encode()) for n in range(29)]
    messages = [*keyed, *(message(n, properties_bytes=b"") for n in range(keyless))]
    sound_store(tmp_path, messages)
    assert len(files(tmp_path)) == 1 + keyless
    assert codes(verify(tmp_path)) == {}
    data = bytearray(files(tmp_path)[0].stat().st_size)
    (tmp_path / "index" / "29991231235959000").write_bytes(data)
    report = verify(tmp_path)
    assert ("index.file.surplus" in codes(report)) == bool(keyless)


@pytest.mark.parametrize("ahead", range(7))
def test_a_message_that_has_a_key_twice_is_sound_at_the_begin_of_a_file(tmp_path: Path, ahead: int) -> None:
    keyed = [message(n, properties_bytes=f"KEYS\x01k{n}\x02".encode()) for n in range(29 - ahead)]
    twice = message(99, properties_bytes=b"KEYS\x01a b c a d b a e\x02")
    sound_store(tmp_path, [*keyed, twice, message(100)])
    assert codes(verify(tmp_path)) == {}


class Losing(ProcessRunner):
    """Damages the work directory before the second batch."""

    def __init__(self, work: Path, pattern: str, data: bytes | None) -> None:
        super().__init__(1)
        self._work, self._pattern, self._data = work, pattern, data

    def map(self, function: Any, arguments: Sequence[Any], on_done: Any = None) -> list[Any]:
        """Apply ``function`` to each argument."""
        for path in self._work.rglob(self._pattern):
            path.unlink() if self._data is None else path.write_bytes(self._data)
        return super().map(function, arguments, on_done)


@pytest.mark.parametrize(
    ("pattern", "data", "error"),
    [
        ("keys-*.arrow", None, SpillError),
        ("keys-*.arrow", b"cut", SpillError),
        ("keys.msgpack", None, FileNotFoundError),
        ("facts.msgpack", None, FileNotFoundError),
    ],
)
def test_a_fault_of_the_work_directory_is_none_of_the_index(
    base: Path, tmp_path: Path, pattern: str, data: bytes | None, error: type[Exception]
) -> None:
    with pytest.raises(error, match=pattern.replace("*", r"\d+")):
        verify_store(str(base), SIZES, Losing(tmp_path, pattern, data), work=str(tmp_path))


def test_sizes_are_found_out_where_they_are_not_given(base: Path, store: Path) -> None:
    assert codes(verify(store, VerifyOptions())) == {}
    for path in files(store)[1:]:
        path.unlink()
    for at in range(40):
        path = files(store)[0]
        data = bytearray(path.read_bytes())
        data[at] ^= 0x11
        path.write_bytes(data)
        found = codes(verify(store, VerifyOptions(index_slots=SLOTS)))
        assert found["index.header"] >= 1, at
        data[at] ^= 0x11
        path.write_bytes(data)


def test_sizes_of_an_index_without_an_entry_are_taken_in_the_ratio_of_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "20200101000000000").write_bytes(bytes(index_file_bytes(50, 200)))
    assert "index.file.size" not in codes(verify(tmp_path, VerifyOptions()))


@pytest.mark.parametrize("sizes", [{"index_entries": 20_000_000}, {"index_slots": 5_000_000}])
def test_sizes_that_no_file_here_has_are_kept(store: Path, sizes: dict[str, int]) -> None:
    report = verify(store, replace(SIZES, **{"index_entries": None, "index_slots": None, **sizes}))
    assert codes(report)["index.file.size"] == len(files(store))


def test_sizes_that_are_given_are_kept(store: Path) -> None:
    report = verify(store, replace(SIZES, index_entries=40))
    assert codes(report)["index.file.size"] == 7
