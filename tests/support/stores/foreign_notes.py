"""Stores of strangers: what somebody else may plant in a store, and a house beside it in which nothing may change."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Plant = Callable[[Path], None]


def house(root: Path) -> Path:
    """The operator's files beside a store."""
    for name in (".bashrc", "documents/thesis", "ledger/book"):
        path = root / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"the only copy of {name}\n")
    return root / "home"


def inventory(directory: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """All that is in a directory: type, inode, time of the last change, content."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        found[str(path)] = (
            status.st_mode, status.st_ino, status.st_mtime_ns, path.read_bytes() if path.is_file() else b""
        )  # fmt: skip
    return found


def note(work: str, names: dict[str, int], retired: tuple[str, ...] = ()) -> Plant:
    """A note of an interrupted publication, with a directory for each plain name."""

    def plant(store: Path) -> None:
        area = store / work
        (area / "new").mkdir(parents=True)
        (area / "publish.json").write_text(json.dumps({"new": names, "retired": list(retired)}))

    return plant


def link(path: str, target: str) -> Plant:
    """A link in the place of whatever is there."""

    def plant(store: Path) -> None:
        place = store / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.exists() and not place.is_symlink():
            place.rename(store.parent / f"aside-{place.name}")
        place.symlink_to(target)

    return plant


def pipe(path: str) -> Plant:
    """A named pipe in the place of a file: whoever opens it as a file waits for ever."""

    def plant(store: Path) -> None:
        place = store / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        os.mkfifo(place)

    return plant


def both(*plants: Plant) -> Plant:
    """Several of them."""

    def plant(store: Path) -> None:
        for single in plants:
            single(store)

    return plant


def text(path: str, value: Any) -> Plant:
    """A file with a JSON value."""

    def plant(store: Path) -> None:
        place = store / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(value))

    return plant
