"""Files and directories below a root, reached one name at a time and without following links.

A store may come from somebody else: a name in it may be a link, a pipe or a device that leads out of the store. The
root itself is the operator's word, and may be a link.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError

MAX_NOTE_BYTES: Final = 256 << 20  # a plan of a repair has some 300 bytes for each damaged range
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_REAL: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe would block


def split_path(path: str) -> list[str]:
    """Split a relative path into its names. Raises StoreError for an absolute path, ``.``, ``..`` or a zero byte."""
    names = path.split("/")
    if "\0" in path or any(name in {"", ".", ".."} for name in names):
        raise StoreError(f"{path!r}: is no path below a store")
    return names


def is_there(name: str, directory: int) -> bool:
    """Return whether an open directory has a name; a dangling link counts."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def names_in(directory: int) -> list[str]:
    """List the names of an open directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries]


@contextmanager
def root_directory(root: str | Path) -> Iterator[int]:
    """Open a root, which may be a link."""
    descriptor = os.open(root, _DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def real_directory(name: str, parent: int, shown: str | Path) -> Iterator[int]:
    """Open a directory of an open directory; ``shown`` is its path for errors.

    Raises StoreError for a link or another file, and FileNotFoundError.
    """
    descriptor = _open_directory(name, parent, shown)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_directory(name: str, parent: int, shown: str | Path) -> int:
    try:
        return os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise _refusal(name, parent, shown, "a directory") from None
        error.filename = str(shown)
        raise


def _refusal(name: str, parent: int, shown: str | Path, expected: str) -> StoreError:
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        target = os.readlink(name, dir_fd=parent)
        return StoreError(
            f"{shown}: a symbolic link (to {target!r}), through which nothing is written. Replace it by {expected}"
        )
    return StoreError(f"{shown}: not {expected}. Move it away")


@contextmanager
def parent_directory(root: str | Path, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """Open the parent directory of a relative path; yield the descriptor and the path's last name.

    Raises:
        StoreError: a path that leaves the root, by its names or by a link on its way.
        FileNotFoundError: a directory is missing.
    """
    *names, last = split_path(path)
    descriptor = os.open(root, _DIRECTORY)
    shown = Path(root)
    try:
        for name in names:
            shown = shown / name
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            inner = _open_directory(name, descriptor, shown)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


def open_file(root: str | Path, path: str, flags: int = os.O_RDONLY, *, may_be_linked: bool = False) -> int:
    """Open a regular file by its relative path; return the descriptor.

    With ``O_CREAT`` a missing file is made, but no missing directory. A file with several names is opened for reading
    only, unless it ``may_be_linked``: a change of it would be one of the other names too, which may be a backup's.

    Raises:
        StoreError: a link, a pipe, a device or a directory is there or on the way, or a file with several names.
        FileNotFoundError: not there.
    """
    shown = Path(root) / path
    with parent_directory(root, path) as (parent, name):
        try:
            descriptor = os.open(name, flags | _REAL, 0o644, dir_fd=parent)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO, errno.ENODEV}:
                raise _refusal(name, parent, shown, "a file") from None
            error.filename = str(shown)
            raise
    status = os.fstat(descriptor)
    writes = flags & (os.O_WRONLY | os.O_RDWR) and not may_be_linked
    if not stat.S_ISREG(status.st_mode) or (writes and status.st_nlink > 1):
        os.close(descriptor)
        if stat.S_ISREG(status.st_mode):
            raise StoreError(
                f"{shown}: has {status.st_nlink} names (hard links), all of which a change would change. "
                "Replace it by a copy of its own"
            )
        raise StoreError(f"{shown}: not a file. Move it away")
    return descriptor


def read_file(root: str | Path, path: str, limit: int = MAX_NOTE_BYTES) -> bytes | None:
    """Read a regular file by its relative path; None without one. Raises StoreError, also above ``limit`` bytes."""
    try:
        descriptor = open_file(root, path)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise StoreError(f"{Path(root) / path}: larger than {limit} bytes. Move it away")
    return data


def write_file(root: str | Path, path: str, data: bytes) -> None:
    """Replace a small file below a root atomically, and fsync it; a link of its name is replaced. Raises StoreError."""
    with parent_directory(root, path) as (parent, name):
        replace_file(parent, name, data)


def replace_file(directory: int, name: str, data: bytes) -> None:
    """Replace a small file of an open directory atomically, and fsync file and directory; an error changes nothing."""
    beside = f"{name}.part"
    with suppress(FileNotFoundError):
        os.unlink(beside, dir_fd=directory)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _REAL, 0o644, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        with suppress(OSError):
            os.unlink(beside, dir_fd=directory)
        raise
    os.fsync(directory)


def links_below(directory: str | Path) -> Iterator[str]:
    """List all symbolic links in a directory tree."""
    for path, directories, files in os.walk(directory, onerror=_raise):
        yield from (f"{path}/{name}" for name in (*directories, *files) if Path(path, name).is_symlink())


def _raise(error: OSError) -> None:
    raise error
