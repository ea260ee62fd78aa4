"""Refuses to open a store of a layout that the broker would get wrong.

Read with the standard library alone: a broker that makes a new store does not wait for numpy and numba.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rmq_formats.errors import StoreError
from rmq_formats.storage import store_variants


@dataclass(frozen=True, slots=True)
class _Name:
    """One name in a directory."""

    name: str
    is_directory: bool


class LocalTree:
    """Files of this machine, as ``store_variants`` looks at them."""

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
        """A whole small file."""
        return Path(path).read_bytes()


def refuse_layouts(root: str) -> None:
    """Refuse a store with queues or a log of other layouts. Raises StoreLayoutError."""
    store_variants.refuse(store_variants.no_write(store_variants.recognise(LocalTree(), root)))
