"""Checks before a store is opened: layouts that the broker would get wrong are refused, and the store is locked.

Both need the standard library alone: who is refused does not wait for the kernels.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs import paths, topics_json
from rmq_formats.errors import DecodeError, StoreError, StoreLockedError
from rmq_formats.storage import layout_refusals, store_layouts
from rmq_formats.storage.store_lock import store_lock

_LOCK_CONTENT: Final = b"lock"  # DefaultMessageStore#start
_held: set[str] = set()


@dataclass(frozen=True, slots=True)
class _Name:
    name: str
    is_directory: bool


class LocalTree:
    """Files of this machine, as ``detect_layouts`` looks at them."""

    def entries(self, path: str) -> Sequence[_Name]:
        """Names in a directory; empty where there is none."""
        try:
            with os.scandir(path) as scan:
                return sorted((_Name(item.name, item.is_dir()) for item in scan), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"{path}: cannot be listed ({error.strerror})") from error

    def read_bytes(self, path: str) -> bytes:
        """Return a whole small file."""
        return Path(path).read_bytes()


def refuse_layouts(root: str, *, light_queues: bool) -> frozenset[str]:
    """Refuse a store with queues or a log of other layouts; return its topics with BatchConsumeQueues.

    Args:
        light_queues: whether the settings have light queues (LMQ), which are refused else.

    Raises:
        StoreLayoutError: it has such.
    """
    layouts = store_layouts.detect_layouts(LocalTree(), root)
    layout_refusals.refuse(layout_refusals.broker_refusal(layouts, light_queues=light_queues))
    return _batch_topics(root, layouts.batch_topics)


def _batch_topics(root: str, batch_topics: frozenset[str]) -> frozenset[str]:
    """Drop the topics whose config names plain queues: a deleted topic may have left a directory."""
    if not batch_topics:
        return batch_topics
    for end in ("", ".bak"):
        with suppress(OSError, DecodeError, UnicodeDecodeError):
            text = Path(f"{paths.config_dir(root)}/topics.json{end}").read_text("utf-8")
            configs = topics_json.topic_configs(text)
            return frozenset(name for name in batch_topics if name not in configs or configs[name].has_batch_queues)
    return batch_topics


def lock_store(root: str, disk: Disk) -> ExitStack:
    """Lock the store at ``root``; closing the returned stack releases the lock.

    POSIX locks do not exclude the process that holds them, and closing any descriptor of the file releases them: so
    the stores that this process has locked are known by name as well.

    Raises:
        StoreLockedError: another process, or this one, has it.
        StoreError: the lock's file cannot be written.
    """
    name = os.path.realpath(root)
    if name in _held:
        raise StoreLockedError(f"{root}: this process has the store open already")
    stack = ExitStack()
    path = paths.lock_file(root)
    if not os.path.exists(path):  # noqa: PTH110 # paths are strings here
        disk.write_file(path, _LOCK_CONTENT)
    stack.enter_context(store_lock(root))
    _held.add(name)
    stack.callback(_held.discard, name)
    return stack
