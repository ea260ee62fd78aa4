"""Suggests where a store may be, if a path has none: a level up or down, or in an archive."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.storage.segments import Storage, opened, read_range

_PARTS: Final = frozenset({"consumequeue", "index", "config", "checkpoint", "batchconsumequeue", "abort"})
_MOST_LISTED: Final = 64  # directories that are looked into
_MOST_NAMED: Final = 3
_LEVELS_UP: Final = 3  # a queue's directory is so far below its store
_HEAD_BYTES: Final = 512
_MAGICS: Final = (
    (0, b"PK\x03\x04", "a zip archive", "unzip"),
    (257, b"ustar", "a tar archive", "tar -xf"),
    (0, b"\x1f\x8b", "compressed with gzip", "tar -xzf"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd", "tar --zstd -xf"),
    (0, b"BZh", "compressed with bzip2", "tar -xjf"),
    (0, b"\xfd7zXZ", "compressed with xz", "tar -xJf"),
)
_SUFFIXES: Final = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz", ".tzst")


def no_store_error(storage: Storage, path: str) -> str:
    """Return the error text for a path without a store; it suggests a nearby store or archive."""
    return next(_hints(storage, path), f"{path}: holds no store. Give the directory that has commitlog/ in it.")


def nearby_store(storage: Storage, path: str) -> str | None:
    """Return the same text if there is a store or an archive to name; else None."""
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
    children = [f"{path}/{entry.name}" for entry in entries if entry.is_directory][:_MOST_LISTED]
    stores = [child for child in children if is_store(storage, child)]
    if stores:
        named = ", ".join(stores[:_MOST_NAMED])
        more = f" and {len(stores) - _MOST_NAMED} more" if len(stores) > _MOST_NAMED else ""
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
    with opened(storage, path) as file:
        head = read_range(file, 0, min(_HEAD_BYTES, file.size_bytes))
    for at, magic, what, command in _MAGICS:
        if head[at : at + len(magic)] == magic:
            yield f"{path} holds no store: it is {what}. Unpack it first: {command} {path}"
            return
