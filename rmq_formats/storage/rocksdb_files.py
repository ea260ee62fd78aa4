"""Writes a whole RocksDB: tables of sorted pairs, ingested into a new database.

Java's RocksDB of RocketMQ 5.3.3 is of version 8.4: tables are of a format that it reads.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from rmq_formats.errors import StoreError
from rmq_formats.storage.rocksdb import DEFAULT_FAMILY, library

_TABLE_FORMAT: Final = 5  # RocksDB 6.6 and later read it, 8.6 and later write 6 by default
_TABLE_BYTES: Final = 256 << 20
_OWN_FILES: Final = ("rocksdict-config.json", "LOG", "LOCK")  # that the library leaves, and a broker makes anew


class Pairs(NamedTuple):
    """Pairs in the order of their keys, all keys of one length.

    Attributes:
        keys, values: each one behind the other.
    """

    keys: bytes
    key_bytes: int
    values: bytes
    value_bytes: int


Families = Mapping[str, Iterator[Pairs]]


def make_rocksdb(directory: Path, families: Families) -> int:
    """Make a database in a directory that is not there; a failed one leaves the directory, which is no database.

    Args:
        families: the pairs of each column family, keys ascending over all; ``default`` has to be one.

    Returns:
        How many pairs it has.

    Raises:
        StoreError: the library is not installed, or the disk does not take it.
    """
    rocksdict = library(str(directory))
    tables = directory.with_name(f"{directory.name}.tables")
    shutil.rmtree(tables, ignore_errors=True)
    tables.mkdir(parents=True)
    with _library_errors_as_store_errors(directory):
        database = rocksdict.Rdict(str(directory), _options(rocksdict))
        count = 0
        for name, pairs in families.items():
            handle = database
            if name != DEFAULT_FAMILY:
                handle = database.create_column_family(name, _options(rocksdict))
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
    """Write pairs as tables of some size; their paths, and how many pairs they have."""
    paths: list[str] = []
    count, writer = 0, None
    for chunk in pairs:
        if writer is None:
            writer = rocksdict.SstFileWriter(options=_options(rocksdict))
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


def _options(rocksdict: Any) -> Any:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_format_version(_TABLE_FORMAT)
    options.set_block_based_table_factory(blocks)
    return options


@contextmanager
def _library_errors_as_store_errors(directory: Path) -> Iterator[None]:
    """Re-raise what the library raises, a plain Exception, as StoreError that names the database."""
    try:
        yield
    except (OSError, StoreError):
        raise
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise StoreError(f"{directory}: a RocksDB cannot be written there: {error}") from error
