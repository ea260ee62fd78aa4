"""Decides whether a store's ConsumeQueue and Index are complete, so that readers may rely on both."""

from contextlib import suppress

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.storage.segments import read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_formats.storage.store_lock import is_locked_by_broker


def dirty_reason(store: StoreFiles) -> str | None:
    """Return why the derived files may lack records of the log; None if only the newest records can be missing.

    A running broker writes the derived files in log order, record by record, and a shutdown completes them. A machine
    that went down loses pages of single files, which the broker's next start repairs.
    """
    if store.storage.exists(paths.abort_file(store.root)) and not broker_runs(store):
        return "the broker did not shut down (there is a file named abort) and no longer runs"
    return None


def dirty_queues_reason(store: StoreFiles, topics: frozenset[str]) -> str | None:
    """Return why the files below ``consumequeue`` may lack units of some topics; None if they do not."""
    layouts = store.layouts
    if layouts.queue_layout is not None:
        return layouts.queue_layout.rules.offline_write_refusal
    batch = layouts.batch_topics & topics
    if batch:
        return f"topic {min(batch)} has batch queues (BatchConsumeQueue)"
    return dirty_reason(store)


def broker_runs(store: StoreFiles) -> bool:
    """Return whether a broker of this machine has the store's lock, without acquiring the lock."""
    return store.storage.is_local and is_locked_by_broker(store.root)


def read_checkpoint(store: StoreFiles) -> Checkpoint | None:
    """Read a store's checkpoint; None without a whole one."""
    with suppress(StoreError, FormatError, OSError), store.storage.open(paths.checkpoint_file(store.root)) as file:
        return Checkpoint.decode(read_range(file, 0, min(file.size_bytes, CHECKPOINT_FILE_BYTES)))
    return None
