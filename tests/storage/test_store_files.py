"""A store's files are listed once by a handle, and anew by the next one."""

import pickle
from pathlib import Path

from rmq_formats.codecs import paths
from rmq_formats.storage.segments import Entry, LocalStorage
from rmq_formats.storage.store_files import StoreFiles


class CountedStorage(LocalStorage):
    """A local disk that counts the directories that were listed."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    def entries(self, path: str) -> list[Entry]:
        """List a directory, and remember it."""
        self.listed.append(path)
        return super().entries(path)


def add_segment(root: Path, start_offset: int) -> None:
    directory = root / "commitlog"
    directory.mkdir(exist_ok=True)
    (directory / paths.segment_name(start_offset)).write_bytes(bytes(4096))


def test_a_handle_lists_its_store_once(tmp_path: Path) -> None:
    add_segment(tmp_path, 0)
    storage = CountedStorage()
    store = StoreFiles(storage, str(tmp_path))
    assert [segment.start_offset for segment in store.segments] == [0]
    assert not store.layouts.evidence
    listed = len(storage.listed)
    add_segment(tmp_path, 4096)
    assert len(store.segments) == 1
    assert not store.layouts.evidence
    assert len(storage.listed) == listed


def test_a_task_lists_the_store_for_itself(tmp_path: Path) -> None:
    add_segment(tmp_path, 0)
    store = StoreFiles(LocalStorage(), str(tmp_path))
    assert len(store.segments) == 1
    add_segment(tmp_path, 4096)
    assert len(pickle.loads(pickle.dumps(store)).segments) == 2
