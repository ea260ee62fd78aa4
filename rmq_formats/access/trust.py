"""Whether a store's derived files, ConsumeQueue and Index, can be relied on to hold what the log holds."""

import fcntl
import os
import struct
from typing import Final

from rmq_formats import paths
from rmq_formats.segment import Storage

# struct flock of Linux on 64-bit machines: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("@hhqqi")


def distrust(storage: Storage, root: str) -> str | None:
    """Why the derived files may lack something that the log has; None if they do not.

    A broker writes them in log order, record by record, so all that they can lack is what comes after the
    last record that is in any. That holds while it runs, and once it has shut down; a machine that went
    down loses pages of single files, and the broker's next start mends them.
    """
    if not storage.exists(paths.abort_file(root)):
        return None
    if broker_runs(storage, root):
        return None
    return "the broker did not shut down (there is a file named abort) and no longer runs"


def broker_runs(storage: Storage, root: str) -> bool:
    """Whether a process of this machine holds the store's lock; it is asked for, not taken."""
    if not storage.is_local:
        return False
    try:
        descriptor = os.open(paths.lock_file(root), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        question = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
        answer = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, question)[: _FLOCK.size])
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(answer[0] != fcntl.F_UNLCK)
