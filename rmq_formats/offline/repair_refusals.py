"""What a repair refuses, before it has changed anything."""

import os
from collections.abc import Iterator
from pathlib import Path

from rmq_formats import paths
from rmq_formats.errors import StoreError
from rmq_formats.offline.repair_journal import DIRECTORY
from rmq_formats.offline.repair_plan import RepairPlan
from rmq_formats.topics import LIGHT_QUEUE_PREFIX


def refuse_store(root: str) -> None:
    """Refuse a store that no plan can be made for.

    Raises:
        StoreError: light queues, a directory that cannot be listed or leads to nowhere, or something in the log's
            directory that stands in a file's place and must not be taken for a file that is lost.
    """
    queues = Path(paths.consumequeue_dir(root))
    if any(queues.glob(f"{LIGHT_QUEUE_PREFIX}*")):
        raise StoreError(f"{root}: has light queues (LMQ), which a rebuild does not make; it cannot be repaired")
    derived = (queues, Path(paths.consumequeue_ext_dir(root)), Path(paths.index_dir(root)))
    for path in _directories(*derived):
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise StoreError(f"{path}: cannot be listed (Permission denied)")
    directory = Path(paths.commitlog_dir(root))
    for path in (directory, *directory.glob("*"), *derived):
        if path.is_symlink() and not path.exists():
            raise StoreError(f"{path}: a link to nowhere; bring back what it leads to, or take it away")
        if path not in derived and path.exists() and not path.is_file() and not path.is_dir():
            raise StoreError(f"{path}: neither a file nor a directory; take it away")


def _directories(*trees: Path) -> Iterator[Path]:
    """The trees themselves, and what is in them down to a queue's directory."""
    for tree in trees:
        yield tree
        if os.access(tree, os.R_OK | os.X_OK):
            yield from (path for pattern in ("*", "*/*") for path in tree.glob(pattern))


def refuse_plan(root: Path, plan: RepairPlan) -> None:
    """Refuse a plan that would stop in its middle.

    Raises:
        StoreError: a file or directory that it changes must not be written, or one that it copies aside not be read,
            or one that it moves aside is on another file system.
    """
    changed = {root / path for path in (*(item.path for item in plan.stretches), *(path for path, _ in plan.sizes))}
    for path in sorted({*changed, *((root / path).parent for path in (*plan.moves, *plan.configs)), root}):
        place = path if path.exists() else path.parent
        if not os.access(place, os.W_OK):
            raise StoreError(f"{place}: cannot be written (Permission denied)")
    for path in (root / name for name in (*plan.configs, *(["checkpoint"] if plan.checkpoint else []))):
        if path.is_file() and not os.access(path, os.R_OK):
            raise StoreError(f"{path}: cannot be read (Permission denied)")
    quarantine = root / DIRECTORY
    device = (quarantine if quarantine.exists() else root).stat().st_dev
    for path in (root / name for name in plan.moves):
        if {path.parent.stat().st_dev, path.lstat().st_dev} != {device}:
            raise StoreError(f"{path}: in the way, and on another file system than {quarantine}; move it away by hand")
