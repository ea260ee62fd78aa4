"""Check of the directories that a publication replaces: unknown files, by name or content, are refused."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.batch_consumequeue import BATCH_HEAD_BYTES, is_batch_queue_file
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.segments import Entry, Storage, read_range
from rmq_formats.storage.store_files import StoreFiles


def refuse_unknown_files(store: StoreFiles, directories: Sequence[str]) -> None:
    """Refuse to replace directories of a store, such as ``index``, that have unknown files. Raises StoreError."""
    storage = store.storage
    for name in directories:
        directory = f"{store.root}/{name}"
        if name == "index":
            unknown_files = _unknown_files(storage, directory, paths.is_index_file_name, "no IndexFile")
        elif name == "commitlog":
            unknown_files = _unknown_files(storage, directory, _is_segment, "no CommitLog file")
        elif name == "consumequeue" and store.layouts.rebuilds_as_database:
            unknown_files = _unknown_files(storage, directory, is_database_file, "no file of a RocksDB")
        else:
            unknown_files = _unknown_in_queues(
                storage, directory, with_content=name == "consumequeue" and storage.is_local
            )
        for path, what in unknown_files:
            layout_refusals.refuse(layout_refusals.unknown_file_refusal(path, what))


_DATABASE_FILE: Final = re.compile(
    r"CURRENT|IDENTITY|LOCK|(LOG|LOG\.old\.[0-9]+)|(MANIFEST|OPTIONS)-[0-9]+|[0-9]+\.(sst|log|blob|dbtmp)|rocksdict-config\.json"
)


def is_database_file(name: str) -> bool:
    """Return whether a name is that of a RocksDB's file."""
    return _DATABASE_FILE.fullmatch(name) is not None


def _is_segment(name: str) -> bool:
    return paths.parse_segment_name(name) is not None


def _unknown_files(
    storage: Storage, directory: str, is_known: Callable[[str], bool], what: str
) -> Iterator[tuple[str, str]]:
    for entry in storage.entries(directory):
        if entry.is_directory or not is_known(entry.name):
            yield f"{directory}/{entry.name}", what
    yield from _unknown_links(storage, directory, is_known)


def _unknown_links(storage: Storage, directory: str, is_known: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    for name in storage.dangling_symlinks(directory):
        if not is_known(name):
            yield f"{directory}/{name}", "a link to nowhere"


def _accept_no_name(_: str) -> bool:
    return False  # what a link's name says of a directory is not enough: its disk may not be mounted


def _unknown_in_queues(storage: Storage, tree: str, *, with_content: bool) -> Iterator[tuple[str, str]]:
    yield from _unknown_links(storage, tree, _accept_no_name)
    for topic in storage.entries(tree):
        if not topic.is_directory:
            yield f"{tree}/{topic.name}", "no topic's directory"
            continue
        yield from _unknown_links(storage, f"{tree}/{topic.name}", _accept_no_name)
        for queue in storage.entries(f"{tree}/{topic.name}"):
            path = f"{tree}/{topic.name}/{queue.name}"
            if not queue.is_directory or not _is_queue_id(queue.name):
                yield path, "no queue's directory"
                continue
            yield from _unknown_in_queue(storage, path, storage.entries(path), with_content=with_content)


def _unknown_in_queue(
    storage: Storage, directory: str, files: Sequence[Entry], *, with_content: bool
) -> Iterator[tuple[str, str]]:
    yield from _unknown_links(storage, directory, _is_segment)
    for file in files:
        if file.is_directory or not _is_segment(file.name):
            yield f"{directory}/{file.name}", "no queue's file"
    if with_content and files and not files[0].is_directory:
        path = f"{directory}/{files[0].name}"
        with storage.open(path) as open_file:
            if is_batch_queue_file(read_range(open_file, 0, BATCH_HEAD_BYTES)):
                yield path, "a batch queue's file (BatchConsumeQueue)"


def _is_queue_id(name: str) -> bool:
    digits = name.removeprefix("-")  # the original makes a queue of a negative id, too, where a record has one
    return digits.isascii() and digits.isdigit()
