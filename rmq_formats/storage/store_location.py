"""Finds the store that somebody has meant who names the directory above it or one below it."""

from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.storage import store_variants
from rmq_formats.storage.segments import Storage

_MOST_CHILDREN: Final = 100  # that are looked at


def nearby_store_hint(storage: Storage, root: str) -> str:
    """Return the end of an error's text: which directory is a store, if one near by is; else nothing."""
    above = root.rpartition("/")[0]
    if above and _has_log(storage, above):
        return f"; {above} is one"
    children = [entry.name for entry in storage.entries(root) if entry.is_directory][:_MOST_CHILDREN]
    stores = [child for child in children if _has_log(storage, f"{root}/{child}")]
    if not stores:
        return ""
    return f"; {root}/{stores[0]} is one" if len(stores) == 1 else f"; stores in it: {', '.join(stores)}"


def _has_log(storage: Storage, root: str) -> bool:
    """Whether a directory has files of a CommitLog where a store has them."""
    directories = (paths.commitlog_dir(root), *store_variants.dledger_directories(storage, root))
    return any(
        paths.parse_segment_name(entry.name) is not None
        for directory in directories
        for entry in storage.entries(directory)
    )
