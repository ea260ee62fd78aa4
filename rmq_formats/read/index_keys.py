"""Looks up record places by key in the IndexFiles, and the parts of the log that they do not cover."""

from collections.abc import Iterable, Sequence

from rmq_formats.codecs import paths
from rmq_formats.codecs.hashing import index_key_hash
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.read.ranges import Range
from rmq_formats.storage.segments import Storage, opened
from rmq_formats.storage.store_files import StoreFiles


def index_paths(store: StoreFiles) -> list[str]:
    """List the IndexFiles, oldest first."""
    directory = paths.index_dir(store.root)
    return [
        f"{directory}/{entry.name}"
        for entry in store.storage.entries(directory)
        if paths.is_index_file_name(entry.name)
    ]


def key_places(storage: Storage, files: Sequence[str], topics: Iterable[str], key: str) -> list[int]:
    """Look up physical offsets, ascending, of the entries with the hash of a key in any of the topics.

    Other keys may share the hash: the caller has to check the records themselves.

    Raises:
        FormatError: a file that is not an IndexFile.
    """
    hashes = sorted({index_key_hash(topic, key) for topic in topics})
    physical_offsets: set[int] = set()
    for path in files:
        with opened(storage, path) as file:
            index = IndexFile.read(file, path)
            for key_hash in hashes:
                physical_offsets.update(index.find(key_hash))
    return sorted(physical_offsets)


def unknown_ranges(storage: Storage, files: Sequence[str], begin: int, end: int) -> list[Range]:
    """Return the parts of the log ``[begin, end)`` whose keys the Index may lack.

    A file covers all keys from its first entry's record up to its last one's; of that one perhaps not all.

    Raises:
        FormatError: a file that is not an IndexFile.
    """
    covered_ranges = []
    for path in files:
        with opened(storage, path) as file:
            header = IndexFile.read(file, path).header
        if header.index_count > 1:
            covered_ranges.append((header.begin_physical_offset, header.end_physical_offset))
    ranges, at = [], begin
    for first, last in sorted(covered_ranges):
        if first > at:
            ranges.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        ranges.append((at, end))
    return [(first, last) for first, last in ranges if first < last]
