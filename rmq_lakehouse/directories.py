"""Tables in a directory, by the metadata that Delta and Iceberg keep there.

Two tables in one directory are a loss: the maintenance of each deletes the files that only the other one names.
"""

import gzip
import json
import os
import re
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Final

import pyarrow.fs as pafs

from rmq_formats.errors import StoreError

DELTA_LOG: Final = "_delta_log"
METADATA: Final = "metadata"  # Iceberg's directory of a table's metadata
_METADATA_FILE: Final = re.compile(r".*(\.metadata\.json(\.gz)?|\.gz\.metadata\.json)")
_UUID: Final = re.compile(rb'"table-uuid"\s*:\s*"([^"]+)"')  # of a file that was cut off, too
_FIRST: Final = re.compile(r"(00000-.*|v[01]\..*)")  # a table's first metadata, as catalogs and Hadoop name them
_NEWEST_READ: Final = 20  # limit: of metadata files that the table does not name, for a run's look at a directory


def is_metadata(name: str) -> bool:
    """Return whether a file's name is that of an Iceberg table's metadata."""
    return _METADATA_FILE.fullmatch(name) is not None


def decompress_metadata(content: bytes) -> bytes | None:
    """Return the JSON of a metadata file, which may be compressed; None if a compressed file was cut off."""
    try:
        return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content
    except (OSError, EOFError, zlib.error):
        return None


def iceberg_uuid(content: bytes) -> str | None:
    """Return the uuid of an Iceberg table from a metadata file, whole or cut off; None if the file has none."""
    plain = decompress_metadata(content)
    if plain is None:
        return None
    try:
        return str(json.loads(plain)["table-uuid"])
    except (ValueError, TypeError, KeyError):
        match = _UUID.search(plain)
        return None if match is None else match[1].decode(errors="replace")


def other_iceberg_table(
    files: pafs.FileSystem, paths: Collection[str], uuid: str | None, named: Collection[str]
) -> str | None:
    """Describe the first Iceberg table of another uuid among files; None without one.

    Args:
        uuid: uuid of the table that may have metadata there.
        named: names of the metadata files that this table names.
    """
    for path in paths:
        name = PurePosixPath(path).name
        if name in named or not is_metadata(name):
            continue
        try:
            with files.open_input_stream(path, compression=None) as stream:
                content = bytes(stream.read())
        except FileNotFoundError:  # another export has deleted the file
            continue
        other_uuid = iceberg_uuid(content)
        if content and (other_uuid is None or other_uuid != uuid):
            return f"the Iceberg table {other_uuid or 'of an unknown uuid'} ({path})"
    return None


def other_table(files: pafs.FileSystem, directory: str, uuid: str | None, named: Collection[str] = ()) -> str | None:
    """Describe the table in a directory that is not the Iceberg table of a uuid; None without one."""
    log = f"{directory}/{DELTA_LOG}"
    if files.get_file_info(log).type == pafs.FileType.Directory:
        return f"a Delta table ({log})"
    listed = files.get_file_info(pafs.FileSelector(f"{directory}/{METADATA}", allow_not_found=True))
    unnamed = [info for info in listed if info.base_name not in named and is_metadata(info.base_name)]
    by_age = sorted(unnamed, key=lambda info: (_FIRST.fullmatch(info.base_name) is None, -(info.mtime_ns or 0)))
    firsts = sum(_FIRST.fullmatch(info.base_name) is not None for info in unnamed)
    return other_iceberg_table(files, [info.path for info in by_age[: firsts + _NEWEST_READ]], uuid, named)


def table_around(directory: Path) -> Path | None:
    """Return the nearest directory above this directory that has a table's metadata; None without one."""
    for above in directory.resolve().parents:
        metadata_names = (path.name for path in (above / METADATA).glob("*.json*"))
        if (above / DELTA_LOG).is_dir() or any(map(is_metadata, metadata_names)):
            return above
    return None


def table_within(directory: Path, ignored: Collection[str] = ()) -> str | None:
    """Describe another table, or a link, whose files a VACUUM of the table in this directory would delete; else None.

    Spark's VACUUM passes over names that begin with ``_`` or ``.``; delta-rs does so in the table's own directory only.
    Both follow links.

    Args:
        ignored: names in this directory that are not searched.
    """
    for path, names, files in os.walk(directory):
        current_directory = Path(path)
        if current_directory == directory:
            names[:] = [name for name in names if name not in ignored and name != DELTA_LOG]
        if DELTA_LOG in names:
            return f"a Delta table ({current_directory / DELTA_LOG})"
        if current_directory.name == METADATA and any(map(is_metadata, files)):
            return f"an Iceberg table ({current_directory})"
    return linked_directory(directory)


def linked_directory(directory: Path) -> str | None:
    """Describe a link to a directory, below a directory; None without one. Recursive deletions follow such links."""
    for path, names, _ in os.walk(directory):
        for link in (Path(path, name) for name in names):
            if link.is_symlink():
                return f"a link to another directory ({link})"
    return None


def check_new_table(name: str, around: Path | None, other: str | None) -> None:
    """Refuse a directory for a new table if another table has it, or is around it. Raises StoreError."""
    if around is not None:
        raise StoreError(f"{name}: is within the table {around}; give another --table")
    if other is not None:
        raise StoreError(f"{name}: its directory has {other}; give another --table")


def check_vacuum(name: str, other: str | None) -> None:
    """Refuse a VACUUM that would delete files of another table, given its description. Raises StoreError."""
    if other is not None:
        reason = f"its directory has {other}; --vacuum deletes nothing there: move that out of the directory"
        raise StoreError(f"{name}: {reason}")
