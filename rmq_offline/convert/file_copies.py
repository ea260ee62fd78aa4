"""Copies files of a store into a new one: holes stay holes."""

import os
from pathlib import Path
from typing import Final

import numpy as np

from rmq_formats.errors import StoreError
from rmq_formats.storage.segments import Storage

_COPIED_BYTES: Final = 4 << 20


def copy_file(storage: Storage, path: str, target: Path, size_bytes: int, data_bytes: int | None = None) -> None:
    """Copy a file up to its last byte that is not zero, or its first bytes; the rest becomes a hole."""
    buffer = np.empty(_COPIED_BYTES, dtype=np.uint8)
    with storage.open(path) as source, target.open("xb") as file:
        end = source.data_end() if data_bytes is None else data_bytes
        for begin in range(0, end, _COPIED_BYTES):
            got = source.read_into(begin, buffer[: min(_COPIED_BYTES, end - begin)].data)
            file.write(buffer[:got].data)
        file.truncate(size_bytes)


def refuse_link_out(storage: Storage, directory: str, name: str) -> None:
    """Refuse a link out of a directory: the copy would contain a foreign file. Raises StoreError."""
    path = f"{directory}/{name}"
    if not storage.is_local or not Path(path).is_symlink():
        return
    target = os.path.realpath(path)
    if not Path(target).is_relative_to(os.path.realpath(directory)):
        raise StoreError(f"{path}: a symbolic link out of the store (to {target!r}). Replace it by a file")


def copy_tree(storage: Storage, path: str, target: Path) -> None:
    """Copy a directory with all that is in it."""
    target.mkdir()
    for entry in storage.entries(path):
        refuse_link_out(storage, path, entry.name)
        if entry.is_directory:
            copy_tree(storage, f"{path}/{entry.name}", target / entry.name)
        else:
            copy_file(storage, f"{path}/{entry.name}", target / entry.name, entry.size_bytes)
