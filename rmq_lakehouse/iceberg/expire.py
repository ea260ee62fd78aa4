"""Expiry of Iceberg snapshots, and deletion of files that no snapshot refers to.

A snapshot expires some time after it stopped being the newest one. Its own age does not count: it may have been the
newest one until a moment ago. pyiceberg expires snapshots and keeps their files.
"""

import logging
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import pyarrow.fs as pafs
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from rmq_formats.errors import StoreError
from rmq_lakehouse.directories import DELTA_LOG, is_metadata, linked_directory, other_iceberg_table, other_table
from rmq_lakehouse.iceberg.catalog import files_of, metadata_files

_DIRECTORIES: Final = ("data", "metadata")  # below the table's own: what else is there may be another table's
_KEPT_NAMES: Final = ("version-hint.text",)  # by which programs without a catalog find the newest metadata
_log = logging.getLogger("rmq_lakehouse")


def expirable_snapshots(metadata: TableMetadata, before_ms: int, kept: Collection[int]) -> list[int]:
    """List the snapshots that have not been current since a time.

    Args:
        before_ms: the time, in ms since 1970.
        kept: ids of further snapshots to keep, beside those of branches and tags.
    """
    kept_ids = {*kept, *(ref.snapshot_id for ref in metadata.refs.values())}
    log = metadata.snapshot_log
    # The last of a snapshot's entries counts: it may have been rolled back to.
    until_ms = {entry.snapshot_id: after.timestamp_ms for entry, after in pairwise(log)}
    return [
        snapshot.snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id not in kept_ids
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

    Another catalog may have registered the same table and have committed to the table since. Metadata files beyond this
    table's history stay, and the files of their current snapshots.

    Args:
        table: as it is after snapshots have expired.
        before_ms: the time, in ms since 1970; a commit that is under way has younger files.
    """
    files, path = files_of(table.location().rstrip("/"), table.io)
    infos = list(_list_files(files, path))
    used = {*_KEPT_NAMES, *(_name(path) for path in _used_paths(table))}
    for diverged_path in _diverged_metadata(table, {info.base_name for info in infos}):
        try:
            diverged = FromInputFile.table_metadata(table.io.new_input(diverged_path))
            paths = [diverged_path, *_snapshot_paths(_current_snapshots(diverged), table.io)]
        except (ValueError, ValidationError, FileNotFoundError):  # cut off, or without its files: nobody can read it
            continue
        used.update(map(_name, paths))
        _log.warning(
            "%s: %s is no part of the table's history: another catalog may have committed it, or a commit failed. "
            "--vacuum deletes neither that file nor the files of its snapshot",
            ".".join(table.name()),
            diverged_path,
        )
    for info in infos:
        is_old = info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms
        if is_old and info.base_name not in used:
            with suppress(FileNotFoundError):  # another one is at the same
                files.delete_file(info.path)


def _list_files(files: pafs.FileSystem, directory: str) -> Iterator[pafs.FileInfo]:
    """List the files of a table's directory that a vacuum may delete."""
    for name in _DIRECTORIES:
        selector = pafs.FileSelector(f"{directory}/{name}", allow_not_found=True, recursive=True)
        yield from (info for info in files.get_file_info(selector) if info.type == pafs.FileType.File)


def _used_paths(table: Table) -> Iterator[str]:
    """List the paths of all files that any version of a table has."""
    metadata = table.metadata
    yield from metadata_files(table)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    yield from _snapshot_paths(metadata.snapshots, table.io)


def _snapshot_paths(snapshots: Iterable[Snapshot], io: FileIO) -> Iterator[str]:
    """List the paths of manifest lists, manifests and data files of snapshots."""
    read = set()
    for snapshot in snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                yield entry.data_file.file_path


def _current_snapshots(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots of a table's branches and tags."""
    ids = {ref.snapshot_id for ref in metadata.refs.values()}
    return [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in ids]


def _diverged_metadata(table: Table, names: Collection[str]) -> list[str]:
    """List the table's metadata files, among files of its directory, that are not in its history.

    Metadata names some files before it, 100 by default. The oldest of these names more, as long as the files are there.
    """
    directory = table.metadata_location.rpartition("/")[0]
    metadata = table.metadata
    history = {_name(table.metadata_location)}
    while metadata.metadata_log:
        history.update(_name(entry.metadata_file) for entry in metadata.metadata_log)
        oldest = _name(metadata.metadata_log[0].metadata_file)
        if oldest not in names:
            break
        metadata = FromInputFile.table_metadata(table.io.new_input(f"{directory}/{oldest}"))
    return [f"{directory}/{name}" for name in sorted(names) if name not in history and is_metadata(name)]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
