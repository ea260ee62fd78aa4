"""Commits of Delta tables in this machine's file system: one export at a time, and none that a loss of power has torn.

Delta relies on Hadoop to create the file of a version only if it is absent. Hadoop checks first and renames then, and
the rename replaces a file that another process has created meanwhile. So a commit could be lost without any error:
``commit_lock`` prevents that.

Delta renames the file of a commit into place without fsync. So the newest commits may come back empty, as zeros, or cut
off. Then the table is unreadable, or has rows without the transaction version of their commit. An export ends after the
fsync of its commit, so no torn commit was acknowledged. ``quarantine_torn_commits`` moves torn commits away, and the
next export commits their rows again.

Source: ``HDFSLogStore#writeInternal``, ``AbstractFileSystem#renameInternal``, ``RawLocalFileSystem#rename`` and
``ChecksumFileSystem`` of Hadoop.
"""

import fcntl
import json
import logging
import os
import shutil
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rmq_formats.errors import StoreError, StoreLockedError
from rmq_formats.storage.store_lock import directory_lock
from rmq_lakehouse.selection import APP_PREFIX
from rmq_offline.tasks.publish import sync_directory

LOCK_NAME: Final = ".rmq-commits.lock"  # in the log's directory, where Delta passes it over
_LONGEST_LOCK_S: Final = 120  # a commit takes seconds, and many files or a full disk a few more
_LOCK_POLL_S: Final = 0.02
_SUFFIX: Final = ".rmq-torn"  # beside the table: whatever is within one is a part of it to someone
_MAGIC: Final = b"crc\0"
_HEAD_BYTES: Final = 8  # magic, and the bytes that each checksum covers
_WRITTEN_S: Final = 1  # a program that writes a commit in its place, and not beside it, takes milliseconds
_TORN_POLL_S: Final = 0.05
_SIDECARS: Final = "_sidecars"  # the directory of the files that checkpoints of version 2 name

TRANSACTIONS: Final = "rmqTransactions"
"""Member of ``commitInfo``: number of the commit's transaction versions, where the files precede them."""

_log = logging.getLogger("rmq_lakehouse")


