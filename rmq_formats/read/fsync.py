"""Fsync of a CommitLog before a read, so that no loss of power undoes records that were read.

A broker forces its log some time after it has written it, and what is not forced is read like the rest. Forcing a file
covers all that was written to it, by whatever process, also by Java's through a memory map.
"""

import errno
import os
from collections.abc import Iterable
from typing import Final

from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import Segment, Storage

_FSYNC_UNSUPPORTED: Final = (errno.EROFS, errno.EINVAL)  # file systems that nobody writes to, or that have no disk


def fsync_log(storage: Storage, segments: Iterable[Segment], begin: int, end: int) -> None:
    """Fsync the files of a log that have bytes of a range; objects of an object store are durable already.

    Args:
        end: physical offset where it ends; look for it before this is called.

    Raises:
        StoreError: the disk cannot keep a file.
    """
    if not storage.is_local:
        return
    for segment in segments:
        if segment.start_offset < end and segment.end_offset > begin:
            _fsync(segment.path)


def _fsync(path: str) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _FSYNC_UNSUPPORTED:
            raise StoreError(f"{path}: cannot be forced to the disk: {error.strerror}") from error
