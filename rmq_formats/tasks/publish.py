"""Replaces whole directories of a store atomically: killed at any instant, each is the old one or the new one.

So it is after a power cut. What a step relies on is forced before it: of names that were changed since the last force,
any may be as they were.
"""

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
_NO_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}  # of kernels and file systems that cannot swap
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTE: Final = "publish.json"


def _exchange(first: Path, second: Path) -> None:
    """Swap two directories atomically (``renameat2``); by three renames where the file system cannot."""
    if hasattr(_LIBC, "renameat2"):
        result = _LIBC.renameat2(_AT_FDCWD, bytes(first), _AT_FDCWD, bytes(second), _RENAME_EXCHANGE)
        if result == 0:
            return
        error = ctypes.get_errno()
        if error not in _NO_EXCHANGE:
            raise StoreError(f"{second}: cannot be replaced ({os.strerror(error)})")
    aside = first.with_name(f"{first.name}.aside")
    second.rename(aside)
    sync_directory(aside.parent)
    first.rename(second)
    sync_directory(second.parent)
    aside.rename(first)


def sync_file_system(directory: Path) -> None:
    """Flush the directory's file system to the disk, and wait for it (``syncfs``)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _LIBC.syncfs(descriptor) != 0:
            raise StoreError(f"{directory}: {os.strerror(ctypes.get_errno())} when its files were flushed")
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Force a directory's names to the disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_forced(path: Path, data: bytes) -> None:
    """Write a small file atomically, and force it: it is there whole, or as it was."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def start_sync(descriptor: int, offset: int, byte_count: int) -> None:
    """Start flushing a range of a file, so that ``sync_file_system`` has less to wait for (``sync_file_range``)."""
    if hasattr(_LIBC, "sync_file_range"):  # only a hint: an error here recurs at ``syncfs``, and is reported there
        _LIBC.sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(byte_count), _SYNC_FILE_RANGE_WRITE)


def clear_work(work: Path, directories: Sequence[str]) -> None:
    """Recreate a work directory, with these directories and nothing else.

    The plan is deleted first: a run that is killed here must not leave a plan and half of its files.
    """
    if work.exists():
        (work / "plan.json").unlink(missing_ok=True)
        sync_directory(work)
        shutil.rmtree(work)
    for name in directories:
        (work / name).mkdir(parents=True)


def publish(work: Path, target: Path, names: Sequence[str], retired: Sequence[str] = ()) -> None:
    """Replace the directories ``target/NAME`` by ``work/new/NAME``, and remove ``work``.

    A note of the directories' inodes is written first, so that a run after a kill can tell those
    that are in place from those that are not, and resume. The intermediate files must be deleted before:
    a file deleted before it is flushed never reaches the disk. If it fails, either all is as it was and no
    note exists, or a later run resumes.

    Args:
        work: the work directory.
        target: the root that is published under.
        names: of the directories, the one that the others refer to first.
        retired: names below ``target`` that are moved away before, as they refer to what is replaced.
    """
    new = work / "new"
    sync_file_system(work)
    inodes = {name: (new / name).stat().st_ino for name in names}
    write_forced(work / _NOTE, json.dumps({"new": inodes, "retired": list(retired)}).encode())
    try:
        finish_publishing(work, target)
    except (OSError, StoreError):
        _take_back(work, target, inodes)
        raise


def is_publishing(work: Path) -> bool:
    """Return whether a publication was interrupted: then ``work`` may hold all that there is of the target."""
    return (work / _NOTE).exists()


def _is_in_place(place: Path, inode: int) -> bool:
    return place.exists() and place.stat().st_ino == inode


def _retire(work: Path, target: Path, names: Sequence[str]) -> None:
    aside = Path(tempfile.mkdtemp(prefix="retired-", dir=work))  # an earlier run may have retired the same names
    for name in names:
        if (target / name).exists():
            (target / name).rename(aside / name)


def _take_back(work: Path, target: Path, inodes: Mapping[str, int]) -> None:
    """Roll back a failed publication of which nothing is in place: later it would undo what was written since."""
    if any(_is_in_place(target / name, inode) for name, inode in inodes.items()):
        return
    if any((work / "new").glob("*.aside")):  # it failed between the renames of ``_exchange``
        return
    for path in work.glob("retired-*/*"):
        path.rename(target / path.name)
    sync_file_system(target)
    (work / _NOTE).unlink()
    sync_directory(work)


def _noted(work: Path) -> tuple[dict[str, int], list[str]]:
    """Read the note of a publication: inodes by name, and names to retire. Raises StoreError."""
    try:
        note = json.loads((work / _NOTE).read_text(encoding="utf-8"))
        inodes, retired = note["new"], note["retired"]
        if not all(isinstance(inode, int) for inode in inodes.values()) or not all(
            isinstance(name, str) for name in retired
        ):
            raise TypeError("a member has another type")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(
            f"{work / _NOTE}: does not say what was being published ({error}); move {work} away: "
            "what the store may lack is in there"
        ) from error
    return inodes, retired


def finish_publishing(work: Path, target: Path) -> bool:
    """Complete a ``publish`` that was interrupted; False if none was under way.

    Raises:
        StoreError: its note cannot be read, or a directory cannot be replaced.
    """
    published = work.with_name(f"{work.name}.published")
    shutil.rmtree(published, ignore_errors=True)  # left by a run that was killed while it cleaned up
    if not is_publishing(work):
        return False
    inodes, retired = _noted(work)
    if retired and not any(_is_in_place(target / name, inode) for name, inode in inodes.items()):
        _retire(work, target, retired)
        sync_file_system(target)  # once a directory is in place, nothing is retired any more
    for name, inode in inodes.items():
        place, fresh = target / name, work / "new" / name
        if _is_in_place(place, inode):
            continue
        if place.exists():
            _exchange(fresh, place)
        else:
            fresh.rename(place)
    sync_file_system(target)
    work.rename(published)  # a half-deleted work directory must not look like one to resume
    sync_directory(published.parent)
    shutil.rmtree(published)
    return True
