"""The page cache: what is appended is in memory, and can be read there, however slow the disk is."""

import threading

from tests.store.conftest import Opener
from tests.store.small_stores import QuickDisk, put, read_all


class HangingDisk(QuickDisk):
    """A disk whose forces do not return before they are let."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def sync(self, descriptor: int) -> None:
        if not self.may_end.is_set():
            self.began.set()
            assert self.may_end.wait(60)
        super().sync(descriptor)


def test_what_the_disk_has_not_got_yet_is_taken_and_read(open_store: Opener) -> None:
    disk = HangingDisk()
    store = open_store(disk=disk, flush_interval_ms=10)
    put(store)
    assert store.flush()
    forced = store.flushed_offset
    disk.may_end.clear()
    try:
        put(store, body=b"while it hangs")
        assert disk.began.wait(30)
        for number in range(50):
            put(store, body=b"%d" % number)
        assert store.dispatch()
        assert store.flushed_offset == forced
        assert len(read_all(store)) == 52
    finally:
        disk.may_end.set()
    assert store.flush()
