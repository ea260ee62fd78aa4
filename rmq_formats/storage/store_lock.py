"""File locks: the store's lock, common to brokers and writers, and a lock for other target directories."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.contained import open_file
from rmq_formats.storage.open_logs import refuse_open_log

LOCK_NAME: Final = ".rmq-rebuild.lock"  # of a directory that is no store


@contextmanager
def store_lock(root: str) -> Iterator[None]:
    """Acquire the lock of the store at ``root``, which a running broker has locked.

    It is a POSIX record lock on the first byte of the file ``lock``, as ``FileChannel#tryLock(0, 1,
    false)`` takes it in ``DefaultMessageStore#start``.

    Raises:
        StoreLockedError: a running broker has it, or has the log open though its lock's file was deleted.
        StoreError: the lock's file cannot be written.
    """
    path = Path(paths.lock_file(root))
    was_there = os.path.lexists(path)
    try:
        descriptor = open_file(root, path.name, os.O_RDWR | os.O_CREAT, may_be_linked=True)
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be locked ({error.strerror})") from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise StoreLockedError(f"{root}: a running broker has locked this store; stop it first") from None
        try:
            refuse_open_log(root)
        except StoreLockedError:
            if not was_there:
                path.unlink(missing_ok=True)
            raise
        yield
    finally:
        os.close(descriptor)


@contextmanager
def directory_lock(root: str) -> Iterator[None]:
    """Acquire the rebuild lock of a directory that is no store; the directory is created if need be.

    The lock is held on a file that is deleted in the end. A killed process leaves the file, but no lock; a lock of the
    directory itself would be inherited by forked processes.

    Raises:
        StoreLockedError: another one does.
        StoreError: the directory cannot be made, or not be written.
    """
    path = Path(root) / LOCK_NAME
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        descriptor = _open_locked(path)
    except BlockingIOError:
        raise StoreLockedError(f"{root}: another rebuild writes there; let it end first") from None
    except FileExistsError:
        raise StoreError(f"{root}: cannot be written (Not a directory)") from None
    except OSError as error:
        raise StoreError(f"{root}: cannot be written ({error.strerror})") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _open_locked(path: Path) -> int:
    """Lock the file that is at the path now, and return its descriptor. Raises OSError."""
    while True:
        descriptor = open_file(path.parent, path.name, os.O_RDWR | os.O_CREAT, may_be_linked=True)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # the holder has ended, and deleted the file
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
