"""Records that a broker reads out of its own store, decoded."""

import logging
from collections.abc import Iterator
from struct import Struct
from typing import Final

from rmq_formats.errors import FormatError
from rmq_formats.message import StoredMessage, decode_record

log = logging.getLogger("rmq.broker")
_SIZE: Final = Struct(">i")


def stored_messages(slices: list[memoryview]) -> Iterator[StoredMessage]:
    """The messages of records that stand back to back; damaged ones are logged and left out.

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
