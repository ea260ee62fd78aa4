"""Work area of a job, shared by its tasks: a local directory, or objects below a URI.

A rebuild's area is below the root that is published into; a verification's area is deleted at the end.
"""

import errno
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError
from rmq_formats.storage.contained import links_below, read_file
from rmq_formats.storage.segments import ArrowStorage, open_storage
from rmq_formats.storage.store_files import open_store
from rmq_formats.storage.store_lock import directory_lock, store_lock
from rmq_offline.tasks.object_work_area import ObjectArea
from rmq_offline.tasks.origin import InterruptedRunPolicy
from rmq_offline.tasks.publish import REBUILT, clear_work, finish_publishing, publish
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.tasks.work_files import WORK_DIRECTORY, write_whole

_MADE_AHEAD: Final = ("spill", "done", "part")


class LocalArea:
    """Work area in a directory of the file system that is published into, which all tasks must see."""

    def __init__(self, target: str, directory: str = WORK_DIRECTORY) -> None:
        self.target = target
        self._work = Path(target) / directory

    def is_at(self, root: str) -> bool:
        return "://" not in root and Path(self.target).resolve() == Path(root).resolve()

    def path(self, name: str) -> str:
        return str(self._work / name)

    def exists(self, name: str) -> bool:
        return (self._work / name).exists()

    def read_text(self, name: str) -> str:
        return self.read_bytes(name).decode()

    def read_bytes(self, name: str) -> bytes:
        data = read_file(self._work, name)
        if data is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path(name))
        return data

    def write(self, name: str, write: Callable[[Path], None]) -> None:
        """Write a file under a temporary name and rename it; a missing directory is created."""
        path = self._work / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self._work, write)

    def note_files(self, task: str, files: Mapping[str, int]) -> None:
        """Do nothing: a directory is published whole."""

    def clear(self, directories: Sequence[str]) -> None:
        clear_work(self._work, [*_MADE_AHEAD, *(f"new/{name}" for name in directories)])

    def remove(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)

    def drop_spills(self) -> None:
        for path in (self._work / "spill").glob("*.arrow"):
            path.unlink()

    @contextmanager
    def lock(self, root: str) -> Iterator[Callable[[], None]]:
        """Acquire the publishing lock of a root; in a store this is the store's own lock. Raises StoreLockedError."""
        signs = (paths.lock_file(self.target), paths.abort_file(self.target))
        is_store = self.is_at(root) or any(map(os.path.lexists, signs))
        with store_lock(self.target) if is_store else directory_lock(self.target):
            yield lambda: None

    def publish(self, directories: Sequence[str], retain: Callable[[Path], None] | None = None) -> None:
        """Replace the target's directories as ``tasks.publish`` does. Raises StoreLayoutError for unknown files."""
        refuse_unknown_files(open_store(self.target), directories)
        publish(self._work, Path(self.target), directories, kind=REBUILT, retain=retain)

    def finish_publishing(
        self, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE, retain: Callable[[Path], None] | None = None
    ) -> None:
        """Complete a publication that was interrupted. Raises StoreError for a foreign one."""
        finish_publishing(self._work, Path(self.target), REBUILT, leftover, retain)

    def has_links(self) -> bool:
        """Return whether the work directory, which another user may have made, has symbolic links."""
        return self._work.is_symlink() or any(True for _ in links_below(self._work))


WorkArea = LocalArea | ObjectArea


def work_area(target: str, directory: str = WORK_DIRECTORY) -> WorkArea:
    """Return the work area below ``target``, a directory or a URI. Raises StoreError for an unusable object store."""
    storage, root = open_storage(target)
    if isinstance(storage, ArrowStorage):
        return ObjectArea(root, directory)
    return LocalArea(root, directory)


def temporary_area(name: str, work: str | None) -> WorkArea:
    """Create a work area outside of the store, by default in the temporary directory. Raises OptionError."""
    parent = work or tempfile.gettempdir()
    area = work_area(parent, f"{name}-{uuid.uuid4().hex}")
    try:
        if isinstance(area, LocalArea) and not Path(area.target).is_dir():
            raise OptionError(f"--work {parent}: no such directory")
        area.clear(())
        if work is None:  # the temporary directory is everybody's, and the files there tell topics and keys
            Path(area.path(".")).chmod(0o700)
    except OSError as error:
        raise OptionError(f"--work {parent}: {error.strerror or error}") from error
    return area
