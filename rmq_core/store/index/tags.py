"""Detects whether a store has its messages' TAGS in the Index, as brokers from 5.4 on write them.

The end of the Index decides, as this broker continues there; see ``rmq_formats.codecs.variants.index_tags``.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from rmq_core.store.config import StoreConfig
from rmq_core.store.files.layouts import LocalTree
from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.index import ALL_TAGS, NO_TAGS, IndexHeader, entry_position, parse_index_tags
from rmq_formats.codecs.layout import INDEX_ENTRY_BYTES, INDEX_HEADER_BYTES
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.variants.index_tags import (
    ENTRIES_AT_ONCE,
    TaggedMessage,
    is_last_indexed,
    read_message,
    tagged_messages,
)
from rmq_formats.errors import FormatError
from rmq_formats.storage.store_variants import Variant, detect_layouts

_MOST_WINDOWS: Final = 16  # of entries that are looked at; a store may have no tags at all


def tags_from(config: StoreConfig) -> int:
    """Physical offset from which the store's TAGS are to be indexed: ALL_TAGS or NO_TAGS."""
    configured_offset = parse_index_tags(config.index_tags)
    if configured_offset is not None:
        return configured_offset
    is_indexed = is_last_indexed(_newest(config))
    if is_indexed is None:
        is_indexed = _is_from_5_4(config.root)
    return ALL_TAGS if is_indexed else NO_TAGS


def _is_from_5_4(root: str) -> bool:
    with suppress(FormatError, OSError):
        if Checkpoint.decode(Path(paths.checkpoint_file(root)).read_bytes()).logics_physical_offset > 0:
            return True
    return Variant.FROM_5_4 in detect_layouts(LocalTree(), root)


def _newest(config: StoreConfig) -> Iterator[TaggedMessage]:
    """Yield the newest indexed messages with TAGS, newest first."""
    directory = Path(paths.index_dir(config.root))
    names = [path for path in directory.iterdir() if paths.is_index_file_name(path.name)] if directory.is_dir() else []
    windows_left = _MOST_WINDOWS
    is_last = True
    for path in sorted(names, reverse=True):
        with suppress(FormatError, OSError), path.open("rb") as file:
            end = min(IndexHeader.decode(file.read(INDEX_HEADER_BYTES)).index_count, config.index_entries)
            while end > 1 and windows_left > 0:
                begin = max(1, end - ENTRIES_AT_ONCE)
                file.seek(entry_position(begin, config.index_slots))
                entries = file.read((end - begin) * INDEX_ENTRY_BYTES)
                yield from reversed(list(tagged_messages(entries, lambda at: _message(config, at), is_end=is_last)))
                end, is_last, windows_left = begin, False, windows_left - 1


def _message(config: StoreConfig, physical_offset: int) -> StoredMessage | None:
    """Return the record at a physical offset; None where there is no sound one."""
    start = physical_offset - physical_offset % config.commitlog_file_bytes
    with suppress(OSError), Path(config.commitlog_path, paths.segment_name(start)).open("rb") as file:

        def read(position: int, count: int) -> bytes:
            file.seek(position)
            return file.read(count)

        return read_message(read, physical_offset - start, physical_offset)
    return None
