"""Versions of an Iceberg table that nobody reads any more, and files that no version has.

A snapshot expires when it has not been the table's newest for some time: its own age says nothing, for it may have been
the newest one until a moment ago. pyiceberg expires snapshots and leaves their files.
"""

from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Final

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate

from rmq_formats.lakehouse.iceberg.io import TableFileSystem

_DIRECTORIES: Final = ("data", "metadata")  # below the table's own: what else is there may be another table's
_OTHERS: Final = ("version-hint.text",)  # by which programs without a catalog find the newest metadata


def expired(metadata: TableMetadata, before_ms: int, kept: Collection[int]) -> list[int]:
    """List the snapshots that have not been current since a time.

    Args:
        metadata: of the table.
        before_ms: the time, in ms since 1970.
        kept: identifiers of snapshots that stay; those of branches and tags stay as well.
    """
    stay = {*kept, *(ref.snapshot_id for ref in metadata.refs.values())}
    log = metadata.snapshot_log
    # The last of a snapshot's entries counts: it may have been rolled back to.
    until_ms = {entry.snapshot_id: after.timestamp_ms for entry, after in pairwise(log)}
    return [
        one.snapshot_id
        for one in metadata.snapshots
        if one.snapshot_id not in stay and until_ms.get(one.snapshot_id, one.timestamp_ms) < before_ms
    ]


def expire(table: Table, snapshot_ids: Collection[int]) -> None:
    """Remove snapshots from a table, if its branches and tags are as it was loaded. Raises CommitFailedException."""
    unchanged = tuple(
        AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": ref.snapshot_id})
        for name, ref in table.metadata.refs.items()
    )
    transaction = table.transaction()
    transaction._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(snapshot_ids)}),), unchanged)
    transaction.commit_transaction()


def delete_unused(table: Table, before_ms: int) -> None:
    """Delete files of a table's directory that no snapshot has, and that were written before a time.

    They are told apart by their names, which have a UUID, not by their paths: of the same place there are several.

    Args:
        table: as it is after snapshots have expired.
        before_ms: the time, in ms since 1970; a commit that is under way has younger files.
    """
    io = TableFileSystem.of(table.location(), table.io).io()
    used = {*_OTHERS, *(_name(path) for path in _used(table))}
    for directory in _DIRECTORIES:
        scheme, place, path = PyArrowFileIO.parse_location(f"{table.location().rstrip('/')}/{directory}")
        files = io.fs_by_scheme(scheme, place)
        for info in files.get_file_info(pafs.FileSelector(path, allow_not_found=True, recursive=True)):
            is_old = info.mtime_ns is not None and info.mtime_ns // 1_000_000 < before_ms
            if info.type == pafs.FileType.File and is_old and info.base_name not in used:
                with suppress(FileNotFoundError):  # another one is at the same
                    files.delete_file(info.path)


def _used(table: Table) -> Iterator[str]:
    """List the paths of all files that any version of a table has."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    for statistics in (*metadata.statistics, *metadata.partition_statistics):
        yield statistics.statistics_path
    read = set()
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in read:
                continue
            read.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                yield entry.data_file.file_path


def _name(path: str) -> str:
    return path.rpartition("/")[2]
