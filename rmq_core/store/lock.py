"""Holds a store's lock for as long as the store is open."""

import os
from contextlib import ExitStack
from typing import Final

from rmq_formats import paths
from rmq_formats.errors import StoreLockedError
from rmq_formats.offline.lock import store_lock

_CONTENT: Final = b"lock"  # DefaultMessageStore#start
_held: set[str] = set()


def hold_lock(root: str) -> ExitStack:
    """Take the lock of the store at ``root``; closing what this returns gives it back.

    POSIX locks do not keep a process from itself, and closing any descriptor of the file gives them up: so
    those that this process holds are known by name as well.

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
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(_CONTENT)
    stack.enter_context(store_lock(root))
    _held.add(name)
    stack.callback(_held.discard, name)
    return stack
