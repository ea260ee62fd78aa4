"""The store's lock: a running broker holds it, and whoever writes into a store must."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_formats import paths
from rmq_formats.errors import StoreError, StoreLockedError


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