@contextmanager
def commit_lock(table: Path) -> Iterator[None]:
    """Lock the log of a table in a directory; the lock of a killed process is released.

    Raises:
        StoreLockedError: another export holds the lock for too long.
        StoreError: the log cannot be written, or its file system has no locks.
    """
    path = table / "_delta_log" / LOCK_NAME
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    try:
        end = time.monotonic() + _LONGEST_LOCK_S
        while not _has_locked(descriptor, path):
            if time.monotonic() > end:
                raise StoreLockedError(
                    f"{table}: another export has been committing for {_LONGEST_LOCK_S} s; end it first"
                )
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def _has_locked(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # of a network's file system without locks
        raise StoreError(f"{path}: cannot be locked ({error.strerror})") from error
    return True


def quarantine_torn_commits(table: Path) -> None:
    """Move the newest commits of a table away, back to the last whole commit, with a warning for each.

    A lock prevents that another export moves commits that a third export has written instead.

    Raises:
        StoreLockedError: another export is moving commits.
        StoreError: the log cannot be read or changed.
    """
    log, quarantine = table / "_delta_log", table.with_name(f"{table.name}{_SUFFIX}")
    try:
        if _stays_torn(log):
            with directory_lock(str(quarantine)):
                while torn := _torn_files(log):
                    _quarantine(torn, quarantine)
    except OSError as error:
        raise StoreError(f"{error.filename or log}: {error.strerror or error}") from error


def _stays_torn(log: Path) -> bool:
    """Return whether the newest commit is torn, and no other program is writing it at the moment."""
    end = time.monotonic() + _WRITTEN_S
    while time.monotonic() < end:
        with suppress(FileNotFoundError):  # another export has just set it aside
            if not _torn_files(log):
                return False
        time.sleep(_TORN_POLL_S)
    return True


def _torn_files(log: Path) -> list[Path]:
    """List the files to move, if the newest commit or its checkpoint is torn; the commit is the last of them."""
    try:
        names = [path.name for path in log.iterdir()]
    except FileNotFoundError:
        return []
    newest = max((name for name in names if name.endswith(".json") and name[:-5].isdigit()), default=None)
    if newest is None:
        return []
    commit = log / newest
    if not is_whole(commit):
        # A compacted delta that ends with it would tell its actions in the place of those that are committed next.
        ends = f".{commit.stem}.compacted.json"
        dependents = [
            log / name for name in names if name.lstrip(".").startswith(f"{commit.stem}.") or name.endswith(ends)
        ]
        return sorted(dependents, key=lambda path: path == commit)
    checkpoints = [log / name for name in names if name.startswith(f"{commit.stem}.checkpoint")]
    return [path for path in checkpoints if path.suffix in {".parquet", ".json"} and not _is_readable(path)]


def _is_readable(checkpoint: Path) -> bool:
    """Return whether a checkpoint is whole, and with it the files that a checkpoint of version 2 names."""
    try:
        sidecars = _sidecars(checkpoint)
        for name, size in sidecars:
            path = checkpoint.parent / _SIDECARS / name
            if path.stat().st_size != size:
                return False
            _read(path)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def _sidecars(checkpoint: Path) -> list[tuple[str, int]]:
    """Read a checkpoint; return names and sizes of its sidecar files. Raises errors of a torn file."""
    if checkpoint.suffix == ".json":
        actions = map(json.loads, checkpoint.read_bytes().splitlines())
        sidecars = [action["sidecar"] for action in actions if "sidecar" in action]
    else:
        file = pq.ParquetFile(checkpoint)
        has_sidecars = "sidecar" in file.schema_arrow.names
        sidecars = (
            [sidecar for sidecar in file.read(["sidecar"])["sidecar"].to_pylist() if sidecar] if has_sidecars else []
        )
        _read(checkpoint)
    return [(str(sidecar["path"]), int(sidecar["sizeInBytes"])) for sidecar in sidecars]


def _read(path: Path) -> None:
    for _ in pq.ParquetFile(path).iter_batches():
        pass


def _quarantine(torn: Sequence[Path], quarantine: Path) -> None:
    """Move the torn files, and delete what depends on them."""
    log = torn[-1].parent
    _log.warning("%s: was torn by a loss of power, and is set aside in %s", torn[-1], quarantine)
    hint = log / "_last_checkpoint"  # without it Delta looks for the last one
    for path in (hint, *torn):
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    hint.unlink(missing_ok=True)
    for path in filter(Path.exists, torn):
        path.replace(quarantine / path.name)
    if torn[-1].stem.isdigit() and int(torn[-1].stem) == 0:  # Delta makes no table where there is something else
        shutil.rmtree(log)
        log = log.parent
    sync_directory(log)


def is_whole(commit: Path) -> bool:
    """Return whether a commit is as it was written, as far as it can be checked.

    Each line has to be JSON. Hadoop's checksums decide if they exist; else a commit of an export must have as many
    files as its metrics count.
    """
    data = commit.read_bytes()
    try:
        actions = [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return False
    if not actions or not all(isinstance(action, dict) for action in actions):
        return False
    sums = commit.with_name(f".{commit.name}.crc")
    return _matches(data, sums.read_bytes()) if sums.exists() else _has_its_files(actions)


def _matches(data: bytes, sums: bytes) -> bool:
    chunk_bytes = int.from_bytes(sums[len(_MAGIC) : _HEAD_BYTES], "big")
    if not sums.startswith(_MAGIC) or chunk_bytes == 0:
        return False
    crcs = [zlib.crc32(data[at : at + chunk_bytes]) for at in range(0, len(data), chunk_bytes)]
    return sums[_HEAD_BYTES:] == b"".join(crc.to_bytes(4, "big") for crc in crcs)


def _has_its_files(actions: list[dict[str, Any]]) -> bool:
    """Return whether a commit of an export has the files that it counts; other programs' commits count as whole.

    An export's transaction versions precede its files: the first part of a commit either has them, or changes nothing.
    delta-rs writes them last, so that its commits have their number in front.
    """
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    if sum("txn" in action for action in actions) < int(info.get(TRANSACTIONS, 0)):
        return False
    if not any(action["txn"]["appId"].startswith(APP_PREFIX) for action in actions if "txn" in action):
        return True
    metrics = info.get("operationMetrics", {})
    added = max(int(metrics.get(name, 0)) for name in ("numFiles", "numTargetFilesAdded"))
    removed = int(metrics.get("numTargetFilesRemoved", 0))
    return added <= sum("add" in each for each in actions) and removed <= sum("remove" in each for each in actions)
