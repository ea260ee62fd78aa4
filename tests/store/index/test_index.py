"""The Index: appended to in place, searched, cut back, gone on with."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rmq_core.store.files.disk import Disk
from rmq_core.store.index.file import MappedIndexFile
from rmq_core.store.index.index import Index
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.codecs.index import MAX_LONG, IndexHeader, entry_position
from rmq_formats.codecs.layout import index_file_bytes
from rmq_formats.kernels.dispatch import KEY_COLUMNS
from tests.store.small_stores import config_of
from tests.support.oracles.index import build_index, find_key
from tests.support.stores.store_files import tree

Entry = tuple[int | None, int, int]
SLOTS, ENTRIES = 50, 100  # of config_of
TIME_MS = 1_700_000_000_000


def keys_of(entries: list[Entry]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    keys = np.zeros((len(entries), KEY_COLUMNS), dtype=np.int64)
    for row, (key_hash, offset, time_ms) in enumerate(entries):
        keys[row, :3] = key_hash, offset, time_ms
    return keys


def made(tmp_path: Path, name: str = "store") -> Index:
    index = Index(config_of(tmp_path / name), Disk())
    index.load()
    return index


def append(index: Index, entries: list[Entry], pieces: int = 7) -> None:
    """In batches; an entry without a hash is a message without keys."""
    for begin in range(0, len(entries), pieces):
        own = entries[begin : begin + pieces]
        index.append(keys_of([entry for entry in own if entry[0] is not None]), own[-1][1], own[-1][2])


def images(index: Index) -> list[bytes]:
    return [Path(file.path).read_bytes() for file in index.files]


def entries_of(count: int, seed: int = 0) -> list[Entry]:
    source = random.Random(seed)
    found: list[Entry] = []
    for number in range(count):
        place = (100 * number, TIME_MS + 300 * number)
        found.append((None, *place))
        for _ in range(source.randrange(4)):
            found.append((source.choice([source.randrange(20), source.getrandbits(31)]), *place))
    return found


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize("count", [0, 1, 60, 66, 67, 300])
def test_files_are_those_of_the_codec(tmp_path: Path, count: int, pieces: int) -> None:
    entries = entries_of(count)
    index = made(tmp_path)
    append(index, entries, pieces)
    assert images(index) == build_index(entries, SLOTS, ENTRIES)


def test_files_in_order_have_names_in_order(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, [(1, number, TIME_MS) for number in range(1000)])
    names = [file.name for file in index.files]
    assert names == sorted(set(names))
    assert all(len(Path(file.path).name) == 17 for file in index.files)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=250), st.data())
def test_a_search_finds_what_the_codec_finds(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[int, int]], data: st.DataObject
) -> None:
    entries: list[Entry] = [(key, 100 * at, TIME_MS + 900 * time) for at, (key, time) in enumerate(keys)]
    index = made(tmp_path_factory.mktemp("index"))
    append(index, entries)
    begin_ms = TIME_MS + data.draw(st.integers(-1000, 9000))
    end_ms = begin_ms + data.draw(st.integers(0, 9000))
    for file, image in zip(index.files, build_index(entries, SLOTS, ENTRIES), strict=True):
        for key in range(13):
            wanted = find_key(image, SLOTS, ENTRIES, key, begin_ms=begin_ms, end_ms=end_ms)
            assert list(file.find(key, begin_ms, end_ms)) == wanted


def test_an_index_goes_on_where_it_was(tmp_path: Path) -> None:
    entries = entries_of(300)
    index = made(tmp_path)
    for begin in range(0, len(entries), 50):
        append(index, entries[begin : begin + 50])
        index = made(tmp_path)
    assert images(index) == build_index(entries, SLOTS, ENTRIES)


@pytest.mark.parametrize("at", [0, 1, 30, 150, 200])
def test_an_index_goes_back_to_a_state_that_was_noted(tmp_path: Path, at: int) -> None:
    entries = entries_of(300)
    index = made(tmp_path)
    append(index, entries[:at])
    name = index.files[-1].name if index.files else 0
    noted = (name, len(index.files), index.header_bytes)
    append(index, entries[at:])
    source = random.Random(at)
    for file in index.files[-2:]:  # and a crash leaves them in any state
        for _ in range(20):
            file.map[source.randrange(40, 40 + 4 * SLOTS)] = source.randrange(256)
    again = made(tmp_path)
    assert again.restore(*noted)
    assert images(again) == build_index(entries[:at], SLOTS, ENTRIES)
    append(again, entries[at:])
    assert images(again) == build_index(entries, SLOTS, ENTRIES)


def test_a_noted_state_whose_file_is_gone_is_not_gone_back_to(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, entries_of(100))
    noted = (index.files[-1].name, len(index.files), index.header_bytes)
    Path(index.files[0].path).unlink()
    assert not made(tmp_path).restore(*noted)


@pytest.mark.parametrize("end", [0, 100, 2000, 5050, 5100, 8000, 10_000_000])
def test_entries_of_what_was_cut_are_cut(tmp_path: Path, end: int) -> None:
    entries = entries_of(100)
    index = made(tmp_path)
    append(index, entries)
    index.cut(end, lambda offset: TIME_MS + 3 * offset)
    kept = [entry for entry in entries if entry[1] < end]
    while kept and kept[-1][0] is None and sum(entry[0] is not None for entry in kept) % (ENTRIES - 1) == 0:
        kept.pop()  # an empty file of a message without keys: no one can tell whether it was cut
    assert images(index) == build_index(kept, SLOTS, ENTRIES)


def test_where_dispatch_goes_on_is_told_to_the_key(tmp_path: Path) -> None:
    index = made(tmp_path)
    assert index.resume() == (0, 0)
    append(index, [(1, 0, TIME_MS)] * 97 + [(1, 500, TIME_MS)] * 4)
    assert len(index.files) == 2
    assert index.resume() == (500, 4)


def test_a_full_disk_stops_an_append_and_the_next_goes_on(tmp_path: Path) -> None:
    class Full(Disk):
        is_full = False

        def allocate(self, descriptor: int, offset: int, size: int) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().allocate(descriptor, offset, size)

    disk = Full()
    index = Index(config_of(tmp_path), disk)
    entries = [(number, 100 * number, TIME_MS) for number in range(250)]
    append(index, list(entries[:50]))
    disk.is_full = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            index.append(keys_of(list(entries[50:])), 24_900, TIME_MS)
    disk.is_full = False
    index.append(keys_of(list(entries[50:])), 24_900, TIME_MS)
    assert images(index) == build_index(entries, SLOTS, ENTRIES)


def test_a_chain_that_goes_round_ends(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, [(7, 100 * number, TIME_MS) for number in range(60)])
    file = index.files[0]
    source = random.Random(5)
    for _ in range(10_000):
        number = source.randrange(1, 61)
        link = source.choice([number, source.randrange(0, 61), source.randrange(-(1 << 31), 1 << 31)])
        file.map[entry_position(number, SLOTS) + 16 : entry_position(number, SLOTS) + 20] = link.to_bytes(
            4, "big", signed=True
        )
        assert len(list(file.find(7, 0, MAX_LONG))) <= 60


def test_files_of_other_settings_are_made_anew(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, entries_of(100))
    Path(index.files[0].path).write_bytes(bytes(77))
    (tmp_path / "store" / "index" / "readme.txt").write_text("mine")
    again = made(tmp_path)
    assert again.files == []
    assert list(tree(tmp_path / "store" / "index")) == ["readme.txt"]


def test_old_files_go_with_the_log_but_not_the_last(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, [(1, 100 * number, TIME_MS) for number in range(250)])
    assert [file.name for file in index.remove_expired(9_800)] == [], "offset 9800 is the last of the first file"
    assert len(index.remove_expired(9_801)) == 1
    assert len(index.remove_expired(1 << 40)) == 1
    assert len(index.files) == 1


def test_topics_do_not_share_keys(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, [(index_key_hash("A", "k"), 0, TIME_MS), (index_key_hash("B", "k"), 100, TIME_MS)])
    assert list(index.find("A", "k", 0, MAX_LONG)) == [0]
    assert list(index.find("B", "k", 0, MAX_LONG)) == [100]


def test_the_header_counts_what_is_there(tmp_path: Path) -> None:
    index = made(tmp_path)
    append(index, [(3, 40, TIME_MS), (3, 50, TIME_MS + 5), (53, 60, TIME_MS + 6), (4, 70, TIME_MS + 7)])
    assert index.files[0].header == IndexHeader(TIME_MS, TIME_MS + 7, 40, 70, 2, 5)
    assert index.last_update() == (TIME_MS + 7, 70)


def test_an_index_file_takes_little_of_the_disk_until_it_is_used(tmp_path: Path) -> None:
    slots, entries = 1000, 4_000_000
    path = tmp_path / "20231114221320000"
    file = MappedIndexFile.create(str(path), 20231114221320000, slots, entries, Disk(), (0, 0))
    assert path.stat().st_size == index_file_bytes(slots, entries)
    assert path.stat().st_blocks * 512 < 8 << 20
    file.append(keys_of([(1, 0, TIME_MS)]))
    assert path.stat().st_blocks * 512 < 16 << 20
