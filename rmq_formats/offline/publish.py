"""Replaces directories of a store whole: killed at any instant, each is the old one or the new one."""

import ctypes
import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2
_NO_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}  # of kernels and file systems without it
_LIBC = ctypes.CDLL(None, use_errno=True)


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


def clear_work(work: Path, directories: Sequence[str]) -> None:
    """Make a work directory anew, with these directories and nothing else.

    The plan goes first: a run that is killed here must not leave a plan and half of its files.
    """
    (work / "plan.json").unlink(missing_ok=True)
    if work.exists():
        shutil.rmtree(work)
    for name in directories:
        (work / name).mkdir(parents=True)


def publish(work: Path, target: Path, names: Sequence[str]) -> None:
    """Put the directories ``work/new/NAME`` in the place of ``target/NAME``, and remove ``work``.

    A note of the directories' inodes is written first, so that a run after a kill can tell those
    that are in place from those that are not, and go on. The intermediate files must be gone by then:
    what is deleted before it is flushed never goes to the disk.
    """
    new = work / "new"
    sync_file_system(work)
    inodes = {name: (new / name).stat().st_ino for name in names}
    note = work / "publish.json"
    temporary = note.with_suffix(".part")
    temporary.write_text(json.dumps(inodes), encoding="utf-8")
    temporary.replace(note)
    finish_publishing(work, target)


def finish_publishing(work: Path, target: Path) -> bool:
    """Do what is left of a ``publish`` that was interrupted; False if none was under way."""
    published = work.with_name(f"{work.name}.published")
    shutil.rmtree(published, ignore_errors=True)  # of a run that was killed while it cleaned up
    note = work / "publish.json"
    if not note.exists():
        return False
    for name, inode in json.loads(note.read_text(encoding="utf-8")).items():
        place, fresh = target / name, work / "new" / name
        if place.exists() and place.stat().st_ino == inode:
            continue
        if place.exists():
            _exchange(fresh, place)
        else:
            fresh.rename(place)
    sync_file_system(target)
    work.rename(published)  # half of a deleted work directory must not look like one to go on with
    shutil.rmtree(published)
    return True
