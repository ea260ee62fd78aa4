"""Fsync of a CommitLog before a read, so that no loss of power undoes records that were read.

A broker fsyncs its log some time after the write, and readers see the bytes before. An fsync covers all that any
process has written to the file, also Java through a memory map.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import Segment, Storage

_FSYNC_UNSUPPORTED: Final = (errno.EROFS, errno.EINVAL)  # file systems that nobody writes to, or that have no disk


def fsync_log(storage: Storage, segments: Iterable[Segment], begin: int, end: int) -> None:
    """Fsync the files with bytes of a log's range, whose end was found before; objects are durable already.

    Raises StoreError: the disk fails.
    """
    if not storage.is_local:
        return
    for segment in segments:
        if segment.start_offset >= end or segment.end_offset <= begin:
            continue
        try:
            with Path(segment.path).open("rb", buffering=0) as file:
                os.fsync(file.fileno())
        except OSError as error:
            if error.errno not in _FSYNC_UNSUPPORTED:
                raise StoreError(f"{segment.path}: cannot be forced to the disk: {error.strerror}") from error
