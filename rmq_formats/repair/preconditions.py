"""Preconditions of a repair, checked before anything is changed."""

import os
from collections.abc import Iterator
from pathlib import Path

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreError, StoreLayoutError
from rmq_formats.repair.filler import Fill, Stretch
from rmq_formats.repair.journal import DIRECTORY
from rmq_formats.repair.plan import RepairPlan
from rmq_formats.storage import store_variants
from rmq_formats.storage.segments import LocalStorage
from rmq_formats.verify import finding_kinds
from rmq_formats.verify.report import VerifyReport


def refuse_store(root: str) -> None:
    """Refuse a store for which no plan can be made.

    Raises:
        StoreLayoutError: a layout that no repair brings back.
        StoreError: a directory that cannot be listed or leads to nowhere, or something in the log's
            directory that stands in a file's place and must not be taken for a file that is lost.
    """
    store_variants.refuse(store_variants.no_write(store_variants.recognise(LocalStorage(), root)))
    queues = Path(paths.consumequeue_dir(root))
    derived = (queues, Path(paths.consumequeue_ext_dir(root)), Path(paths.index_dir(root)))
    for path in _directories(*derived):
        if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
            raise StoreError(f"{path}: cannot be listed (Permission denied)")
    directory = Path(paths.commitlog_dir(root))
    for path in (directory, *directory.glob("*"), *derived):
        if path.is_symlink() and not path.exists():
            raise StoreError(f"{path}: a link to nowhere; restore its target, or remove the link")
        if path not in derived and path.exists() and not path.is_file() and not path.is_dir():
            raise StoreError(f"{path}: neither a file nor a directory; remove it")


def refuse_layouts(root: str, plan: RepairPlan, report: VerifyReport) -> None:
    """Refuse a plan with a step that a layout of the store forbids. Raises StoreLayoutError."""
    found = store_variants.recognise(LocalStorage(), root)
    if plan.rebuild:
        for finding in report.findings:
            if finding.kind is finding_kinds.NOT_CHECKED:  # by its records: the queues' directories may be lost
                place = finding.path or f"{paths.consumequeue_dir(root)}/{finding.topic}"
                raise StoreLayoutError(f"{place}: {finding.detail}, so there is no repair")
    if any(_is_cut(item) for item in plan.stretches):
        store_variants.refuse(store_variants.no_cut(found))


def _is_cut(stretch: Stretch) -> bool:
    """Whether a stretch is the log's torn tail, behind which nothing is left."""
    return stretch.fill is Fill.ZEROS and stretch.code != finding_kinds.LOG_AFTER_BLANK.code


def _directories(*trees: Path) -> Iterator[Path]:
    """List the store's directory trees, down to a queue's directory."""
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
