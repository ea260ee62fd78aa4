"""Decoder of records that the broker has read from its own store."""

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final

from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import FormatError

log = logging.getLogger("rmq.broker")
_SIZE: Final = Struct(">i")


def stored_messages(slices: list[memoryview]) -> Iterator[StoredMessage]:
    """Decode consecutive records; damaged records are logged and skipped.

    Args:
        slices: as returned by ``MessageStore.get``.
    """
    for data in slices:
        position = 0
        while position < len(data):
            (size,) = _SIZE.unpack_from(data, position)
            try:
                yield decode_record(data, position)
            except FormatError as error:
                log.error("a message is damaged: %(error)s", {"error": error})
            position += size
