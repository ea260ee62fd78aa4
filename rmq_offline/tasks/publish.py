"""Replaces whole directories of a store atomically: killed at any instant, each is the old one or the new one.

That holds after a power cut, too. Each step flushes the files that the next step relies on: names that changed since
the last fsync may be lost.
"""

import ctypes
import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rmq_formats.errors import StoreError
from rmq_formats.storage.contained import is_there, names_in, read_file, real_directory, replace_file, root_directory
from rmq_offline.tasks.origin import InterruptedRunPolicy, add_seal, check_origin

_RENAME_EXCHANGE: Final = 2
_SYNC_FILE_RANGE_WRITE: Final = 2
_NO_EXCHANGE: Final = {errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP}  # of kernels and file systems that cannot swap
_LIBC = ctypes.CDLL(None, use_errno=True)
_NOTE: Final = "publish.json"
_PLAN: Final = "plan.json"
_RETIRED: Final = "retired-"


@dataclass(frozen=True, slots=True)
class PublishedNames:
    """Fixed set of names that a kind of job publishes under a root.

    Attributes:
        retired: names that are moved away first.
        is_derived: whether a later run makes lost directories anew from the log.
    """

    directories: frozenset[str]
    retired: frozenset[str] = frozenset()
    is_derived: bool = False


REBUILT: Final = PublishedNames(
    frozenset({"consumequeue", "consumequeue_ext", "batchconsumequeue", "index"}), is_derived=True
)
WRITTEN: Final = PublishedNames(
    frozenset({"commitlog", "consumequeue", "consumequeue_ext", "index"}),
    frozenset({"consumequeue", "consumequeue_ext", "index", "checkpoint", "abort"}),
)


def _exchange(new: int, target: int, name: str, shown: Path) -> None:
    """Swap a name of two open directories atomically (``renameat2``); by three renames where the system cannot."""
    if hasattr(_LIBC, "renameat2"):
        encoded = os.fsencode(name)
        if _LIBC.renameat2(new, encoded, target, encoded, _RENAME_EXCHANGE) == 0:
            return
        error = ctypes.get_errno()
        if error not in _NO_EXCHANGE:
            raise StoreError(f"{shown}: cannot be replaced ({os.strerror(error)})")
    aside = f"{name}.aside"
    os.rename(name, aside, src_dir_fd=target, dst_dir_fd=new)
    os.fsync(new)
    os.rename(name, name, src_dir_fd=new, dst_dir_fd=target)
    os.fsync(target)
    os.rename(aside, name, src_dir_fd=new, dst_dir_fd=new)


def sync_file_system(directory: Path) -> None:
    """Flush the directory's file system to the disk, and wait for it (``syncfs``)."""
    with root_directory(directory) as descriptor:
        if _LIBC.syncfs(descriptor) != 0:
            raise StoreError(f"{directory}: {os.strerror(ctypes.get_errno())} when its files were flushed")


def sync_directory(directory: Path) -> None:
    """Fsync a directory."""
    with root_directory(directory) as descriptor:
        os.fsync(descriptor)


def write_fsynced(path: Path, data: bytes) -> None:
    """Write a small file atomically, and fsync it. A link in its place is replaced."""
    with root_directory(path.parent) as directory:
        replace_file(directory, path.name, data)


def start_sync(descriptor: int, offset: int, byte_count: int) -> None:
    """Start flushing a range of a file, so that ``sync_file_system`` has less to wait for (``sync_file_range``)."""
    if hasattr(_LIBC, "sync_file_range"):  # only a hint: an error here recurs at ``syncfs``, and is reported there
        _LIBC.sync_file_range(descriptor, ctypes.c_int64(offset), ctypes.c_int64(byte_count), _SYNC_FILE_RANGE_WRITE)


def clear_work(work: Path, directories: Sequence[str]) -> None:
    """Recreate a work directory that contains only these directories.

    The plan is deleted first: a run that is killed here must not leave a plan and half of its files.

    Raises:
        StoreError: the work directory is a link.
    """
    work.parent.mkdir(parents=True, exist_ok=True)
    with root_directory(work.parent) as root:
        if is_there(work.name, root):
            with real_directory(work.name, root, work) as area:
                if is_there(_PLAN, area):
                    _remove(_PLAN, area)
                os.fsync(area)
            shutil.rmtree(work.name, dir_fd=root)
    for name in directories:
        (work / name).mkdir(parents=True)


