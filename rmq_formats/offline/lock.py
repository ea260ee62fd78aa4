"""The store's lock: a running broker holds it, and whoever writes into a store must; and one for other directories."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rmq_formats import paths
from rmq_formats.errors import StoreError, StoreLockedError

LOCK_NAME: Final = ".rmq-rebuild.lock"  # of a directory that is no store


@contextmanager
def store_lock(root: str) -> Iterator[None]:
    """Hold the lock of the store at ``root``.

    It is a POSIX record lock on the first byte of the file ``lock``, as ``FileChannel#tryLock(0, 1,
    false)`` takes it in ``DefaultMessageStore#start``.

    Raises:
        StoreLockedError: a running broker has it.
        StoreError: the lock's file cannot be written.
    """
    path = Path(paths.lock_file(root))
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: the store cannot be locked ({error.strerror})") from error
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except OSError:
            raise StoreLockedError(f"{root}: a running broker has locked this store; stop it first") from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def directory_lock(root: str) -> Iterator[None]:
    """Be the only rebuild that writes into a directory that is no store; it is made if need be.

    The lock is one on a file that is deleted in the end. Who dies leaves the file, and no lock; a lock of the
    directory itself would go on in forked processes.

    Raises:
        StoreLockedError: another one does.
        StoreError: the directory cannot be made, or not be written.
    """
    path = Path(root) / LOCK_NAME
    try:
        Path(root).mkdir(parents=True, exist_ok=True)
        descriptor = _locked(path)
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


def _locked(path: Path) -> int:
    """A descriptor that holds the lock of the file that is at the path now. Raises OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass  # who had it has ended, and deleted the file
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
