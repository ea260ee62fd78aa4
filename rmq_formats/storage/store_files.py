"""The files of one store: its layouts and the segments of its CommitLog, each listed once.

If an operator's broker.conf has the log elsewhere, the environment has its directories, for Spark's processes too.
For a path without a store the error suggests a nearby store: a level up or down, or in an archive.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.dledger import ENTRY_HEAD_BYTES
from rmq_formats.errors import StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.storage import layout_refusals, store_layouts
from rmq_formats.storage.segments import (
    PUBLISHING,
    WRITE_DIRECTORY,
    Segment,
    Storage,
    list_segments,
    open_storage,
    read_range,
    refuse_overlaps,
)
from rmq_formats.storage.store_layouts import StoreLayouts

# By a store's root, the directories of its CommitLog where the operator's broker.conf has it elsewhere. In the
# environment, so that the processes that Spark starts for its sources find the log, too.
LOG_PATHS_VARIABLE: Final = "RMQ_LOG_PATHS"


def use_log_directories(root: str, directories: Sequence[str]) -> None:
    """Let this process, and those that it starts, find a local store's CommitLog in other directories."""
    directories_by_root = json.loads(os.environ.get(LOG_PATHS_VARIABLE, "{}"))
    os.environ[LOG_PATHS_VARIABLE] = json.dumps(directories_by_root | {_absolute(root): list(directories)})


def configured_log_directories(root: str) -> list[str]:
    """Return the directories that ``use_log_directories`` has set for a store; empty for ``<root>/commitlog``."""
    text = os.environ.get(LOG_PATHS_VARIABLE)
    return [] if text is None else list(json.loads(text).get(_absolute(root), ()))


def _absolute(root: str) -> str:
    return root if "://" in root else str(Path(root).absolute())


_PARTS: Final = frozenset({"consumequeue", "index", "config", "checkpoint", "batchconsumequeue", "abort"})
_MAX_LISTED: Final = 64  # directories that are looked into
_MAX_NAMED: Final = 3
_LEVELS_UP: Final = 3  # a queue's directory is so far below its store
_HEAD_BYTES: Final = 512
_MEMBER_TOPIC: Final = re.compile(rb'"rmq_sys_SYNC_BROKER_MEMBER_([^"\\]+)"\s*:')
_REPLY_TOPIC: Final = re.compile(rb'"([^"\\]+)_REPLY_TOPIC"\s*:')
_IDENTITY: Final = re.compile(rb"([\w.%|-]+)#([\w.%|-]+)#\d+")  # BrokerMetadata#encodeToStr
_MAGICS: Final = (
    (0, b"PK\x03\x04", "a zip archive", "unzip"),
    (257, b"ustar", "a tar archive", "tar -xf"),
    (0, b"\x1f\x8b", "compressed with gzip", "tar -xzf"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "tar --zstd -xf"),
    (0, b"BZh", "compressed with bzip2", "tar -xjf"),
    (0, b"\xfd7zXZ", "compressed with xz", "tar -xJf"),
)
_SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tzst")
_LOG_ELSEWHERE: Final = "Where storePathCommitLog is another directory, give -c broker.conf."


