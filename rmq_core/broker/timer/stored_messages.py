"""Decoder of records that the broker has read from its own store."""

import logging
from collections.abc import Iterator

from rmq_core.store.results import split_records
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import FormatError

log = logging.getLogger("rmq.broker")


def stored_messages(slices: list[memoryview]) -> Iterator[StoredMessage]:
    """Decode consecutive records; damaged records are logged and skipped.

    Args:
        slices: as returned by ``MessageStore.get``.
    """
    for record in split_records(slices):
        try:
            yield decode_record(record)
        except FormatError as error:
            log.error("a message is damaged: %(error)s", {"error": error})
