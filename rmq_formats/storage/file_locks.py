"""Detects file locks of other processes without locking a file: a check must block nobody."""

import fcntl
import os
import stat
import struct
from typing import Final

# struct flock of Linux on 64-bit machines: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("@hhqqi")


def is_locked(path: str, size_bytes: int = 0) -> bool:
    """Return whether another process of this machine has a POSIX record lock on a file.

    Args:
        path: of the file; one that cannot be opened is not locked.
        size_bytes: that the lock is about, from the file's begin; 0 is all.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
    except OSError:
        return False
    try:
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, size_bytes, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question)[: _FLOCK.size])
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(answer[0] != fcntl.F_UNLCK)


def is_open_for_writing(path: str) -> bool | None:
    """Return whether a process of this machine has a regular file open for writing, or mapped so; this one counts too.

    Asked by a read lease (``F_SETLEASE``), which the system grants where nobody does, and which is given back at once.

    Args:
        path: of the file; a link is not followed.

    Returns:
        None where the system does not say: of another user's file, or on a file system without leases.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return False
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return False
