"""Executes a repair plan with a journal: copies bytes aside, writes the plan down, then applies it idempotently.

``STORE/quarantine/NNNN/`` holds one repair: the bytes that it overwrote, each at its file's path and position, the
files that it put aside, and the plan. While the repair is under way the plan is called ``plan.json``; a run that
finds one completes that repair before it does anything else. When all is done it becomes ``manifest.json``.
Copies are made in ``STORE/quarantine/unfinished/``, which gets its number when the plan is in it: only it may
be deleted, as the store is unchanged until then.

A plan is read from a file in the store, which may be somebody else's. All of its paths must be below the directories
that a repair works on, and none of its ranges may be larger than a file of the log.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError
from rmq_formats.storage.contained import (
    is_there,
    names_in,
    open_file,
    parent_directory,
    read_file,
    real_directory,
    root_directory,
    split_path,
    write_file,
)
from rmq_formats.storage.segments import LocalStorage
from rmq_offline.repair.filler import MAX_BYTES, Fill, LogRange
from rmq_offline.repair.plan import RepairPlan
from rmq_offline.tasks.origin import InterruptedRunPolicy, add_seal, check_origin
from rmq_offline.tasks.publish import rename_aside, sync_directory, sync_file_system

_MAX_FILE_BYTES: Final = 1 << 31  # mappedFileSizeCommitLog is a Java int
_MAX_OFFSET: Final = (1 << 63) - 1
_MAX_WRITTEN_BYTES: Final = 1 << 10  # of an entry's head or a file's end mark, which are the only certain bytes
_MOVED: Final = re.compile(r"commitlog|consumequeue[A-Za-z_]*|batchconsumequeue|index|config|checkpoint|dledger-[^/]+")
_DLEDGER: Final = re.compile(r"dledger-[^/]+")
_CONFIG: Final = re.compile(r"config/[A-Za-z0-9_.-]+\.json")
_CHECKPOINT: Final = re.compile(r"committedIndex=-?[0-9]{1,19}\nendIndex=-?[0-9]{1,19}\n")
DIRECTORY: Final = "quarantine"
PLAN: Final = "plan.json"
MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "unfinished"


def read_pending_plan(
    root: Path, leftover: InterruptedRunPolicy = InterruptedRunPolicy.REFUSE
) -> tuple[Path, RepairPlan] | None:
    """Return directory and plan of a killed repair; None without one.

    The plan may name only what a repair changes. The plan must be from this user's own run in this store, unless the
    operator resumes it. Raises StoreError.
    """
    for directory in _repairs(root):
        if os.path.lexists(directory / PLAN):
            return directory, _read_plan(root, directory.name, PLAN, leftover)
    return None


def rename_pending_plan(root: Path) -> None:
    """Rename the plan of an interrupted repair, so that the store is verified and the repair planned again."""
    for directory in _repairs(root):
        path = f"{DIRECTORY}/{directory.name}/{PLAN}"
        if os.path.lexists(root / path):
            with parent_directory(root, path) as (parent, name):
                rename_aside(name, parent)


def manifests(root: Path) -> list[RepairPlan]:
    """Read the plans of the repairs that were completed. Raises StoreError."""
    directories = [directory for directory in _repairs(root) if os.path.lexists(directory / MANIFEST)]
    return [_read_plan(root, directory.name, MANIFEST) for directory in directories]


def _repairs(root: Path) -> list[Path]:
    """List the directories of repairs, the first one first, also those without a plan. Raises StoreError for a link."""
    with root_directory(root) as parent:
        if not is_there(DIRECTORY, parent):
            return []
        with real_directory(DIRECTORY, parent, root / DIRECTORY) as directory:
            names = [name for name in names_in(directory) if name.isascii() and name.isdecimal()]
    return [root / DIRECTORY / name for name in sorted(names, key=int)]


def _read_plan(root: Path, number: str, name: str, leftover: InterruptedRunPolicy | None = None) -> RepairPlan:
    """Read a plan; with ``leftover``, check the origin of a plan that will be applied."""
    path = f"{DIRECTORY}/{number}/{name}"
    shown, way = root / path, f"move {root / DIRECTORY / number} away"
    data = read_file(root, path)
    try:
        note = json.loads(data or b"")
        plan = RepairPlan.from_json(json.dumps(note))
        check_plan(plan)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        raise StoreError(f"{shown}: is no plan of a repair ({error}); {way}") from error
    except StoreError as error:
        raise StoreError(f"{shown}: {error}; {way}") from error
    if leftover is not None:
        subject = f"the plan of an interrupted repair ({len(plan.log_ranges)} ranges, {len(plan.moves)} moves)"
        check_origin(note, str(root), shown, subject, leftover)
    return plan


def start_repair(root: Path, plan: RepairPlan) -> Path:
    """Copy the bytes that will be overwritten, and write the plan; return the directory of both. Raises StoreError."""
    check_plan(plan)
    last = max((int(path.name) for path in _repairs(root)), default=0)
    unfinished = f"{DIRECTORY}/{UNFINISHED}"
    with parent_directory(root, unfinished, create=True) as (quarantine, name):
        if is_there(name, quarantine):  # left by a run that was killed before it changed anything
            shutil.rmtree(name, dir_fd=quarantine)
        os.mkdir(name, dir_fd=quarantine)
        directory = root / unfinished
        for log_range in plan.log_ranges:
            if log_range.existing_bytes:
                _copy(root, log_range, _create_parents(directory / log_range.copy))
        for config in (*plan.configs, *(["checkpoint"] if plan.checkpoint else [])):
            if config not in plan.moves and (root / config).is_file():
                _create_parents(directory / config).write_bytes(read_file(root, config) or b"")
        sync_file_system(directory)
        note = add_seal(json.loads(plan.to_json()), str(root))
        write_file(root, f"{unfinished}/{PLAN}", json.dumps(note, indent=1).encode())
        numbered = f"{last + 1:04d}"
        os.rename(name, numbered, src_dir_fd=quarantine, dst_dir_fd=quarantine)
    sync_file_system(root / DIRECTORY / numbered)
    return root / DIRECTORY / numbered


def complete_repair(directory: Path) -> None:
    """Replace a plan by its manifest, without origin and seal: the repair is complete."""
    root, path = directory.parent.parent, f"{DIRECTORY}/{directory.name}"
    note = json.loads(read_file(root, f"{path}/{PLAN}") or b"{}")
    done = {name: value for name, value in note.items() if name not in {"origin", "seal"}}
    write_file(root, f"{path}/{MANIFEST}", json.dumps(done, indent=1).encode())
    (directory / PLAN).unlink()
    sync_directory(directory)  # else the plan may come back, and undo what the broker writes from now on


def refuse_links(root: Path, plan: RepairPlan) -> None:
    """Refuse a plan that would change a file through a link, or a file with several names. Raises StoreError."""
    check_plan(plan)
    for path in changed_files(plan):
        if path in plan.moves:
            continue
        with suppress(FileNotFoundError):
            os.close(open_file(root, path, os.O_RDWR))
    entries = () if plan.entries is None else (f"{plan.entries.directory}/checkpoint",)
    for path in (*plan.moves, *plan.configs, *entries, f"{DIRECTORY}/{PLAN}"):
        with suppress(FileNotFoundError), parent_directory(root, path):
            pass


def apply_plan(root: Path, directory: Path, plan: RepairPlan) -> None:
    """Apply a plan's changes of files; a change that is done already stays as it is.

    Raises:
        StoreError: somebody else has changed the log since the plan was made, or a link is on the way to a file.
    """
    refuse_links(root, plan)
    moves = [path for path in plan.moves if os.path.lexists(root / path) and not os.path.lexists(directory / path)]
    aside = f"{DIRECTORY}/{directory.name}"
    for foreign_change in _foreign_changes(root, directory, plan, moves):
        raise StoreError(f"{foreign_change} since a repair began; delete {aside}/{PLAN} to plan the repair again")
    for path in moves:  # moves come first: a log file may have to be created where a directory stands
        move_aside(root, path, f"{aside}/{path}")
    for log_range in plan.log_ranges:
        _overwrite(root, log_range)
    for path, size_bytes in plan.sizes:
        with _open_log(root, path) as file:
            if os.fstat(file.fileno()).st_size != size_bytes:
                file.truncate(size_bytes)
    for path in plan.configs:
        data = read_file(root, f"{path}.bak")
        if data is None:
            raise StoreError(f"{root / path}.bak: no such file")
        write_file(root, path, data)
    sync_file_system(root)


def move_aside(root: Path, path: str, aside: str) -> None:
    """Move a file or directory below a root to a path of the same name; directories to the path are created."""
    with parent_directory(root, path) as (parent, name), parent_directory(root, aside, create=True) as (target, _):
        os.rename(name, name, src_dir_fd=parent, dst_dir_fd=target)


def _create_parents(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy(root: Path, log_range: LogRange, target: Path) -> None:
    remaining = log_range.existing_bytes
    with os.fdopen(open_file(root, log_range.path), "rb") as file, target.open("wb") as copy:
        file.seek(log_range.position)
        while remaining:
            piece = file.read(min(remaining, MAX_BYTES))
            if not piece:
                raise StoreError(f"{root / log_range.path}: became shorter while it was read")
            copy.write(piece)
            remaining -= len(piece)


def _open_log(root: Path, path: str) -> BinaryIO:
    return os.fdopen(open_file(root, path, os.O_RDWR | os.O_CREAT), "r+b")


def _overwrite(root: Path, log_range: LogRange) -> None:
    if log_range.fill is Fill.NONE:
        return
    with _open_log(root, log_range.path) as file:
        file.seek(log_range.position)
        for piece in log_range.image():
            file.write(piece)


def _foreign_changes(root: Path, directory: Path, plan: RepairPlan, moves: list[str]) -> Iterator[str]:
    """Find foreign changes since the plan was made, where the plan would overwrite or truncate a file."""
    for log_range in plan.log_ranges:
        path = root / log_range.path
        is_there = path.is_file() and log_range.path not in moves
        if log_range.existing_bytes and log_range.path not in plan.moves and not path.exists():
            yield f"{path}: was deleted"
        if is_there and not _is_own(root, directory.name, log_range):
            yield f"{path}: was changed at {log_range.physical_offset}"
    surplus = {log_range.path: log_range.size for log_range in plan.log_ranges if log_range.fill is Fill.NONE}
    for name, size_bytes in plan.sizes:
        path = root / name
        if name not in moves and path.is_file() and path.stat().st_size > size_bytes + surplus.get(name, 0):
            yield f"{path}: was changed, it has become longer"
    for name in plan.configs:
        path = root / name
        copies = (f"{DIRECTORY}/{directory.name}/{name}", f"{name}.bak")
        copied_bytes = {read_file(root, copy) for copy in copies if (root / copy).is_file()}
        if name not in moves and path.is_file() and read_file(root, name) not in copied_bytes:
            yield f"{path}: was changed"


def _is_own(root: Path, number: str, log_range: LogRange) -> bool:
    """Return whether a range has the bytes of its copy, or the bytes that this repair wrote."""
    pieces = _zeros(log_range.existing_bytes) if log_range.fill is Fill.NONE else log_range.image()
    with os.fdopen(open_file(root, log_range.path), "rb") as file, _open_copy(root, number, log_range) as old:
        file.seek(log_range.position)
        for piece in pieces:
            size = len(piece)
            if not _is_between(old.read(size).ljust(size, b"\0"), file.read(size).ljust(size, b"\0"), piece):
                return False
    if log_range.fill is Fill.NONE:
        with LocalStorage().open(str(root / log_range.path)) as range_of:
            return range_of.data_end() <= log_range.position + log_range.existing_bytes
    return True


def _open_copy(root: Path, number: str, log_range: LogRange) -> BinaryIO:
    if not log_range.existing_bytes:
        return Path(os.devnull).open("rb")
    return os.fdopen(open_file(root, f"{DIRECTORY}/{number}/{log_range.copy}"), "rb")


def _zeros(size: int) -> Iterator[bytes]:
    for begin in range(0, size, MAX_BYTES):
        yield bytes(min(MAX_BYTES, size - begin))


def _is_between(old: bytes, now: bytes, new: bytes) -> bool:
    """Return whether each byte is the old one or the new one, as an interrupted write leaves the bytes."""
    if now in (old, new):
        return True
    former, current, written = (np.frombuffer(data, dtype=np.uint8) for data in (old, now, new))
    return bool(((current == former) | (current == written)).all())


def check_plan(plan: RepairPlan) -> None:
    """Refuse a plan that names anything but what a repair changes. Raises StoreError."""
    for log_range in plan.log_ranges:
        _check_log_file(log_range.path)
        _check_range(log_range)
    for path, size_bytes in plan.sizes:
        _check_log_file(path)
        if not 0 <= size_bytes <= _MAX_FILE_BYTES:
            raise StoreError(f"{path!r}: {size_bytes} bytes, which no file of a log has")
    for path in plan.moves:
        if not _MOVED.fullmatch(split_path(path)[0]):
            raise _refusal(path)
    for path in plan.configs:
        split_path(path)
        if not _CONFIG.fullmatch(path):
            raise _refusal(path)
    if plan.entries is not None:
        (name, *rest) = split_path(plan.entries.directory)
        if rest or not _DLEDGER.fullmatch(name):
            raise _refusal(plan.entries.directory)
        if plan.entries.checkpoint is not None and not _CHECKPOINT.fullmatch(plan.entries.checkpoint):
            raise StoreError(f"{name}/checkpoint: {plan.entries.checkpoint!r} is no checkpoint of DLedger")


def changed_files(plan: RepairPlan) -> Iterable[str]:
    """List the log files that a plan writes into, creates or resizes."""
    return dict.fromkeys([*(log_range.path for log_range in plan.log_ranges), *(path for path, _ in plan.sizes)])


def _check_log_file(path: str) -> None:
    names = split_path(path)
    is_log = names[:-1] == ["commitlog"]
    is_entries = len(names) == 3 and _DLEDGER.fullmatch(names[0]) is not None and names[1] == "data"
    if not (is_log or is_entries) or paths.parse_segment_name(names[-1]) is None:
        raise _refusal(path)


def _check_range(log_range: LogRange) -> None:
    limit = _MAX_OFFSET if log_range.fill is Fill.NONE else _MAX_FILE_BYTES  # a file that is cut off may be of any size
    is_sound = (
        0 <= log_range.existing_bytes <= log_range.size
        and log_range.position >= 0
        and log_range.position + log_range.size <= limit
        and len(log_range.written) <= 2 * min(log_range.size, _MAX_WRITTEN_BYTES)
    )
    if not is_sound:
        raise StoreError(
            f"{log_range.path!r}: {log_range.size} bytes at {log_range.position} are no range of a log's file"
        )


def _refusal(path: str) -> StoreError:
    return StoreError(f"{path!r}: not among the files that a repair changes")
