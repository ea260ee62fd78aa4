"""Decodes records that the broker has read from its own store."""

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final

from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import FormatError

log = logging.getLogger("rmq.broker")
_SIZE: Final = Struct(">i")


def stored_messages(slices: list[memoryview]) -> Iterator[StoredMessage]:
    """Decode records that stand back to back; damaged ones are logged and skipped.

    Args:
        slices: as ``MessageStore.get`` gives them.
    """
    for data in slices:
        at = 0
        while at < len(data):
            (size,) = _SIZE.unpack_from(data, at)
            try:
                yield decode_record(data, at)
            except FormatError as error:
                log.error("a message is damaged: %(error)s", {"error": error})
            at += size
