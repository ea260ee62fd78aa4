"""Splits cover each file from its first byte to its last used one."""

from itertools import pairwise
from pathlib import Path

import pytest

from rmq_formats.scan.splits import DEFAULT_SPLIT_BYTES, last_record_end, plan_splits
from rmq_formats.storage.segments import LocalStorage, Segment
from rmq_formats.storage.store_files import open_store
from tests.support.stores.rebuilt_stores import message, patch, small_store, stored_messages
from tests.support.stores.store_files import write_commitlog


def segments_of(store: Path) -> list[Segment]:
    return open_store(str(store)).segments


@pytest.mark.parametrize("split_bytes", [1000, 4096, DEFAULT_SPLIT_BYTES])
@pytest.mark.parametrize("min_splits", [1, 7, 200])
def test_splits_join_without_a_gap(tmp_path: Path, split_bytes: int, min_splits: int) -> None:
    store = small_store(tmp_path / "store")
    segments = segments_of(store)
    splits = plan_splits(LocalStorage(), segments, split_bytes, min_splits)
    assert [split.number for split in splits] == list(range(len(splits)))
    assert len(splits) >= min(min_splits, 200) or split_bytes < 1000
    for segment in segments:
        own = [split for split in splits if split.path == segment.path]
        assert (own[0].start, own[-1].limit) == (0, segment.size_bytes)
        assert all(before.limit == after.start for before, after in pairwise(own))
        assert {split.file_offset for split in own} == {segment.start_offset}
    assert all(split.size_bytes <= split_bytes for split in splits if split.limit < split.file_bytes)


def test_an_empty_file_is_one_split(tmp_path: Path) -> None:
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    for offset, size in ((0, 0), (4096, 4096)):
        (directory / f"{offset:020d}").write_bytes(bytes(size))
    splits = plan_splits(LocalStorage(), segments_of(tmp_path / "store"), 10, 10)
    assert [(split.start, split.limit, split.data_end) for split in splits] == [(0, 0, 0), (0, 4096, 0)]


def test_a_growing_log_is_frozen_behind_its_last_sound_record(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store", 20, 16384)
    records = list(stored_messages(store))
    last = records[-1]
    assert last_record_end(LocalStorage(), segments_of(store)) == last.physical_offset + last.size
    patch(store, last.physical_offset + 60, bytes(200), 16384)  # the broker is writing it
    assert last_record_end(LocalStorage(), segments_of(store)) == last.physical_offset
    (store / "commitlog" / f"{16384:020d}").write_bytes(bytes(16384))
    assert last_record_end(LocalStorage(), segments_of(store)) == last.physical_offset


def test_a_log_that_ends_with_a_full_file_is_frozen_at_its_end(tmp_path: Path) -> None:
    store = tmp_path / "store"
    write_commitlog(store, [message(number) for number in range(60)], 4096)
    files = sorted((store / "commitlog").iterdir())
    files[-1].write_bytes(bytes(4096))
    assert last_record_end(LocalStorage(), segments_of(store)) == 4096 * (len(files) - 1)
    for path in files:
        path.write_bytes(bytes(4096))
    assert last_record_end(LocalStorage(), segments_of(store)) == 0