def _remove(name: str, directory: int) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except IsADirectoryError:
        shutil.rmtree(name, dir_fd=directory)


def publish(
    work: Path,
    target: Path,
    names: Sequence[str],
    retired: Sequence[str] = (),
    kind: PublishedNames = WRITTEN,
    retain: Callable[[Path], None] | None = None,
) -> None:
    """Replace the directories ``target/NAME`` by ``work/new/NAME``, and remove ``work``.

    A note of the directories' inodes is written first, so that a run after a kill can tell those
    that are in place from those that are not, and resume. The intermediate files must be deleted before:
    a file deleted before it is flushed never reaches the disk. If it fails, either all is as it was and no
    note exists, or a later run resumes.

    Args:
        names: directory names; one that others refer to comes before them.
        retired: names below ``target`` that are moved away before, as they refer to what is replaced.
        retain: called with the directory of the replaced files; None deletes these files.
    """
    sync_file_system(work)
    with root_directory(target) as root, real_directory(work.name, root, work) as area:
        _remove_published(work, root)
        with real_directory("new", area, work / "new") as new:
            inodes = {name: os.stat(name, dir_fd=new, follow_symlinks=False).st_ino for name in names}
        note = add_seal({"new": inodes, "retired": list(retired)}, str(target))
        replace_file(area, _NOTE, json.dumps(note).encode())
        try:
            _complete(_Publication(work, target, root, area, inodes, retired, kind))
        except (OSError, StoreError):
            _roll_back(_Publication(work, target, root, area, inodes, retired, kind))
            raise
    _remove_work(work, target, retain)


def is_publishing(work: Path) -> bool:
    """Return whether a publication was interrupted: then ``work`` may have the only files of the target."""
    return os.path.lexists(work / _NOTE)


@dataclass(frozen=True, slots=True)
class _Publication:
    """A publication under way: its paths for errors, descriptors of root and work directory, and its note."""

    work: Path
    target: Path
    root: int
    area: int
    inodes: Mapping[str, int]
    retired: Sequence[str]
    kind: PublishedNames

    def is_in_place(self, name: str) -> bool:
        return _has_inode(name, self.root, self.inodes[name])

    def is_any_in_place(self) -> bool:
        return any(map(self.is_in_place, self.inodes))


def _has_inode(name: str, directory: int, inode: int) -> bool:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return status.st_ino == inode and stat.S_ISDIR(status.st_mode)


def _retire(publication: _Publication) -> None:
    area, root = publication.area, publication.root
    aside = f"{_RETIRED}{secrets.token_hex(8)}"  # an earlier run may have retired the same names
    os.mkdir(aside, dir_fd=area)
    with real_directory(aside, area, publication.work / aside) as directory:
        for name in publication.retired:
            if is_there(name, root):
                os.rename(name, name, src_dir_fd=root, dst_dir_fd=directory)


def _roll_back(publication: _Publication) -> None:
    """Roll back a failed publication of which nothing is in place: later it would undo what was written since."""
    work, area, root = publication.work, publication.area, publication.root
    if publication.is_any_in_place():
        return
    with real_directory("new", area, work / "new") as new:
        if any(name.endswith(".aside") for name in names_in(new)):  # failed between the renames of ``_exchange``
            return
    for aside in names_in(area):
        if aside.startswith(_RETIRED):
            with real_directory(aside, area, work / aside) as directory:
                for name in names_in(directory):
                    os.rename(name, name, src_dir_fd=directory, dst_dir_fd=root)
    sync_file_system(publication.target)
    os.unlink(_NOTE, dir_fd=area)
    os.fsync(area)


def _parse_note(note: Any, kind: PublishedNames) -> tuple[dict[str, int], list[str]]:
    """Parse inodes by name, and names to retire, from a note. Raises ValueError, TypeError, KeyError."""
    inodes, retired = note["new"], note["retired"]
    if not isinstance(inodes, dict) or not isinstance(retired, list):
        raise TypeError("a member has another type")
    if not all(type(inode) is int for inode in inodes.values()) or not all(isinstance(name, str) for name in retired):
        raise TypeError("a member has another type")
    strange = sorted({*inodes} - kind.directories) + sorted({*retired} - kind.retired)
    if strange:
        raise ValueError(f"names {strange[0]!r}, which is never published here")
    return inodes, retired


