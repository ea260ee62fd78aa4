"""A slave whose disk does not take a stretch of the master's log has nothing of it, and takes it later."""

import errno
from pathlib import Path

from tests.store.small_stores import QuickDisk, config_of, fill, opened


class FullDisk(QuickDisk):
    """A disk that takes half of what is written, and no more, while it is full."""

    def __init__(self) -> None:
        self.is_full = False

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.is_full:
            super().write(descriptor, bytes(data[: len(data) // 2]), offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(descriptor, data, offset)


def test_a_stretch_is_taken_whole_or_later(tmp_path: Path) -> None:
    master, disk = opened(config_of(tmp_path / "master")), FullDisk()
    list(fill(master, 60))
    data = bytes(master.read_log_range(0, 1 << 20) or b"")
    slave = opened(config_of(tmp_path / "slave", slave=True), disk=disk)
    assert slave.append_to_commit_log(0, data[:5000])
    disk.is_full = True
    assert not slave.append_to_commit_log(5000, data[5000:])
    assert slave.max_physical_offset == 5000
    disk.is_full = False
    assert slave.append_to_commit_log(5000, data[5000:])
    assert bytes(slave.read_log_range(0, 1 << 20) or b"") == data
    for store in (slave, master):
        assert store.shutdown()
