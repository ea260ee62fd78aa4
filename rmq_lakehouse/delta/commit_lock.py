"""Commit lock: one export at a time commits to a Delta table in this machine's file system.

Delta relies on Hadoop to create the file of a version only if it is absent. Hadoop checks first and renames then, and
the rename replaces a file that another process has created meanwhile. So a commit could be lost without any error.

Source: ``HDFSLogStore#writeInternal``, ``AbstractFileSystem#renameInternal``, ``RawLocalFileSystem#rename``.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError, StoreLockedError

LOCK_NAME: Final = ".rmq-commits.lock"  # in the log's directory, where Delta passes it over
_LONGEST_S: Final = 120  # a commit takes seconds, and many files or a full disk a few more
_POLL_S: Final = 0.02


@contextmanager
def commit_lock(table: Path) -> Iterator[None]:
    """Hold the lock of a table's log; the lock of a killed process is released.

    Args:
        table: its directory.

    Raises:
        StoreLockedError: another export holds the lock for too long.
        StoreError: the log cannot be written, or its file system has no locks.
    """
    path = table / "_delta_log" / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        end = time.monotonic() + _LONGEST_S
        while not _has_locked(descriptor, path):
            if time.monotonic() > end:
                raise StoreLockedError(f"{table}: another export has been committing for {_LONGEST_S} s; end it first")
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _has_locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # of a network's file system without locks
        raise StoreError(f"{path}: cannot be locked ({error.strerror})") from error
    return True