@dataclass(frozen=True, eq=False)
class StoreFiles:
    """The files of a store, opened once by a job or a task, and handed down; ``root`` is the path to join names to.

    Listings are cached. After a write, or to follow a broker, open the store again. A pickled object has storage and
    root only, so that a Spark task lists for itself.
    """

    storage: Storage
    root: str

    def __reduce__(self) -> tuple[type["StoreFiles"], tuple[Storage, str]]:
        return StoreFiles, (self.storage, self.root)

    @cached_property
    def layouts(self) -> StoreLayouts:
        """Layouts of the store; files that cannot be listed or read are ignored."""
        return store_layouts.detect_layouts(self.storage, self.root)

    @cached_property
    def dledger_directories(self) -> list[str]:
        """Directories of DLedger CommitLogs' entries, by name."""
        return store_layouts.dledger_directories(self.storage, self.root)

    @property
    def _classic_directories(self) -> list[str]:
        return configured_log_directories(self.root) or [paths.commitlog_dir(self.root)]

    @property
    def log_directories(self) -> list[tuple[str, int]]:
        """Directories of the CommitLog, in log order, each with the bytes in front of its records.

        Raises StoreLayoutError if the store has several DLedger CommitLogs.
        """
        dledger = self.dledger_directories
        layout_refusals.refuse(layout_refusals.log_read_refusal(dledger))
        classic = [(directory, 0) for directory in self._classic_directories]
        return classic + [(directory, ENTRY_HEAD_BYTES) for directory in dledger]

    @cached_property
    def segments(self) -> list[Segment]:
        """CommitLog segments, DLedger segments after those of ``commitlog``.

        Raises:
            StoreNotFoundError: there is no such store, or it has no CommitLog file.
            StoreLayoutError: the store has several DLedger CommitLogs.
            StoreSizeError: files overlap.
            StoreError: see ``require_readable``.
        """
        self.require_readable()
        segments = [
            segment
            for directory, head in self.log_directories
            for segment in list_segments(self.storage, directory, head)
        ]
        if not segments:
            self._refuse_no_log()
        segments.sort(key=lambda segment: segment.start_offset)
        refuse_overlaps(segments)
        return segments

    @cached_property
    def broker_names(self) -> tuple[str | None, str | None]:
        """Names of cluster and broker; None for a name that is absent, ambiguous or unreadable."""
        try:
            identity = _IDENTITY.search(self._small_file(f"{self.root}/brokerIdentity"))
            if identity is not None:
                return identity[1].decode(errors="replace"), identity[2].decode(errors="replace")
            topics = self._small_file(f"{paths.config_dir(self.root)}/topics.json")
        except StoreError:
            return None, None
        return _single_name(_REPLY_TOPIC.findall(topics)), _single_name(_MEMBER_TOPIC.findall(topics))

    def _small_file(self, path: str) -> bytes:
        try:
            return self.storage.read_bytes(path)
        except StoreNotFoundError:
            return b""

    def require_readable(self) -> None:
        """Refuse a store that cannot be read.

        Raises:
            StoreNotFoundError: no such store.
            StoreError: in an object store, some of its objects are those that a write was about to replace.
        """
        if not self.storage.exists(self.root):
            raise StoreNotFoundError(f"{self.root}: no such store")
        if not self.storage.is_local and self.storage.exists(f"{self.root}/{WRITE_DIRECTORY}/{PUBLISHING}"):
            raise StoreError(f"{self.root}: a write into this store has not ended; the next one ends it (import_delta)")

    def require_log(self) -> None:
        """Refuse a store without CommitLog files; raises as ``segments``."""
        _ = self.segments

    def _refuse_no_log(self) -> None:
        if not is_store(self.storage, self.root) and (hint := nearby_store(self.storage, self.root)) is not None:
            raise StoreNotFoundError(hint)
        refuse_no_store(self.storage, self.root)
        nothing = f"{', '.join(self._classic_directories)}: no CommitLog files. {_LOG_ELSEWHERE}"
        raise StoreNotFoundError(next(self._compressed_segments(), nothing))

    def refuse_compressed_segments(self) -> None:
        """Refuse to write into a store with a segment that was compressed in place. Raises StoreLayoutError."""
        for reason in self._compressed_segments():
            raise StoreLayoutError(reason)

    def _compressed_segments(self) -> Iterator[str]:
        """Yield an error text of each compressed file that stands where a segment with its name is missing."""
        for directory, _ in self.log_directories:
            entries = self.storage.entries(directory)
            there = {entry.name for entry in entries if entry.size_bytes}
            for entry in entries:
                start_offset = paths.parse_compressed_segment_name(entry.name)
                if start_offset is not None and paths.segment_name(start_offset) not in there:
                    yield (
                        f"{directory}/{entry.name}: a segment that was compressed in place, which may hold the log "
                        f"from {start_offset} on; decompress it (gunzip), or move it out of the store to do without it"
                    )


