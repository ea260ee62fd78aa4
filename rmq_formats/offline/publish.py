"""Replaces directories of a store whole: killed at any instant, each is the old one or the new one."""

import ctypes
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_SYNC_FILE_RANGE_WRITE: Final = 2
_NO_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}  # of kernels and file systems without it
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTE: Final = "publish.json"


def _exchange(first: Path, second: Path) -> None:
    """Swap two directories in one step of the file system; in two where it cannot."""
    if hasattr(_LIBC, "renameat2"):
        result = _LIBC.renameat2(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE)
        if result == 0:
            return
        error = ctypes.get_errno()
        if error not in _NO_EXCHANGE:
            raise StoreError(f"{second}: cannot be replaced ({os.strerror(error)})")
    aside = first.with_name(f"{first.name}.aside")
    second.rename(aside)
    first.rename(second)
    aside.rename(first)


def sync_file_system(directory: Path) -> None:
    """Wait until what was written to the directory's file system is on the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise StoreError(f"{directory}: {os.strerror(ctypes.get_errno())} when its files were flushed")
    finally:
        os.close(descriptor)


def start_sync(descriptor: int, offset: int, byte_count: int) -> None:
    """Have a part of a file written to the disk while the rest is made: ``sync_file_system`` has less to wait for."""
    if hasattr(_LIBC, "sync_file_range"):  # a hint: what fails here fails there again, and is told
        _LIBC.sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(byte_count), _SYNC_FILE_RANGE_WRITE)


def clear_work(work: Path, directories: Sequence[str]) -> None:
    """Make a work directory anew, with these directories and nothing else.

    The plan goes first: a run that is killed here must not leave a plan and half of its files.
    """
    (work / "plan.json").unlink(missing_ok=True)
    if work.exists():
        shutil.rmtree(work)
    for name in directories:
        (work / name).mkdir(parents=True)


def publish(work: Path, target: Path, names: Sequence[str], retired: Sequence[str] = ()) -> None:
    """Put the directories ``work/new/NAME`` in the place of ``target/NAME``, and remove ``work``.

    A note of the directories' inodes is written first, so that a run after a kill can tell those
    that are in place from those that are not, and go on. The intermediate files must be gone by then:
    what is deleted before it is flushed never goes to the disk. If it fails, either all is as it was and no
    note is there, or a later run goes on.

    Args:
        work: the work directory.
        target: the root that is published under.
        names: of the directories, the one that the others speak of first.
        retired: names below ``target`` that are taken away before: they speak of what is replaced.
    """
    new = work / "new"
    sync_file_system(work)
    inodes = {name: (new / name).stat().st_ino for name in names}
    note = work / _NOTE
    temporary = note.with_suffix(".part")
    temporary.write_text(json.dumps({"new": inodes, "retired": list(retired)}), encoding="utf-8")
    temporary.replace(note)
    try:
        finish_publishing(work, target)
    except (OSError, StoreError):
        _take_back(work, target, inodes)
        raise


def is_publishing(work: Path) -> bool:
    """Whether a publication was interrupted: then what is below ``work`` may be all that there is of the target."""
    return (work / _NOTE).exists()


def _is_in_place(place: Path, inode: int) -> bool:
    return place.exists() and place.stat().st_ino == inode


def _retire(work: Path, target: Path, names: Sequence[str]) -> None:
    aside = Path(tempfile.mkdtemp(prefix="retired-", dir=work))  # a run before may have retired the same names
    for name in names:
        if (target / name).exists():
            (target / name).rename(aside / name)


def _take_back(work: Path, target: Path, inodes: Mapping[str, int]) -> None:
    """Undo a failed publication of which nothing is in place: later it would undo what was written since."""
    if any(_is_in_place(target / name, inode) for name, inode in inodes.items()):
        return
    if any((work / "new").glob("*.aside")):  # it failed between two renames
        return
    for path in work.glob("retired-*/*"):
        path.rename(target / path.name)
    (work / _NOTE).unlink()


def finish_publishing(work: Path, target: Path) -> bool:
    """Do what is left of a ``publish`` that was interrupted; False if none was under way."""
    published = work.with_name(f"{work.name}.published")
    shutil.rmtree(published, ignore_errors=True)  # of a run that was killed while it cleaned up
    if not is_publishing(work):
        return False
    note = json.loads((work / _NOTE).read_text(encoding="utf-8"))
    inodes = note["new"]
    if note["retired"] and not any(_is_in_place(target / name, inode) for name, inode in inodes.items()):
        _retire(work, target, note["retired"])
    for name, inode in inodes.items():
        place, fresh = target / name, work / "new" / name
        if _is_in_place(place, inode):
            continue
        if place.exists():
            _exchange(fresh, place)
        else:
            fresh.rename(place)
    sync_file_system(target)
    work.rename(published)  # half of a deleted work directory must not look like one to go on with
    shutil.rmtree(published)
    return True
