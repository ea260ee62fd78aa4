"""Lets one export at a time commit to a Delta table in this machine's file system.

Delta leaves it to Hadoop that a version's file is created only if it is absent, and Hadoop looks there first and
renames then, which replaces what has come in between: of two processes one could lose its commit, and nobody is told.

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
    """Hold the lock of a table's log; a killed process holds it no more.

    Args:
        table: its directory.

    Raises:
        StoreLockedError: another export does, for too long.
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
