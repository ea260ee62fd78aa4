"""Carries out a repair's plan: bytes aside first, then the plan written down, then the changes, which may run twice.

``STORE/quarantine/NNNN/`` holds one repair: the bytes that it overwrote, each at its file's path and position, the
files that it put aside, and the plan. While the repair is under way the plan is called ``plan.json``; a run that
finds one ends that repair before it looks for anything else. When all is done it becomes ``manifest.json``.
"""

import os
import shutil
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from rmq_formats.errors import StoreError
from rmq_formats.offline.publish import sync_file_system
from rmq_formats.offline.repair_filler import MAX_BYTES, Fill, Stretch
from rmq_formats.offline.repair_plan import RepairPlan

DIRECTORY: Final = "quarantine"
PLAN: Final = "plan.json"
MANIFEST: Final = "manifest.json"


def pending(root: Path) -> tuple[Path, RepairPlan] | None:
    """The repair that a killed run left: its directory and its plan. Raises StoreError."""
    for note in sorted((root / DIRECTORY).glob(f"*/{PLAN}")):
        return note.parent, _plan_in(note)
    return None


def manifests(root: Path) -> list[RepairPlan]:
    """The repairs that were done. Raises StoreError."""
    return [_plan_in(note) for note in sorted((root / DIRECTORY).glob(f"*/{MANIFEST}"))]


def _plan_in(note: Path) -> RepairPlan:
    try:
        return RepairPlan.from_json(note.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{note}: is no plan of a repair ({error}); move {note.parent} away") from error


def begin(root: Path, plan: RepairPlan) -> Path:
    """Copy aside what will be overwritten, and write the plan down; the directory of both.

    Raises:
        StoreError: a file cannot be read any more.
    """
    done = sum(1 for _ in (root / DIRECTORY).glob(f"*/{MANIFEST}"))
    directory = root / DIRECTORY / f"{done + 1:04d}"
    if directory.exists():  # of a run that was killed before it had changed anything
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    for stretch in plan.stretches:
        if stretch.held:
            _copy(root / stretch.path, stretch.position, stretch.held, _made(directory / stretch.copy))
    has_checkpoint = plan.checkpoint and (root / "checkpoint").is_file() and "checkpoint" not in plan.moves
    for name in (*plan.configs, *(["checkpoint"] if has_checkpoint else [])):
        shutil.copyfile(root / name, _made(directory / name))
    sync_file_system(directory)
    write_whole(directory / PLAN, plan.to_json().encode())
    sync_file_system(directory)
    return directory


def end(directory: Path) -> None:
    """All of a plan is done."""
    (directory / PLAN).rename(directory / MANIFEST)


def change(root: Path, directory: Path, plan: RepairPlan) -> None:
    """Do what a plan says about files; what is done already stays as it is.

    Raises:
        StoreError: the log is neither as it was when the plan was made, nor on its way to what is planned.
    """
    for path in plan.moves:  # first: a log file may have to be made where a directory stands
        if (root / path).exists() and not (directory / path).exists():
            (root / path).rename(_made(directory / path))
    for stretch in plan.stretches:
        _overwrite(root / stretch.path, directory / stretch.copy, stretch)
    for path, size_bytes in plan.sizes:
        with _opened(root / path) as file:
            if os.fstat(file.fileno()).st_size != size_bytes:
                file.truncate(size_bytes)
    for path in plan.configs:
        write_whole(root / path, (root / f"{path}.bak").read_bytes())
    sync_file_system(root)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole or as it was."""
    temporary = path.with_name(f"{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
    """A log file to be written in; made if there is none."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b")


def _overwrite(path: Path, copy: Path, stretch: Stretch) -> None:
    """Write what a stretch is to hold, once it is clear that nobody else has written there since."""
    if stretch.fill is Fill.NONE:
        return
    with _opened(path) as file:
        with (copy if stretch.held else Path(os.devnull)).open("rb") as old:
            file.seek(stretch.position)
            for piece in stretch.image():
                size = len(piece)
                if not _is_between(old.read(size).ljust(size, b"\0"), file.read(size).ljust(size, b"\0"), piece):
                    raise StoreError(
                        f"{path}: was changed at {stretch.physical_offset} since a repair began; delete "
                        f"{DIRECTORY}/{copy.parents[1].name}/{PLAN} to begin anew"
                    )
        file.seek(stretch.position)
        for piece in stretch.image():
            file.write(piece)


def _is_between(old: bytes, now: bytes, new: bytes) -> bool:
    """Whether each byte is the old one or the new one, as a write that was cut short leaves them."""
    if now in (old, new):
        return True
    was, found, wanted = (np.frombuffer(data, dtype=np.uint8) for data in (old, now, new))
    return bool(((found == was) | (found == wanted)).all())
