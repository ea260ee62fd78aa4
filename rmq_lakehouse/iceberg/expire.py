"""Expiry of Iceberg snapshots, and deletion of files that no snapshot refers to.

A snapshot expires some time after it stopped being the newest one. Its own age does not count: it may have been the
newest one until a moment ago. pyiceberg expires snapshots and keeps their files.
"""

import json
import logging
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from rmq_formats.errors import StoreError
from rmq_lakehouse.directories import (
    DELTA_LOG,
    decompress_metadata,
    is_metadata,
    linked_directory,
    other_iceberg_table,
    other_table,
)
from rmq_lakehouse.iceberg.catalog import files_of, metadata_files

_DIRECTORIES: Final = ("data", "metadata")  # below the table's own: what else is there may be another table's
_KEPT_NAMES: Final = ("version-hint.text",)  # by which programs without a catalog find the newest metadata
_log = logging.getLogger("rmq_lakehouse")


def expirable_snapshots(metadata: TableMetadata, before_ms: int, kept: Collection[int]) -> list[int]:
    """List the snapshots that have not been current since a time.

    Args:
        before_ms: the time, in ms since 1970.
        kept: ids of snapshots to retain in addition to those of branches and tags.
    """
    retained_ids = {*kept, *(ref.snapshot_id for ref in metadata.refs.values())}
    log = metadata.snapshot_log
    # The last of a snapshot's entries counts: it may have been rolled back to.
    until_ms = {entry.snapshot_id: after.timestamp_ms for entry, after in pairwise(log)}
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in retained_ids
        and until_ms.get(snapshot.snapshot_id, snapshot.timestamp_ms) < before_ms
    ]


def remove_snapshots(table: Table, snapshot_ids: Collection[int]) -> None:
    """Remove snapshots from a table, if its branches and tags are as it was loaded. Raises CommitFailedException."""
    unchanged = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in table.metadata.refs.items()
    )
    transaction = table.transaction()
    transaction._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(snapshot_ids)}),), unchanged)
    transaction.commit_transaction()


def check_directory(table: Table) -> None:
    """Refuse a vacuum of a directory that has files of another table. Raises StoreError."""
    files, path = files_of(table.location().rstrip("/"), table.io)
    paths = [info.path for info in _list_files(files, path)]
    log = next((file_path for file_path in paths if f"/{DELTA_LOG}/" in file_path), None)
    other_description = (
        other_table(files, path, str(table.metadata.table_uuid)) if log is None else f"a Delta table ({log})"
    )
    if other_description is None:
        named = {_name(file_path) for file_path in metadata_files(table)}
        other_description = other_iceberg_table(files, paths, str(table.metadata.table_uuid), named)
    if other_description is None and isinstance(files, pafs.LocalFileSystem):
        other_description = linked_directory(Path(path))
    if other_description is not None:
        raise StoreError(
            f"{'.'.join(table.name())}: its directory {path} has {other_description}; --vacuum deletes nothing there: "
            "move that out of the directory"
        )


def delete_unused(table: Table, before_ms: int) -> None:
    """Delete files of a table's directory that no snapshot refers to, and that were written before a time.

    Files are compared by their names, which contain a UUID: a path may be written in several ways.

    Another catalog may have registered the same table and have committed to the table since. Its newest metadata, which
    is not in this table's history, stays, and the files of its current snapshots.

    Args:
        table: the table after snapshots have expired, loaded again.
        before_ms: the time, in ms since 1970; a commit that is under way has younger files.

    Raises StoreError: pyiceberg cannot read metadata that is not in the table's history.
    """
    files, path = files_of(table.location().rstrip("/"), table.io)
    infos = sorted(_list_files(files, path), key=lambda info: str(info.path))  # oldest metadata first, by its number
    table.refresh()  # behind the listing: else a commit in between would be in no history
    read_manifests: set[str] = set()
    used = {*_KEPT_NAMES, *map(_name, metadata_files(table))}
    used.update(map(_name, _used_paths(table.metadata, table.metadata.snapshots, table.io, read_manifests)))
    diverged = _newest_diverged(table, files, {info.base_name: info.path for info in infos})
    for name, metadata in diverged.items():
        used.add(name)
        current_ids = {ref.snapshot_id for ref in metadata.refs.values()}  # of branches and tags
        for snapshot in (snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in current_ids):
            with suppress(FileNotFoundError, EOFError, ValueError, zlib.error):  # its files were deleted or cut off
                used.update(map(_name, list(_used_paths(metadata, [snapshot], table.io, read_manifests))))
    if diverged:
        _log.warning(
            "%s: metadata that is not in the table's history: %s. Another catalog may have committed it, or a commit "
            "failed. --vacuum keeps that metadata and the files of its snapshots",
            ".".join(table.name()),
            ", ".join(sorted(diverged)),
        )
    for info in infos:
        is_old = info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms
        if is_old and info.base_name not in used:
            with suppress(FileNotFoundError):  # another vacuum deletes the same files
                files.delete_file(info.path)


