"""Where a job's tasks write what others read: a directory that all of them see, or objects.

Of a rebuild it lies in the root that is published under; of a verification it is one that is deleted in the end.
"""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmq_formats import paths
from rmq_formats.offline.lock import directory_lock, store_lock
from rmq_formats.offline.object_area import ObjectArea
from rmq_formats.offline.publish import clear_work, finish_publishing, publish
from rmq_formats.offline.rebuild import WORK_DIRECTORY, write_whole
from rmq_formats.segment import ArrowStorage, open_storage

_MADE_AHEAD: Final = ("spill", "done", "part")


class LocalArea:
    """A directory of the file system that is published into, which all tasks must see."""

    def __init__(self, target: str, directory: str = WORK_DIRECTORY) -> None:
        """The directory of that name below a root, which may be published into; nothing is made yet."""
        self.target = target
        self._work = Path(target) / directory

    def is_at(self, root: str) -> bool:
        """Whether a store's root is what is published into."""
        return "://" not in root and Path(self.target).resolve() == Path(root).resolve()

    def path(self, name: str) -> str:
        """Where a file is, for those who read it."""
        return str(self._work / name)

    def exists(self, name: str) -> bool:
        """Whether a file is there: all of it."""
        return (self._work / name).exists()

    def read_text(self, name: str) -> str:
        """A small file's text."""
        return (self._work / name).read_text(encoding="utf-8")

    def read_bytes(self, name: str) -> bytes:
        """A small file."""
        return (self._work / name).read_bytes()

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Have a file written beside, and renamed; its directory is made if need be."""
        path = self._work / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self._work, write)

    def clear(self, directories: Sequence[str]) -> None:
        """Begin anew: an empty work directory, in which the new directories are."""
        clear_work(self._work, [*_MADE_AHEAD, *(f"new/{name}" for name in directories)])

    def remove(self) -> None:
        """Delete everything; what cannot be deleted stays."""
        shutil.rmtree(self._work, ignore_errors=True)

    def drop_spills(self) -> None:
        """Delete the intermediate files."""
        for path in (self._work / "spill").glob("*.arrow"):
            path.unlink()

    @contextmanager
    def lock(self, root: str) -> Iterator[Callable[[], None]]:
        """Be the only one who publishes there; in a store, the only one who writes. Raises StoreLockedError.

        Args:
            root: of the store that is read.
        """
        is_store = self.is_at(root) or Path(paths.lock_file(self.target)).exists()
        with store_lock(self.target) if is_store else directory_lock(self.target):
            yield lambda: None

    def publish(self, directories: Sequence[str]) -> None:
        """Put the new directories in the place of the old ones."""
        publish(self._work, Path(self.target), directories)

    def finish_publishing(self) -> None:
        """Do what is left of a publication that was interrupted."""
        finish_publishing(self._work, Path(self.target))


WorkArea = LocalArea | ObjectArea


def work_area(target: str, directory: str = WORK_DIRECTORY) -> WorkArea:
    """The area below ``target``, a directory or a URI.

    Raises:
        StoreError: an object store of an unknown kind, or one that does not answer.
    """
    storage, root = open_storage(target)
    if isinstance(storage, ArrowStorage):
        return ObjectArea(root, directory)
    return LocalArea(root, directory)
