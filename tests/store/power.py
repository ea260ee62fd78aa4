"""A disk that loses its power: what was not forced is there, or not, sector by sector and name by name."""

import os
import random
from collections.abc import Callable
from pathlib import Path

from rmq_core.store.disk import Disk

SECTOR_BYTES = 512


class LossyDisk(Disk):
    """The real file system, with a memory of what of it was forced.

    Attributes:
        on_change: called before each change or force; tests take pictures of the states in between.
    """

    def __init__(self, root: Path, on_change: Callable[[], None] | None = None) -> None:
        self.root = root
        self.on_change = on_change
        self._forced: dict[int, bytes] = {}  # content by inode
        self._names: dict[int, dict[str, int]] = {}  # of a directory, by its inode
        self._kept: dict[int, int] = {}  # a descriptor of each inode, lest its number be given to another
        for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            self._note_names(directory)
        for path in root.rglob("*"):
            if path.is_file():
                self._note_content(os.open(path, os.O_RDONLY), keep=True)

    def close_kept(self) -> None:
        """Let go of all files."""
        for descriptor in self._kept.values():
            os.close(descriptor)
        self._kept.clear()

    def _changes(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def _note_content(self, descriptor: int, *, keep: bool = False) -> None:
        status = os.fstat(descriptor)
        self._forced[status.st_ino] = os.pread(descriptor, status.st_size, 0)
        if keep:
            self._keep(descriptor)

    def _keep(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self._kept:
            os.close(descriptor)
        else:
            self._kept[inode] = descriptor

    def _note_names(self, directory: Path) -> None:
        self._names[directory.stat().st_ino] = {path.name: path.stat().st_ino for path in directory.iterdir()}

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        self._changes()
        descriptor = super().create(path, size, allocate=allocate)
        self._keep(os.dup(descriptor))
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._changes()
        super().write(descriptor, data, offset)

    def zero(self, descriptor: int, begin: int, end: int) -> None:
        self._changes()
        super().zero(descriptor, begin, end)

    def remove(self, path: str) -> None:
        self._changes()
        super().remove(path)

    def replace(self, path: str, data: bytes) -> None:
        self._changes()
        super().replace(path, data)
        descriptor = os.open(path, os.O_RDONLY)
        self._note_content(descriptor, keep=True)

    def sync(self, descriptor: int) -> None:
        self._changes()
        self._note_content(descriptor)
        self._keep(os.dup(descriptor))
        self._changes()

    def sync_directory(self, path: str) -> None:
        self._changes()
        self._note_names(Path(path))
        self._changes()

    def picture(self, target: Path, source: random.Random, *, lose: float) -> None:
        """What the disk may hold after a loss of power now.

        Args:
            target: where to put it.
            source: of chance.
            lose: how likely each sector, size and name that was not forced is lost.
        """
        self._copy(self.root, target, source, lose)

    def _copy(self, directory: Path, target: Path, source: random.Random, lose: float) -> None:
        target.mkdir()
        now = {path.name: path for path in directory.iterdir()}
        forced = self._names.get(directory.stat().st_ino, {})
        for name, path in now.items():
            inode = path.stat().st_ino
            if forced.get(name) != inode and source.random() < lose:
                if name in forced and forced[name] in self._forced:  # renamed over, and that was lost
                    (target / name).write_bytes(self._forced[forced[name]])
                continue
            if path.is_dir():
                self._copy(path, target / name, source, lose)
            else:
                (target / name).write_bytes(self._content(path, inode, source, lose))
        for name, inode in forced.items():
            if name not in now and inode in self._forced and source.random() < lose:
                (target / name).write_bytes(self._forced[inode])  # removed, and that was lost

    def _content(self, path: Path, inode: int, source: random.Random, lose: float) -> bytes:
        current = path.read_bytes()
        forced = self._forced.get(inode)
        if forced is None:
            if source.random() < lose / 2:
                return b""
            forced = bytes(len(current))
        if current == forced:
            return current
        forced = forced.ljust(len(current), b"\0")[: len(current)]
        kept = bytearray(current)
        page = source.choice([SECTOR_BYTES, 4096])
        for at in range(0, len(current), page):
            if current[at : at + page] != forced[at : at + page] and source.random() < lose:
                kept[at : at + page] = forced[at : at + page]
        return bytes(kept)
