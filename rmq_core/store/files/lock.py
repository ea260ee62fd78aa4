"""Exclusive lock of a store, from opening to closing."""

import os
from contextlib import ExitStack
from typing import Final

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths
from rmq_formats.errors import StoreLockedError
from rmq_formats.storage.store_lock import store_lock

_CONTENT: Final = b"lock"  # DefaultMessageStore#start
_held: set[str] = set()


def lock_store(root: str, disk: Disk) -> ExitStack:
    """Lock the store at ``root``; closing the returned stack releases the lock.

    POSIX locks do not exclude the process that holds them, and closing any descriptor of the file releases them: so
    the stores that this process has locked are known by name as well.

    Raises:
        StoreLockedError: another process, or this one, has it.
        StoreError: the lock's file cannot be written.
    """
    name = os.path.realpath(root)
    if name in _held:
        raise StoreLockedError(f"{root}: this process has the store open already")
    stack = ExitStack()
    path = paths.lock_file(root)
    if not os.path.exists(path):  # noqa: PTH110 # paths are strings here
        disk.write_file(path, _CONTENT)
    stack.enter_context(store_lock(root))
    _held.add(name)
    stack.callback(_held.discard, name)
    return stack
