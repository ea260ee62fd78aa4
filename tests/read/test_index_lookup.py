"""An IndexFile read in places, against the plain-Python index; the search of a queue by time."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.index import IndexHeader
from rmq_formats.codecs.layout import INDEX_ENTRIES, INDEX_SLOTS, index_file_bytes
from rmq_formats.errors import FormatError
from rmq_formats.read.index_lookup import IndexFile, first_unit_since
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.storage.queue_files import QueueFiles
from rmq_formats.storage.segments import LocalStorage, Segment
from tests.support.oracles.index import build_index, find_key
from tests.support.stores.store_files import InMemory

entries = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 1 << 50), st.integers(1, 1 << 44)), min_size=1, max_size=60
)


@given(entries, st.integers(1, 50), st.integers(2, 40))
def test_slots_are_found_out_and_keys_are_found(keys: list[tuple[int, int, int]], slots: int, capacity: int) -> None:
    for image in build_index(sorted(keys, key=lambda key: key[1]), slots, capacity):
        index = IndexFile.read(InMemory(image), "file")
        assert (index.slots, index.entries) == (slots, capacity)
        for key_hash in range(41):
            assert list(index.find(key_hash)) == find_key(image, slots, capacity, key_hash)
        numbers = [first + at for first, chunk in index.chunks() for at in range(len(chunk))]
        assert numbers == list(range(1, IndexHeader.decode(image).index_count))


def test_the_golden_files_have_the_brokers_slots(
    golden: Callable[[str], Path], golden_name: str, golden_settings: dict
) -> None:
    settings = golden_settings[golden_name]
    storage = LocalStorage()
    for path in (golden(golden_name) / "store" / "index").iterdir():
        file = storage.open(str(path))
        index = IndexFile.read(file, str(path))
        assert (index.slots, index.entries) == (settings.index_slots, settings.index_entries)
        image = path.read_bytes()
        for _, chunk in index.chunks():
            for key_hash in chunk["key_hash"][::50].tolist():
                assert list(index.find(key_hash)) == find_key(image, index.slots, index.entries, key_hash)
        file.close()


def test_a_time_range_bounds_what_is_found() -> None:
    [image] = build_index([(7, offset, 1000 * (offset + 1)) for offset in range(20)], 5, 100)
    index = IndexFile.read(InMemory(image), "file")
    for begin_ms, end_ms in ((0, 1 << 62), (5000, 9000), (9000, 5000), (20_001, 1 << 62)):
        wanted = find_key(image, 5, 100, 7, begin_ms=begin_ms, end_ms=end_ms)
        assert list(index.find(7, begin_ms=begin_ms, end_ms=end_ms)) == wanted


def test_an_empty_file_has_no_keys() -> None:
    index = IndexFile.read(InMemory(bytes(index_file_bytes(5, 100))), "file")
    assert (index.slots, index.entry_count, list(index.find(7)), list(index.chunks())) == (0, 0, [], [])


def test_an_empty_file_of_the_default_size_has_the_default_slots(tmp_path: Path) -> None:
    path = tmp_path / "index"
    with path.open("wb") as file:
        file.truncate(index_file_bytes(INDEX_SLOTS, INDEX_ENTRIES))
    opened = LocalStorage().open(str(path))
    index = IndexFile.read(opened, str(path))
    opened.close()
    assert (index.slots, index.entries) == (INDEX_SLOTS, INDEX_ENTRIES)


@pytest.mark.parametrize("damage", ["cut", "noise", "count"])
def test_a_damaged_file_is_an_error(damage: str) -> None:
    [image] = build_index([(key, key, 1000) for key in range(40)], 50, 100)
    damaged = {
        "cut": image[:300],
        "noise": image[:40] + bytes(b ^ 0x55 for b in image[40:]),
        "count": IndexHeader(1, 1, 0, 39, 40, 1 << 30).encode() + image[40:],
    }[damage]
    with pytest.raises(FormatError):
        IndexFile.read(InMemory(damaged), "file")


def test_a_unit_that_points_nowhere_ends_the_search(tmp_path: Path) -> None:
    log = tmp_path / f"{0:020d}"
    log.write_bytes(bytes(1000))
    queue = tmp_path / "queue"
    for offset in (500, 5000):  # where there is no record, and where there is no file
        queue.write_bytes(offset.to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8))
        files = QueueFiles("T", 0, (Segment(str(queue), 0, 20),))
        with pytest.raises(FormatError):
            first_unit_since(LocalStorage(), [Segment(str(log), 0, 1000)], ConsumeQueue(LocalStorage(), files), 1)


def test_a_file_that_a_broker_writes_meanwhile_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [(7, offset, 1000) for offset in range(20)]
    [before], [after] = build_index(keys[:10], 5, 100), build_index(keys, 5, 100)
    file = InMemory(after)
    file.data = memoryview(bytearray(after))
    file.data[:40] = before[:40]  # the header as it was read, ten entries ago
    first = IndexHeader.decode(before)
    headers = iter([first, IndexHeader.decode(after)])
    monkeypatch.setattr(IndexHeader, "decode", lambda _: next(headers))
    index = IndexFile.read(file, "file")
    assert (index.slots, index.entry_count) == (5, 10)
