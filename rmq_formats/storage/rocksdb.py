"""Opens a RocksDB of a store for reading, and writes a whole one, by the library rocksdict.

The library writes a file of its own into the directory that it opens, even to read, and a store is never written into:
so it gets a temporary directory of links to the database's files, or of copies if the store is not local.

A database is written as tables of sorted pairs, which a new database ingests. Java's RocksDB of RocketMQ 5.3.3 is of
version 8.4: tables are of a format that it reads.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from rmq_formats.codecs import paths
from rmq_formats.codecs.rocksdb_log import BLOCK_BYTES, find_log_end
from rmq_formats.errors import FormatError, StoreError, StoreLockedError
from rmq_formats.kernels.crc import crc32c
from rmq_formats.storage.segments import OpenRange, Storage, read_range
from rmq_formats.storage.store_lock import is_locked

if TYPE_CHECKING:
    from rocksdict import Rdict

DEFAULT_FAMILY: Final = "default"
CHUNK_PAIRS: Final = 65536  # some 10 MB of Python's objects
_LOCK: Final = "LOCK"  # locked whole. Source: PosixFileSystem::LockFile
_COPY_BYTES: Final = 16 << 20
_LOG: Final = re.compile(r"[0-9]+\.log")
_FILE: Final = re.compile(r"CURRENT|IDENTITY|(MANIFEST|OPTIONS)-[0-9]+|[0-9]+\.(sst|log|blob)")  # and no LOG, LOCK
_TABLE_FORMAT: Final = 5  # RocksDB 6.6 and later read it, 8.6 and later write 6 by default
_TABLE_BYTES: Final = 256 << 20
_OWN_FILES: Final = ("rocksdict-config.json", "LOG", "LOCK")  # that the library leaves, and a broker makes anew


class RocksDb:
    """A RocksDB that is open for reading."""

    def __init__(self, path: str, database: "Rdict", families: list[str]) -> None:
        self.path = path
        self.families = tuple(families)
        self._handles = {
            name: database if name == DEFAULT_FAMILY else database.get_column_family(name) for name in families
        }

    def chunks(
        self, family: str, begin: bytes = b"", end: bytes | None = None, chunk_pairs: int = CHUNK_PAIRS
    ) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Read keys and values in the order of the keys, some at a time. Raises FormatError for a damaged file.

        Args:
            family: the column family; a missing one is empty.
            end: one past the last key; None is the family's end.
        """
        handle = self._handles.get(family)
        if handle is None:
            return
        with _library_errors_as_damage(self.path):
            items: Any = handle.items(from_key=begin, read_opt=_read_options(end))  # of bytes, in raw mode
            last: bytes | None = None
            while chunk := list(islice(items, chunk_pairs)):
                last = chunk[-1][0]
                yield [key for key, _ in chunk], [value for _, value in chunk]
        self._check_end(handle, begin, end, last)

    def _check_end(self, handle: "Rdict", begin: bytes, end: bytes | None, last: bytes | None) -> None:
        """Raise FormatError where pairs ended at damage: the library's iterators end there as at the last pair."""
        with _library_errors_as_damage(self.path):
            at = handle.iter(_read_options(end))
            at.seek(begin if last is None else last)
            if last is not None and at.valid():
                at.next()
            at.status()
        if at.valid():
            raise FormatError("pairs are missing: it was changed while it was read", path=self.path)

    def pairs(self, family: str, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Read the pairs of a small family; see ``chunks``."""
        for keys, values in self.chunks(family, begin, end):
            yield from zip(keys, values, strict=True)

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key; None without one. Raises FormatError."""
        handle = self._handles.get(family)
        with _library_errors_as_damage(self.path):
            value: bytes | None = None if handle is None else handle.get(key)
        return value

    def first_from(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the first pair from a key on; None at the family's end. Raises FormatError."""
        return self._seek(family, key, is_before=False)

    def last_until(self, family: str, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the last pair up to a key, that key's included; None without one. Raises FormatError."""
        return self._seek(family, key, is_before=True)

    def _seek(self, family: str, key: bytes, *, is_before: bool) -> tuple[bytes, bytes] | None:
        handle = self._handles.get(family)
        if handle is None:
            return None
        with _library_errors_as_damage(self.path):
            at = handle.iter(_read_options(None))
            at.seek_for_prev(key) if is_before else at.seek(key)
            if at.valid():
                return at.key(), at.value()
            at.status()
        return None


@contextmanager
def open_rocksdb(storage: Storage, path: str, root: str) -> Iterator[RocksDb]:
    """Open a RocksDB of the store at ``root`` for reading, and close it at the end of the ``with`` block.

    Raises:
        StoreError: the library rocksdict is not installed, or a file cannot be read.
        StoreLockedError: a running broker has the database open.
        FormatError: the database cannot be opened, as one of its files is missing or damaged.
    """
    rocksdict = library(path)
    if storage.is_local and is_locked(f"{path}/{_LOCK}"):
        raise StoreLockedError(f"{path}: a running broker has this RocksDB open, and keeps a part of it in memory")
    _check_logs(storage, path)
    with tempfile.TemporaryDirectory(prefix="rmq-rocksdb-") as directory:
        _link_files(storage, path, directory)
        with _library_errors_as_damage(path):
            families = rocksdict.Rdict.list_cf(directory, _options())
            database = rocksdict.Rdict(
                directory,
                _options(),
                column_families={name: _options() for name in families},
                access_type=rocksdict.AccessType.read_only(False),
            )
        try:
            _check_tables(storage, path, root, {str(file["name"]).lstrip("/") for file in database.live_files()})
            yield RocksDb(path, database, families)
        finally:
            with suppress(Exception):  # nothing was written that could be lost
                database.close()


def _check_logs(storage: Storage, path: str) -> None:
    """Refuse a database with a damaged write-ahead log, the rest of which the library would ignore. Raises FormatError.

    The newest log of a broker that was killed may end within a batch, which was not acknowledged.
    """
    numbers = {int(entry.name[:-4]): entry.name for entry in storage.entries(path) if _LOG.fullmatch(entry.name)}
    for number, name in sorted(numbers.items()):
        with storage.open(f"{path}/{name}") as file:
            end = find_log_end(_blocks(file), number, crc32c)
        if end.kind == "damage" or (end.kind == "torn" and number != max(numbers)):
            what = f"its write-ahead log {name} is damaged at byte {end.position}, and the rest would be passed over"
            raise FormatError(f"a RocksDB that lacks a part: {what}", path=path)


def _blocks(file: OpenRange) -> Iterator[bytes]:
    for at in range(0, file.size_bytes, _COPY_BYTES):
        chunk = bytes(read_range(file, at, min(_COPY_BYTES, file.size_bytes - at)))
        yield from (chunk[start : start + BLOCK_BYTES] for start in range(0, len(chunk), BLOCK_BYTES))


def _check_tables(storage: Storage, path: str, root: str, live: set[str]) -> None:
    """Refuse a database that has a table that its MANIFEST does not name: a cut MANIFEST opens without an error.

    A broker that was killed may leave such a table, too, and its next start deletes it.
    """
    there = {entry.name for entry in storage.entries(path) if entry.name.endswith(".sst")}
    if there - live and not storage.exists(paths.abort_file(root)):
        what = f"its MANIFEST does not name {min(there - live)}, though the broker closed it"
        raise FormatError(f"a RocksDB that lacks a part: {what}", path=path)


def library(path: str) -> Any:
    """Import the library for a database. Raises StoreError where it is not installed."""
    try:
        import rocksdict  # noqa: PLC0415 # an extra of the wheel
    except ImportError as error:
        raise StoreError(f"{path}: is a RocksDB, which needs pip install 'rmq-lake[rocksdb]'") from error
    return rocksdict


def _options() -> Any:
    from rocksdict import Options  # noqa: PLC0415

    return Options(raw_mode=True)


def _read_options(end: bytes | None) -> Any:
    from rocksdict import ReadOptions  # noqa: PLC0415

    options = ReadOptions()
    if end is not None:
        options.set_iterate_upper_bound(end)
    return options


@contextmanager
def _translate_library_errors(translate: Callable[[Exception], Exception]) -> Iterator[None]:
    """Replace what the library raises, a plain Exception."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise translate(error) from error


def _library_errors_as_damage(path: str) -> AbstractContextManager[None]:
    def translate(error: Exception) -> Exception:
        words = (Path(word).name if "rmq-rocksdb-" in word else word for word in str(error).split())
        return FormatError(f"a RocksDB that cannot be read: {' '.join(words)}", path=path)

    return _translate_library_errors(translate)


def _link_files(storage: Storage, path: str, directory: str) -> None:
    """Link the files of a database in a directory, or copy them there from a store that is not local."""
    for entry in storage.entries(path):
        if entry.is_directory or not _FILE.fullmatch(entry.name):
            continue
        target = Path(directory, entry.name)
        if storage.is_local:
            target.symlink_to(Path(path, entry.name).absolute())
            continue
        with storage.open(f"{path}/{entry.name}") as file, target.open("wb") as copy:
            for at in range(0, file.size_bytes, _COPY_BYTES):
                copy.write(read_range(file, at, min(_COPY_BYTES, file.size_bytes - at)))


class Pairs(NamedTuple):
    """Pairs in the order of their keys, all keys of one length; keys are concatenated, and so are values."""

    keys: bytes
    key_bytes: int
    values: bytes
    value_bytes: int


Families = Mapping[str, Iterator[Pairs]]


def make_rocksdb(directory: Path, families: Families) -> int:
    """Make a database in a directory that does not exist; return its number of pairs. Raises StoreError.

    Args:
        families: the pairs of each column family, keys ascending over all; ``default`` has to be one.
    """
    rocksdict = library(str(directory))
    tables = directory.with_name(f"{directory.name}.tables")
    shutil.rmtree(tables, ignore_errors=True)
    tables.mkdir(parents=True)
    with _translate_library_errors(
        lambda error: StoreError(f"{directory}: a RocksDB cannot be written there: {error}")
    ):
        database = rocksdict.Rdict(str(directory), _table_options(rocksdict))
        count = 0
        for name, pairs in families.items():
            handle = database
            if name != DEFAULT_FAMILY:
                handle = database.create_column_family(name, _table_options(rocksdict))
            paths, written = _write_tables(rocksdict, tables, name, pairs)
            count += written
            if paths:
                moves = rocksdict.IngestExternalFileOptions()
                moves.set_move_files(True)
                handle.ingest_external_file(paths, moves)
        database.close()
    shutil.rmtree(tables)
    for name in _OWN_FILES:
        (directory / name).unlink(missing_ok=True)
    return count


def _write_tables(rocksdict: Any, directory: Path, family: str, pairs: Iterator[Pairs]) -> tuple[list[str], int]:
    """Write pairs as tables of some size; return their paths, and the number of pairs."""
    paths: list[str] = []
    count, writer = 0, None
    for chunk in pairs:
        if writer is None:
            writer = rocksdict.SstFileWriter(options=_table_options(rocksdict))
            paths.append(str(directory / f"{family}-{len(paths)}.sst"))
            writer.open(paths[-1])
        put, keys, values = writer.__setitem__, chunk.keys, chunk.values
        key_bytes, value_bytes = chunk.key_bytes, chunk.value_bytes
        number = len(keys) // key_bytes if key_bytes else 1  # an empty key is there once
        # A call for each pair: the library has no other, and takes 2.5 million a second.
        for at in range(number):
            put(keys[key_bytes * at : key_bytes * (at + 1)], values[value_bytes * at : value_bytes * (at + 1)])
        count += number
        if writer.file_size() >= _TABLE_BYTES:
            writer.finish()
            writer = None
    if writer is not None:
        writer.finish()
    return paths, count


def _table_options(rocksdict: Any) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_format_version(_TABLE_FORMAT)
    options.set_block_based_table_factory(blocks)
    return options
