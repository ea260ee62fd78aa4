"""Executes a repair plan with a journal: copies bytes aside, writes the plan down, then applies it idempotently.

``STORE/quarantine/NNNN/`` holds one repair: the bytes that it overwrote, each at its file's path and position, the
files that it put aside, and the plan. While the repair is under way the plan is called ``plan.json``; a run that
finds one completes that repair before it does anything else. When all is done it becomes ``manifest.json``.
Copies are made in ``STORE/quarantine/unfinished/``, which gets its number when the plan is in it: only it may
be deleted, as the store is unchanged until then.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np

from rmq_formats.errors import StoreError
from rmq_formats.repair.filler import MAX_BYTES, Fill, Stretch
from rmq_formats.repair.plan import RepairPlan
from rmq_formats.storage.segments import LocalStorage, opened
from rmq_formats.tasks.publish import sync_directory, sync_file_system, write_forced

DIRECTORY: Final = "quarantine"
PLAN: Final = "plan.json"
MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "unfinished"


def pending(root: Path) -> tuple[Path, RepairPlan] | None:
    """Find the repair that a killed run left: its directory and its plan. Raises StoreError."""
    for directory in _repairs(root):
        if (directory / PLAN).exists():
            return directory, _plan_in(directory / PLAN)
    return None


def manifests(root: Path) -> list[RepairPlan]:
    """Read the plans of the repairs that were completed. Raises StoreError."""
    return [_plan_in(directory / MANIFEST) for directory in _repairs(root) if (directory / MANIFEST).exists()]


def _repairs(root: Path) -> list[Path]:
    """List the directories of repairs, the first one first, whatever is left in them."""
    numbered = [path for path in (root / DIRECTORY).glob("*") if path.name.isascii() and path.name.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name))


def _plan_in(note: Path) -> RepairPlan:
    try:
        return RepairPlan.from_json(note.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.ValidationError) as error:
        raise StoreError(f"{note}: is no plan of a repair ({error}); move {note.parent} away") from error


def begin(root: Path, plan: RepairPlan) -> Path:
    """Copy aside what will be overwritten, and write the plan down; return the directory of both.

    Raises:
        StoreError: a file cannot be read any more.
    """
    last = max((int(path.name) for path in _repairs(root)), default=0)
    directory = root / DIRECTORY / UNFINISHED
    if directory.exists():  # left by a run that was killed before it changed anything
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for stretch in plan.stretches:
        if stretch.held:
            _copy(root / stretch.path, stretch.position, stretch.held, _made(directory / stretch.copy))
    for name in (*plan.configs, *(["checkpoint"] if plan.checkpoint else [])):
        if name not in plan.moves and (root / name).is_file():
            shutil.copyfile(root / name, _made(directory / name))
    sync_file_system(directory)
    write_forced(directory / PLAN, plan.to_json().encode())
    numbered = directory.with_name(f"{last + 1:04d}")
    directory.rename(numbered)
    sync_file_system(numbered)
    return numbered


def end(directory: Path) -> None:
    """Mark a plan as completed."""
    (directory / PLAN).rename(directory / MANIFEST)
    sync_directory(directory)  # else the plan may come back, and undo what the broker writes from now on


def change(root: Path, directory: Path, plan: RepairPlan) -> None:
    """Apply a plan's changes of files; a change that is done already stays as it is.

    Raises:
        StoreError: the log is neither as it was when the plan was made, nor on the way to what is planned.
    """
    moves = [path for path in plan.moves if os.path.lexists(root / path) and not os.path.lexists(directory / path)]
    for what in _changed(root, directory, plan, moves):
        note = f"{DIRECTORY}/{directory.name}/{PLAN}"
        raise StoreError(f"{what} since a repair began; delete {note} to plan the repair again")
    for path in moves:  # moves come first: a log file may have to be created where a directory stands
        (root / path).rename(_made(directory / path))
    for stretch in plan.stretches:
        _overwrite(root / stretch.path, stretch)
    for path, size_bytes in plan.sizes:
        with _opened(root / path) as file:
            if os.fstat(file.fileno()).st_size != size_bytes:
                file.truncate(size_bytes)
    for path in plan.configs:
        write_forced(root / path, (root / f"{path}.bak").read_bytes())
    sync_file_system(root)


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _copy(source: Path, position: int, size: int, target: Path) -> None:
    with source.open("rb") as file, target.open("wb") as copy:
        file.seek(position)
        while size:
            piece = file.read(min(size, MAX_BYTES))
            if not piece:
                raise StoreError(f"{source}: became shorter while it was read")
            copy.write(piece)
            size -= len(piece)


def _opened(path: Path) -> BinaryIO:
    """Open a log file for writing; it is created if there is none."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")


def _overwrite(path: Path, stretch: Stretch) -> None:
    if stretch.fill is Fill.NONE:
        return
    with _opened(path) as file:
        file.seek(stretch.position)
        for piece in stretch.image():
            file.write(piece)


def _changed(root: Path, directory: Path, plan: RepairPlan, moves: list[str]) -> Iterator[str]:
    """Find what somebody else has written since the plan was made, where the plan would overwrite it or cut it off."""
    for stretch in plan.stretches:
        path = root / stretch.path
        is_there = path.is_file() and stretch.path not in moves
        if is_there and not _is_own(path, directory / stretch.copy, stretch):
            yield f"{path}: was changed at {stretch.physical_offset}"
    surplus = {stretch.path: stretch.size for stretch in plan.stretches if stretch.fill is Fill.NONE}
    for name, size_bytes in plan.sizes:
        path = root / name
        if name not in moves and path.is_file() and path.stat().st_size > size_bytes + surplus.get(name, 0):
            yield f"{path}: was changed, it has become longer"
    for name in plan.configs:
        path = root / name
        known = {file.read_bytes() for file in (directory / name, root / f"{name}.bak") if file.is_file()}
        if name not in moves and path.is_file() and path.read_bytes() not in known:
            yield f"{path}: was changed"


def _is_own(path: Path, copy: Path, stretch: Stretch) -> bool:
    """Return whether a stretch holds what its copy does, or what this repair wrote there."""
    pieces = _zeros(stretch.held) if stretch.fill is Fill.NONE else stretch.image()
    with path.open("rb") as file, (copy if stretch.held else Path(os.devnull)).open("rb") as old:
        file.seek(stretch.position)
        for piece in pieces:
            size = len(piece)
            if not _is_between(old.read(size).ljust(size, b"\0"), file.read(size).ljust(size, b"\0"), piece):
                return False
    if stretch.fill is Fill.NONE:
        with opened(LocalStorage(), str(path)) as range_of:
            return range_of.data_end() <= stretch.position + stretch.held
    return True


def _zeros(size: int) -> Iterator[bytes]:
    for begin in range(0, size, MAX_BYTES):
        yield bytes(min(MAX_BYTES, size - begin))


def _is_between(old: bytes, now: bytes, new: bytes) -> bool:
    """Return whether each byte is the old one or the new one, as a write that was cut short leaves them."""
    if now in (old, new):
        return True
    was, found, wanted = (np.frombuffer(data, dtype=np.uint8) for data in (old, now, new))
    return bool(((found == was) | (found == wanted)).all())
