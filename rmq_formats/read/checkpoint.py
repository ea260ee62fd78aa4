"""The checkpoint of a store that is read."""

from contextlib import suppress

from rmq_formats.codecs import paths
from rmq_formats.codecs.checkpoint import Checkpoint
from rmq_formats.codecs.layout import CHECKPOINT_FILE_BYTES
from rmq_formats.errors import FormatError, StoreError
from rmq_formats.storage.segments import opened, read_range
from rmq_formats.storage.store_files import StoreFiles


def read_checkpoint(store: StoreFiles) -> Checkpoint | None:
    """Read a store's checkpoint; None without a whole one."""
    with suppress(StoreError, FormatError, OSError), opened(store.storage, paths.checkpoint_file(store.root)) as file:
        return Checkpoint.decode(read_range(file, 0, min(file.size_bytes, CHECKPOINT_FILE_BYTES)))
    return None