def _list_files(files: pafs.FileSystem, directory: str) -> Iterator[pafs.FileInfo]:
    """List the files of a table's directory that a vacuum may delete."""
    for name in _DIRECTORIES:
        selector = pafs.FileSelector(f"{directory}/{name}", allow_not_found=True, recursive=True)
        yield from (info for info in files.get_file_info(selector) if info.type == pafs.FileType.File)


def _used_paths(
    metadata: TableMetadata, snapshots: Iterable[Snapshot], io: FileIO, read_manifests: set[str]
) -> Iterator[str]:
    """List the paths of statistics, and of manifest lists, manifests and data files of snapshots.

    Data files of ``read_manifests`` were listed before; the function adds the manifests that it reads.
    """
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    for snapshot in snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path in read_manifests:
                continue
            read_manifests.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                yield entry.data_file.file_path


def _newest_diverged(table: Table, files: pafs.FileSystem, paths: Mapping[str, str]) -> dict[str, TableMetadata]:
    """Read the metadata of the table that neither its history nor other diverged metadata names, by file name."""
    history = _history(table, files, paths)
    unknown = {name: path for name, path in paths.items() if name not in history and is_metadata(name)}
    parsed = {name: _read_metadata(files, path) for name, path in unknown.items()}
    diverged = {name: metadata for name, metadata in parsed.items() if metadata is not None}
    former = {_name(entry.metadata_file) for metadata in diverged.values() for entry in metadata.metadata_log}
    return {name: metadata for name, metadata in diverged.items() if name not in former}


def _history(table: Table, files: pafs.FileSystem, paths: Mapping[str, str]) -> set[str]:
    """List the names of the metadata files that led to a table's metadata.

    Metadata names some files before it, 100 by default. The oldest of these names more, as long as the files are there.
    """
    history = {_name(table.metadata_location)}
    read_names: set[str] = set()
    metadata: TableMetadata | None = table.metadata
    while metadata is not None:
        logged = [_name(entry.metadata_file) for entry in metadata.metadata_log]
        history.update(logged)
        oldest = next((name for name in logged if name in paths and name not in read_names), None)
        if oldest is None:
            break
        read_names.add(oldest)
        metadata = _read_metadata(files, paths[oldest])
    return history


def _read_metadata(files: pafs.FileSystem, path: str) -> TableMetadata | None:
    """Read a metadata file; None if deleted or cut off. Raises StoreError: pyiceberg cannot read the whole file."""
    try:
        with files.open_input_stream(path, compression=None) as stream:
            plain = decompress_metadata(bytes(stream.read()))
        fields = None if plain is None else json.loads(plain)
    except (FileNotFoundError, ValueError):
        return None
    if fields is None:
        return None
    try:
        return TableMetadataUtil.parse_obj(fields)
    except (ValueError, ValidationError, TypeError, KeyError) as error:
        raise StoreError(f"{path}: metadata that pyiceberg cannot read; --vacuum deletes nothing there") from error


def _name(path: str) -> str:
    return path.rpartition("/")[2]