def _single_name(names: Sequence[bytes]) -> str | None:
    distinct = set(names)
    return distinct.pop().decode(errors="replace") if len(distinct) == 1 else None


def open_store(path: str) -> StoreFiles:
    """Open the store at a path or URI, without a look at its files. Raises StoreError as ``open_storage``."""
    return StoreFiles(*open_storage(path))


def no_store_error(storage: Storage, path: str) -> str:
    """Return the error text for a path without a store; it suggests a nearby store or archive."""
    return next(_hints(storage, path), f"{path}: holds no store. Give the directory that has commitlog/ in it.")


def nearby_store(storage: Storage, path: str) -> str | None:
    """Return the text of ``no_store_error`` if there is a store or an archive to name; else None."""
    return next(_hints(storage, path), None)


def refuse_no_store(storage: Storage, path: str) -> None:
    """Refuse a path that has no part of a store in it, or a log whose paths are names. Raises StoreNotFoundError."""
    names = {entry.name for entry in storage.entries(path)}
    has_log = "commitlog" in names or any(name.startswith("dledger-") for name in names)
    if not has_log and not names & _PARTS:
        raise StoreNotFoundError(no_store_error(storage, path))
    flat = sorted(name for name in names if name.startswith("commitlog\\"))
    if flat and not has_log:
        raise StoreNotFoundError(_backslash_hint(path, flat[0]))


def is_store(storage: Storage, path: str) -> bool:
    """Return whether a directory looks like a store: it has a CommitLog, or two other parts of a store."""
    try:
        entries = storage.entries(path)
    except StoreError:
        return False
    names = {entry.name for entry in entries}
    has_log = any(entry.is_directory and entry.name == "commitlog" for entry in entries)
    has_entries = any(name.startswith("dledger-") for name in names)
    return has_log or has_entries or len(names & _PARTS) > 1


def _hints(storage: Storage, path: str) -> Iterator[str]:
    try:
        entries = storage.entries(path)
    except StoreError:
        return
    if not entries and storage.exists(path):
        with suppress(StoreError):  # an empty directory
            yield from _archive_hints(storage, path)
    above = next((directory for directory in _above(storage, path) if is_store(storage, directory)), None)
    if above is not None:
        yield f"{path} holds no store; {above} is one"
        return
    children = [f"{path}/{entry.name}" for entry in entries if entry.is_directory][:_MAX_LISTED]
    stores = [child for child in children if is_store(storage, child)]
    if stores:
        named = ", ".join(stores[:_MAX_NAMED])
        more = f" and {len(stores) - _MAX_NAMED} more" if len(stores) > _MAX_NAMED else ""
        yield f"{path} holds no store; {named}{more} {'is one' if len(stores) == 1 else 'are some'}"
    backslashed = [entry.name for entry in entries if "\\" in entry.name]
    if backslashed:
        yield _backslash_hint(path, backslashed[0])
    for entry in entries:
        if not entry.is_directory and entry.name.lower().endswith(_SUFFIXES):
            yield f"{path} holds no store; {path}/{entry.name} is an archive. Unpack it first"


def _backslash_hint(path: str, name: str) -> str:
    return (
        f"{path} holds no store; {name!r} is a path of Windows in one name. "
        "Unpack the archive with a tool that makes directories of it"
    )


def _above(storage: Storage, path: str) -> Iterator[str]:
    """Yield the directories that a path is in, the nearest first."""
    if storage.is_local:
        yield from map(str, islice(Path(path).absolute().parents, _LEVELS_UP))
        return
    for _ in range(_LEVELS_UP):
        path = path.rpartition("/")[0]
        if path.endswith(("/", ":")):
            return
        yield path


def _archive_hints(storage: Storage, path: str) -> Iterator[str]:
    """Name an archive by its first bytes."""
    with storage.open(path) as file:
        head = read_range(file, 0, min(_HEAD_BYTES, file.size_bytes))
    for at, magic, what, command in _MAGICS:
        if head[at : at + len(magic)] == magic:
            yield f"{path} holds no store: it is {what}. Unpack it first: {command} {path}"
            return
