"""Decides whether a store's ConsumeQueue and Index are complete, so that readers may rely on both."""

from contextlib import suppress

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.storage import store_layouts
from rmq_formats.storage.segments import read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_lock import is_locked


def dirty_reason(store: StoreFiles) -> str | None:
    """Return why the derived files may lack something that the log has; None if they do not.

    A broker writes them in log order, record by record, so all that they can lack is what comes after the
    last record that is in any. That holds while it runs, and once it has shut down; a machine that went
    down loses pages of single files, and the broker's next start mends them.
    """
    if not store.storage.exists(paths.abort_file(store.root)):
        return None
    if broker_runs(store):
        return None
    return "the broker did not shut down (there is a file named abort) and no longer runs"


def dirty_queues_reason(store: StoreFiles, topics: frozenset[str]) -> str | None:
    """Why the files below ``consumequeue`` may lack units of topics that the log has; None if they do not."""
    layouts = store.layouts
    if store_layouts.StoreLayout.ROCKSDB_QUEUES in layouts:
        return "the ConsumeQueue is in RocksDB"
    batch = layouts.batch_topics & topics
    if batch:
        return f"topic {min(batch)} has batch queues (BatchConsumeQueue)"
    return dirty_reason(store)


def broker_runs(store: StoreFiles) -> bool:
    """Return whether a process of this machine has the store's lock, without acquiring the lock."""
    if not store.storage.is_local:
        return False
    return is_locked(paths.lock_file(store.root), 1)


def read_checkpoint(store: StoreFiles) -> Checkpoint | None:
    """Read a store's checkpoint; None without a whole one."""
    with suppress(StoreError, FormatError, OSError), store.storage.open(paths.checkpoint_file(store.root)) as file:
        return Checkpoint.decode(read_range(file, 0, min(file.size_bytes, CHECKPOINT_FILE_BYTES)))
    return None
