"""A disk that loses its power: what was not forced is there, or not, sector by sector and name by name."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rmq_core.store.files.disk import Disk

SECTOR_BYTES = 512
PAGE_BYTES = 4096
_EMPTY = bytes(PAGE_BYTES)
_T = TypeVar("_T")
Pages = dict[int, bytes]
"""Content of a file, without the pages that are zeros, by position: a timer wheel of 37 MB has few others."""


class LossyDisk(Disk):
    """The real file system, with a memory of what of it was forced.

    Attributes:
        on_change: called before each change or force; tests take pictures of the states in between.
        is_broken: forcing a file fails. As Linux does it, the pages that were to be written count as clean then: the
            next force succeeds without them, unless they are written again.
    """

    def __init__(self, root: Path, on_change: Callable[[], None] | None = None) -> None:
        self.root = root
        self.on_change = on_change
        self.is_broken = False
        self._one_at_a_time = threading.RLock()  # a picture is of one moment: several threads change things
        self._forced: dict[int, Pages] = {}  # content by inode
        self._dropped: dict[int, Pages] = {}  # what a force that failed has left clean, by inode
        self._sizes: dict[int, int] = {}
        self._names: dict[int, dict[str, int]] = {}  # of a directory, by its inode
        self._kept: dict[int, int] = {}  # a descriptor of each inode, lest its number be given to another
        for directory in [root, *(path for path in root.rglob("*") if path.is_dir())]:
            self._note_names(directory)
        for path in root.rglob("*"):
            if path.is_file():
                self._note_content(os.open(path, os.O_RDONLY), keep=True)

    def remember(self, before: "LossyDisk") -> None:
        """Take over what of a directory was forced, as this one is a copy of all that is in it; nothing is kept there.

        Args:
            before: the disk of that directory; it is used no more.
        """
        inodes = {
            path.stat().st_ino: (self.root / path.relative_to(before.root)).stat().st_ino
            for path in [before.root, *before.root.rglob("*")]
        }
        for table in ("_forced", "_dropped", "_sizes"):
            known = getattr(before, table)
            setattr(self, table, {inodes.get(inode, inode): one for inode, one in known.items()})
        self._names = {
            inodes.get(inode, inode): {name: inodes.get(one, one) for name, one in names.items()}
            for inode, names in before._names.items()
        }
        self._kept |= {inode: one for inode, one in before._kept.items() if inode not in inodes}
        before._kept = {inode: one for inode, one in before._kept.items() if inode in inodes}

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
        pages, before = dict(_pages(descriptor, status.st_size)), self._forced.get(status.st_ino, {})
        for at, page in self._dropped.get(status.st_ino, {}).items():
            if pages.get(at) == page:
                pages[at] = before.get(at, _EMPTY)
        self._forced[status.st_ino] = pages
        self._sizes[status.st_ino] = status.st_size
        if keep:
            self._keep(descriptor)

    def _keep(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if inode in self._kept:
            os.close(descriptor)
        else:
            self._kept[inode] = descriptor

    def _note_names(self, directory: Path) -> None:
        descriptor = os.open(directory, os.O_RDONLY)
        self._names[os.fstat(descriptor).st_ino] = {
            path.name: path.stat().st_ino for path in sorted(directory.iterdir())
        }
        self._keep(descriptor)

    def create(self, path: str, size: int, *, allocate: bool) -> int:
        with self._one_at_a_time:
            self._changes()
            descriptor = super().create(path, size, allocate=allocate)
            self._keep(os.dup(descriptor))
            return descriptor

    def write(self, descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
        with self._one_at_a_time:
            self._changes()
            super().write(descriptor, data, offset)
            dropped = self._dropped.get(os.fstat(descriptor).st_ino, {})
            for at in [at for at in dropped if offset - PAGE_BYTES < at < offset + len(data)]:
                del dropped[at]

    def truncate(self, descriptor: int, size: int) -> None:
        with self._one_at_a_time:
            self._changes()
            super().truncate(descriptor, size)

    def zero(self, descriptor: int, begin: int, end: int) -> None:
        with self._one_at_a_time:
            self._changes()
            super().zero(descriptor, begin, end)

    def make_directory(self, path: str) -> list[str]:
        with self._one_at_a_time:
            self._changes()
            return super().make_directory(path)

    def remove_directory(self, path: str) -> None:
        with self._one_at_a_time:
            self._changes()
            super().remove_directory(path)

    def remove(self, path: str) -> None:
        with self._one_at_a_time:
            self._changes()
            super().remove(path)

    def write_file(self, path: str, data: bytes) -> None:
        with self._one_at_a_time:
            super().write_file(path, data)
            self._keep(os.open(path, os.O_RDONLY))

    def replace(self, path: str, data: bytes) -> None:
        with self._one_at_a_time:
            super().replace(path, data)

    def sync(self, descriptor: int) -> None:
        with self._one_at_a_time:
            self._changes()
            if self.is_broken:
                self._drop(descriptor)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            self._note_content(descriptor)
            self._keep(os.dup(descriptor))
            self._changes()

    def _drop(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        forced = self._forced.get(status.st_ino, {})
        for at, page in _pages(descriptor, status.st_size):
            if forced.get(at, _EMPTY) != page:
                self._dropped.setdefault(status.st_ino, {})[at] = page

    def sync_directory(self, path: str) -> None:
        with self._one_at_a_time:
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
        with self._one_at_a_time:
            self._copy(self.root, target, source, lose)

    def _copy(self, directory: Path, target: Path, source: random.Random, lose: float) -> None:
        target.mkdir()
        now = {path.name: path for path in sorted(directory.iterdir())}
        forced = self._names.get(directory.stat().st_ino, {})
        for name, path in now.items():
            inode = path.stat().st_ino
            if forced.get(name) != inode and source.random() < lose:
                if name in forced and forced[name] in self._forced:  # renamed over, and that was lost
                    self._put(target / name, self._forced[forced[name]], self._sizes[forced[name]])
                continue
            if path.is_dir():
                self._copy(path, target / name, source, lose)
            else:
                self._put(target / name, *self._content(path, inode, source, lose))
        for name, inode in forced.items():
            if name not in now and inode in self._forced and source.random() < lose:
                self._put(target / name, self._forced[inode], self._sizes[inode])  # removed, and that was lost

    @staticmethod
    def _put(path: Path, pages: Pages, size: int) -> None:
        with path.open("wb") as file:
            for at, page in pages.items():
                file.seek(at)
                file.write(page)
            file.truncate(size)

    def _content(self, path: Path, inode: int, source: random.Random, lose: float) -> tuple[Pages, int]:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            kept = dict(_pages(file.fileno(), size))
        forced = self._forced.get(inode)
        if forced is None:
            if source.random() < lose / 2:
                return {}, 0
            forced = {}
        step = source.choice([SECTOR_BYTES, PAGE_BYTES])
        for at in sorted(kept.keys() | forced.keys()):
            now, before = kept.get(at, _EMPTY), forced.get(at, _EMPTY)
            if now != before:
                parts = [
                    before[i : i + step]
                    if now[i : i + step] != before[i : i + step] and source.random() < lose
                    else now[i : i + step]
                    for i in range(0, PAGE_BYTES, step)
                ]
                kept[at] = b"".join(parts)
        return kept, size


def _pages(descriptor: int, size: int) -> Iterator[tuple[int, bytes]]:
    """The pages of a file that are not zeros; the last one is filled up."""
    at = 0
    while at < size:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError:  # only a hole is left
            return
        end = os.lseek(descriptor, at, os.SEEK_HOLE)
        for page_at in range(at - at % PAGE_BYTES, end, PAGE_BYTES):
            page = os.pread(descriptor, PAGE_BYTES, page_at).ljust(PAGE_BYTES, b"\0")
            if page != _EMPTY:
                yield page_at, page
        at = end


@dataclass(frozen=True, slots=True)
class State(Generic[_T]):
    """What a disk held after a loss of power, and what had been acknowledged."""

    root: Path
    acknowledged: _T


class Camera(Generic[_T]):
    """Takes pictures of a store's disk at changes that chance picks."""

    def __init__(
        self, root: Path, source: random.Random, count: int, one_in: int, acknowledged: Callable[[], _T]
    ) -> None:
        root.mkdir(exist_ok=True)
        self.disk = LossyDisk(root, self._on_change)
        self.states: list[State[_T]] = []
        self.acknowledged = acknowledged
        self._directory = root.parent
        self._name = root.name
        self._source = source
        self._count = count
        self._one_in = one_in

    def _on_change(self) -> None:
        if len(self.states) < self._count and self._source.randrange(self._one_in) == 0:
            self.take()

    def take(self) -> None:
        """Take a picture now."""
        acknowledged = self.acknowledged()  # before the picture: what is forced while it is taken counts for nothing
        target = self._directory / f"{self._name}.{len(self.states)}"
        self.disk.picture(target, self._source, lose=self._source.choice([0.1, 0.5, 0.9, 1.0]))
        self.states.append(State(target, acknowledged))
