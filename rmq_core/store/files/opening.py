"""Checks before a store is opened: refuses layouts that the broker does not support, and locks the store.

Both need no kernel, so that a refused start does not wait for the loading of the kernels.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rmq_core.store.files.config_files import load
from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths, topics_json
from rmq_formats.errors import StoreError
from rmq_formats.storage import layout_refusals, store_layouts
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_formats.storage.store_lock import store_lock

_LOGGER = logging.getLogger(__name__)


class _DirectoryEntry(NamedTuple):
    name: str
    is_directory: bool


class LocalTree:
    """Local files, with the methods that ``store_layouts`` calls."""

    def entries(self, path: str) -> Sequence[_DirectoryEntry]:
        """Return the sorted entries of a directory; empty without such a directory."""
        try:
            with os.scandir(path) as scan:
                return sorted(_DirectoryEntry(entry.name, entry.is_dir()) for entry in scan)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"{path}: cannot be listed: {error.strerror}") from error

    def read_bytes(self, path: str) -> bytes:
        """Return a whole small file."""
        return Path(path).read_bytes()


def refuse_layouts(root: str, *, light_queues: bool) -> frozenset[str]:
    """Refuse a store with queues or a log of other layouts; return its topics with BatchConsumeQueues.

    Logs a warning of logs beside the CommitLog.

    Args:
        light_queues: the settings enable light queues (LMQ); without that, a store with light queues is refused.

    Raises:
        StoreLayoutError: the store has an unsupported layout.
    """
    layouts = store_layouts.detect_layouts(LocalTree(), root)
    layout_refusals.refuse(layout_refusals.broker_refusal(layouts, light_queues=light_queues))
    for layout in StoreLayout:
        if layout.rules.has_own_log and layout in layouts:
            _LOGGER.warning(
                "%(place)s: the store has %(layout)s, which this broker neither reads nor writes: consumers get the "
                "messages of the CommitLog alone, and those that expire there are in no other log",
                {"place": layouts.evidence[layout], "layout": layout},
            )
    batch_topics = layouts.batch_topics
    configs = load(f"{paths.config_dir(root)}/topics.json", topics_json.topic_configs, Disk()) if batch_topics else None
    if configs is None:
        return batch_topics
    # A topic whose config has plain queues: a deleted topic of the same name may have left a directory.
    return frozenset(name for name in batch_topics if name not in configs or configs[name].has_batch_queues)


def lock_store(root: str, log_directory: str, disk: Disk) -> ExitStack:
    """Lock the store at ``root`` for a broker; closing the returned stack releases the lock.

    Raises:
        StoreLockedError: another process, or this one, has the store open.
        StoreError: the lock file cannot be written.
    """
    stack = ExitStack()
    path = paths.lock_file(root)
    if not os.path.exists(path):  # noqa: PTH110 # paths are strings here
        disk.write_file(path, b"lock")  # as ``DefaultMessageStore#start``
    stack.enter_context(store_lock(root, is_broker=True, log_directory=log_directory))
    return stack