def finish_publishing(
    work: Path,
    target: Path,
    kind: PublishedNames = WRITTEN,
    leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE,
    retain: Callable[[Path], None] | None = None,
) -> bool:
    """Complete an interrupted ``publish``; False if there was none, or the work directory was renamed.

    A note names only directories of a fixed set, each with the inode of the directory that the interrupted run made.

    Raises:
        StoreError: the note cannot be read or is foreign, or a directory cannot be replaced.
    """
    try:
        with root_directory(target) as root:
            _remove_published(work, root)
            if not is_there(work.name, root):
                return False
            with real_directory(work.name, root, work) as area:
                if not is_there(_NOTE, area):
                    return False
                if leftover is InterruptedRunPolicy.START_ANEW:
                    rename_aside(work.name, root)
                    return False
                inodes, retired = _read_note(work, target, kind, leftover)
                _complete(_Publication(work, target, root, area, inodes, retired, kind))
    except FileNotFoundError:
        if not target.exists():
            return False
        raise
    _remove_work(work, target, retain)
    return True


def _read_note(
    work: Path, target: Path, kind: PublishedNames, leftover: InterruptedRunPolicy
) -> tuple[dict[str, int], list[str]]:
    path = work / _NOTE
    data = read_file(target, f"{work.name}/{_NOTE}")
    try:
        note = json.loads(data or b"")
        inodes, retired = _parse_note(note, kind)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StoreError(
            f"{path}: not a valid publication record ({error}). Move {work} out of the store, but keep it: it may hold "
            "the only copy of some files."
        ) from error
    names = ", ".join(inodes)
    check_origin(note, str(target), path, f"an interrupted publication of {names or 'nothing'}", leftover)
    return inodes, retired


def rename_aside(name: str, root: int) -> str:
    """Rename a file or directory of an open root to a free name beside it, and return that name."""
    number = 1
    while is_there(aside := f"{name}.aside-{number}", root):
        number += 1
    os.rename(name, aside, src_dir_fd=root, dst_dir_fd=root)
    os.fsync(root)
    return aside


def _complete(publication: _Publication) -> None:
    work, area = publication.work, publication.area
    if publication.retired and not publication.is_any_in_place():
        _retire(publication)
        sync_file_system(publication.target)  # once a directory is in place, nothing is retired any more
    waiting = [name for name in publication.inodes if not publication.is_in_place(name)]
    if waiting or is_there("new", area):  # what is left in there is retained or deleted afterwards
        with real_directory("new", area, work / "new") as new:
            for name in waiting:
                _put_in_place(publication, name, new)
    sync_file_system(publication.target)


def _put_in_place(publication: _Publication, name: str, new: int) -> None:
    root, shown = publication.root, publication.target / name
    if not _has_inode(name, new, publication.inodes[name]):
        if publication.kind.is_derived:  # somebody deleted it since; the run that follows makes all anew
            return
        raise StoreError(
            f"{publication.work}/new/{name}: not the directory that the interrupted run made. Move "
            f"{publication.work} out of the store, but keep it: it may hold the only copy of some files."
        )
    if is_there(name, root):
        _exchange(new, root, name, shown)
    else:
        os.rename(name, name, src_dir_fd=new, dst_dir_fd=root)


def _remove_published(work: Path, root: int) -> None:
    """Remove the leftovers of a run that was killed while it cleaned up."""
    name = f"{work.name}.published"
    if is_there(name, root):
        with suppress(OSError):
            shutil.rmtree(name, dir_fd=root)
        with suppress(OSError):  # a file or a link
            os.unlink(name, dir_fd=root)


def _remove_work(work: Path, target: Path, retain: Callable[[Path], None] | None) -> None:
    if retain is not None:
        retain(work / "new")
    published = f"{work.name}.published"
    with root_directory(target) as root:
        # A half-deleted work directory must not look like one to resume.
        os.rename(work.name, published, src_dir_fd=root, dst_dir_fd=root)
        os.fsync(root)
        shutil.rmtree(published, dir_fd=root)
