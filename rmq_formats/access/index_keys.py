"""Places of the records that an Index has under a key, and which part of the log it knows."""

from collections.abc import Iterable, Sequence
from contextlib import ExitStack

from rmq_formats import paths
from rmq_formats.hashing import index_key_hash
from rmq_formats.lookup import IndexFile
from rmq_formats.segment import Storage

Range = tuple[int, int]


def index_paths(storage: Storage, root: str) -> list[str]:
    """The IndexFiles, oldest first."""
    directory = paths.index_dir(root)
    return [f"{directory}/{entry.name}" for entry in storage.entries(directory) if paths.is_index_file_name(entry.name)]


def key_places(storage: Storage, files: Sequence[str], topics: Iterable[str], key: str) -> list[int]:
    """Physical offsets, ascending, of the entries with the hash of a key in any of the topics.

    Other keys may share the hash: the records themselves have to be asked.

    Raises:
        FormatError: a file that is not an IndexFile.
    """
    hashes = sorted({index_key_hash(topic, key) for topic in topics})
    found: set[int] = set()
    with ExitStack() as stack:
        for path in files:
            file = storage.open(path)
            stack.callback(file.close)
            index = IndexFile.read(file, path)
            for key_hash in hashes:
                found.update(index.find(key_hash))
    return sorted(found)


def unknown_ranges(storage: Storage, files: Sequence[str], begin: int, end: int) -> list[Range]:
    """The parts of the log ``[begin, end)`` whose keys the Index may lack.

    A file knows all keys from its first entry's record up to its last one's; of that one perhaps not all.

    Raises:
        FormatError: a file that is not an IndexFile.
    """
    known = []
    for path in files:
        file = storage.open(path)
        try:
            header = IndexFile.read(file, path).header
        finally:
            file.close()
        if header.index_count > 1:
            known.append((header.begin_physical_offset, header.end_physical_offset))
    ranges, at = [], begin
    for first, last in sorted(known):
        if first > at:
            ranges.append((at, min(first, end)))
        at = max(at, last)
    if at < end:
        ranges.append((at, end))
    return [(first, last) for first, last in ranges if first < last]
