"""Preconditions of a repair, checked before anything is changed."""

import os
from collections.abc import Iterator
from pathlib import Path

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError, StoreError, StoreNotFoundError
from rmq_formats.kernels.dispatch import MARK_BATCH
from rmq_formats.read.broker_config import lists_all_topics, stored_batch_topics, stored_topics
from rmq_formats.storage import layout_refusals
from rmq_formats.storage.rocksdb import library
from rmq_formats.storage.segments import list_segments
from rmq_formats.storage.store_files import StoreFiles, open_store, refuse_no_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.rebuild.queue_database import refuse_open_database
from rmq_offline.repair.filler import Fill
from rmq_offline.repair.journal import DIRECTORY, refuse_links
from rmq_offline.repair.plan import RepairPlan
from rmq_offline.repair.scan import dispatch_segment
from rmq_offline.tasks.unknown_files import refuse_unknown_files
from rmq_offline.verify import finding_kinds


def open_repairable_store(store: str) -> StoreFiles:
    """Open a store on a local disk. Raises OptionError for an object store, StoreNotFoundError."""
    if "://" in store and not store.startswith("file://"):
        raise OptionError(f"{store}: a repair is made on a local disk or a shared mount")
    files = open_store(store)
    if not files.storage.exists(files.root):
        raise StoreNotFoundError(f"{files.root}: no such store")
    refuse_no_store(files.storage, files.root)
    return files


def refuse_store(store: StoreFiles) -> None:
    """Refuse a store for which no plan can be made.

    Raises:
        StoreLayoutError: a layout that no repair brings back.
        StoreLockedError: a running broker has a RocksDB of the store open.
        FormatError: topics in a RocksDB that cannot be read, without which no queues are made.
        StoreError: a directory that cannot be listed or leads to nowhere, or in the log's directory something else in
            a file's place, which must not count as a lost file.
    """
    root = store.root
    layout_refusals.refuse(layout_refusals.repair_refusal(store.layouts))
    store.refuse_compressed_segments()
    if store.layouts.rebuilds_as_database:
        library(root)
        refuse_open_database(paths.consumequeue_dir(root))
        refuse_unknown_files(store, ["consumequeue"])
    if StoreLayout.ROCKSDB_CONFIG in store.layouts:
        stored_batch_topics(store)
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


def refuse_layouts(store: StoreFiles, plan: RepairPlan) -> None:
    """Refuse a plan with a step that a layout of the store forbids. Raises StoreLayoutError."""
    if plan.rebuild:
        _refuse_unlisted_batch_topics(store)
    after_blank = finding_kinds.LOG_AFTER_BLANK.code  # other zeros overwrite the log's torn tail
    if any(item.fill is Fill.ZEROS and item.code != after_blank for item in plan.log_ranges):
        layout_refusals.refuse(layout_refusals.truncate_refusal(store.layouts))


def _refuse_unlisted_batch_topics(store: StoreFiles) -> None:
    """Refuse a plan whose rebuild would be refused after the log's change, since no config lists batch topics."""
    listed = stored_batch_topics(store)
    try:
        is_listed = bool(listed) or stored_topics(store) is not None
    except StoreError:  # it does not parse, and becomes its .bak, or stays
        is_listed = False
    if is_listed and lists_all_topics(store):
        return
    batch: set[str] = set()
    for segment in list_segments(store.storage, paths.commitlog_dir(store.root)):
        batch.update(dispatch_segment(store.storage, segment).marked_topics(MARK_BATCH))
    unlisted = batch - listed if is_listed else batch
    layout_refusals.refuse(layout_refusals.records_refusal(store.root, (), sorted(unlisted)))


def _directories(*trees: Path) -> Iterator[Path]:
    for tree in trees:
        yield tree
        if os.access(tree, os.R_OK | os.X_OK):
            yield from (path for pattern in ("*", "*/*") for path in tree.glob(pattern))


def refuse_plan(root: Path, plan: RepairPlan) -> None:
    """Refuse a plan that would stop in its middle.

    Raises:
        StoreError: a path that the plan changes cannot be written, or copies aside cannot be read, or moves aside is on
            another file system, or is reached by a link.
    """
    refuse_links(root, plan)
    changed = {root / path for path in (*(item.path for item in plan.log_ranges), *(path for path, _ in plan.sizes))}
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
