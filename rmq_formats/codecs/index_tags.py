"""Detects by entries of an Index whether messages' TAGS are indexed, as brokers from 5.4 on do."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from rmq_formats.codecs.hashing import index_key_hash, index_tags_key
from rmq_formats.codecs.index import IndexEntry
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, MAX_FRAME_BYTES
from rmq_formats.codecs.record import StoredMessage, decode_record
from rmq_formats.errors import FormatError

ENTRIES_AT_ONCE: Final = 64
VOTES: Final = 5  # messages that are asked: a single one may be damaged
_FIRST_READ_BYTES: Final = 4096


class TaggedMessage(NamedTuple):
    """A message with TAGS, and whether the Index has an entry for them."""

    physical_offset: int
    is_indexed: bool


def tagged_messages(
    entries: bytes, message_at: Callable[[int], StoredMessage | None], *, is_end: bool
) -> Iterator[TaggedMessage]:
    """Compare consecutive entries with their records, and yield the records with TAGS.

    The entry for TAGS is a message's last. So entries may be missing at the begin; and the last message counts only if
    no entry follows.

    Args:
        entries: of an IndexFile, in order.
        message_at: returns the record at a physical offset; None if there is none.
        is_end: whether they are the last of the last IndexFile.
    """
    hashes: dict[int, set[int]] = {}
    for at in range(0, len(entries) - INDEX_ENTRY_BYTES + 1, INDEX_ENTRY_BYTES):
        entry = IndexEntry.decode(entries, at)
        hashes.setdefault(entry.physical_offset, set()).add(entry.key_hash)
    if hashes and not is_end:
        hashes.popitem()
    for physical_offset, key_hashes in hashes.items():
        message = message_at(physical_offset)
        if message is not None and message.tags:
            key_hash = index_key_hash(message.topic, index_tags_key(message.tags))
            yield TaggedMessage(physical_offset, key_hash in key_hashes)


def is_first_indexed(messages: Iterator[TaggedMessage]) -> bool | None:
    """Return whether the first messages of an Index have entries for their TAGS; None without messages.

    The first few vote, as one may be damaged. If those without entries come first, an upgrade is between them.
    """
    votes = [message.is_indexed for message in islice(messages, VOTES)]
    return votes[0] if votes and votes == sorted(votes) else _majority(votes)


def is_last_indexed(messages: Iterator[TaggedMessage]) -> bool | None:
    """Return whether the last messages of an Index have entries for their TAGS; see ``is_first_indexed``."""
    votes = [message.is_indexed for message in islice(messages, VOTES)]
    return votes[0] if votes and votes == sorted(votes, reverse=True) else _majority(votes)


def _majority(votes: list[bool]) -> bool | None:
    return sum(votes) * 2 > len(votes) if votes else None


def read_message(read: Callable[[int, int], bytes], position: int, physical_offset: int) -> StoredMessage | None:
    """Read a record of a CommitLog file; None if there is no sound one.

    Args:
        read: returns bytes of the file, by position and count; fewer at its end.
    """
    data = read(position, _FIRST_READ_BYTES)
    size = int.from_bytes(data[:4], "big", signed=True)
    if len(data) < size <= MAX_FRAME_BYTES:
        data += read(position + len(data), size - len(data))
    try:
        return decode_record(data, physical_offset=physical_offset)
    except FormatError:
        return None
