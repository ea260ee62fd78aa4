"""A disk that loses what was not forced, and that fails where chance has it: full, broken, or out of descriptors."""

import errno
import os
import random
from contextlib import suppress
from pathlib import Path

from tests.store.power_loss import PAGE_BYTES, LossyDisk

_LACKS = (errno.ENOSPC, errno.EMFILE)


class FaultyDisk(LossyDisk):
    """A ``LossyDisk`` whose calls fail now and then.

    Attributes:
        lack_rate: how likely a change meets a lack of space or of descriptors.
        break_rate: how likely a force fails for good.
        faults: what has failed so far, in order.
        ratio: used share of the disk, as it is told.
    """

    def __init__(self, root: Path, dice: random.Random) -> None:
        super().__init__(root)
        self.lack_rate = 0.0
        self.break_rate = 0.0
        self.faults: list[str] = []
        self.ratio = 0.1
        self._dice = dice

    def _lack(self, what: str, path: str) -> None:
        if self.lack_rate and self._dice.random() < self.lack_rate:
            self._fail(self._dice.choice(_LACKS), what, path)

    def _fail(self, number: int, what: str, path: str) -> None:
        self.faults.append(f"{errno.errorcode[number]} at {what} of {Path(path).relative_to(self.root)}")
        raise OSError(number, os.strerror(number), path)

    def open(self, path: str) -> int:
        self._lack("open", path)
        return super().open(path)

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        self._lack("create", path)
        return super().create(path, size, allocate=allocate)

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        path = _path_of(descriptor)
        try:
            self._lack("write", path)
        except OSError:
            part = self._dice.randrange(len(data)) if len(data) else 0
            super().write(descriptor, data[:part], offset)  # a full disk takes a part
            raise
        super().write(descriptor, data, offset)

    def allocate(self, descriptor: int, offset: int, size: int) -> None:
        self._lack("allocate", _path_of(descriptor))
        super().allocate(descriptor, offset, size)

    def make_directory(self, path: str) -> list[str]:
        self._lack("make_directory", path)
        return super().make_directory(path)

    def sync(self, descriptor: int) -> None:
        if not self.break_rate or self._dice.random() >= self.break_rate:
            super().sync(descriptor)
            return
        self.is_broken = True
        with suppress(OSError):
            super().sync(descriptor)
        self.is_broken = False
        self._fail(errno.EIO, "sync", _path_of(descriptor))

    def evict(self) -> None:
        """Have derived files read from the disk again what a failed force has left clean in memory.

        Linux may do so at any time. Here it is done while nobody has them open: what a recovery then writes again is
        seen to be new, as writes through a map are not seen where they bring the bytes that were there.
        """
        for path in sorted(self.root.rglob("*")):
            if self._dropped and path.is_file() and not path.is_relative_to(self.root / "commitlog"):
                self._evict(path)

    def _evict(self, path: Path) -> None:
        status = path.stat()
        forced = self._forced.get(status.st_ino, {})
        with path.open("r+b") as file:
            for at, page in self._dropped.pop(status.st_ino, {}).items():
                end = min(at + PAGE_BYTES, status.st_size)
                if end <= at:  # cut off since
                    continue
                if os.pread(file.fileno(), end - at, at) == page[: end - at]:
                    os.pwrite(file.fileno(), forced.get(at, bytes(PAGE_BYTES))[: end - at], at)

    def sync_directory(self, path: str) -> None:
        if self.break_rate and self._dice.random() < self.break_rate / 2:
            self._fail(errno.EIO, "sync_directory", path)
        super().sync_directory(path)

    def used_ratio(self, path: str) -> float:  # noqa: ARG002 # as Disk has it
        return self.ratio


def _path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 # a descriptor's
