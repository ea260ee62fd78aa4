"""The config of a new store: JSON files, or RocksDB of v1, whatever the old store has it in."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs import rocksdb_config as codec
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.read.broker_config import LIGHT_OFFSETS
from rmq_formats.read.config_documents import (
    FORBIDDEN,
    GROUPS,
    KINDS,
    OFFSETS,
    Kind,
    forbidden_of,
    stored_document,
    table_of,
    with_light_table,
)
from rmq_formats.storage.rocksdb import DEFAULT_FAMILY, Pairs, make_rocksdb
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.convert.file_copies import copy_file, refuse_link_out

TIMER_CHECKPOINT: Final = "timercheck"  # of timerlog and timerwheel, which hold physical offsets
_TABLE_FILES: Final = frozenset(f"{name}{end}" for kind in KINDS for name in kind.files for end in ("", ".bak"))


def copy_config(store: StoreFiles, new: Path, *, with_tables: bool, with_timers: bool) -> None:
    """Copy the config files of a store into a new one, which has no directory of them yet.

    Args:
        with_tables: whether to copy the files of topics, groups and offsets too.
        with_timers: whether to copy the progress of timer messages too.
    """
    config = paths.config_dir(store.root)
    target = Path(paths.config_dir(str(new)))
    target.mkdir()
    for entry in store.storage.entries(config):
        name = entry.name
        refuse_link_out(store.storage, config, name)
        is_wanted = (with_tables or name not in _TABLE_FILES) and (with_timers or not name.startswith(TIMER_CHECKPOINT))
        if not entry.is_directory and is_wanted:
            copy_file(store.storage, f"{config}/{name}", target / name, entry.size_bytes)


def write_json(store: StoreFiles, new: Path, kind: Kind) -> None:
    """Write a config document, if any, as a file of the new store, after its queues. Raises StoreError, FormatError.

    If the new store has light queues (LMQ), the offsets get the name and form that a broker with such queues reads.
    """
    document = stored_document(store, kind)
    if document is None:
        return
    name = kind.files[-1]
    queues = Path(paths.consumequeue_dir(str(new)))
    if kind is OFFSETS and any(queues.glob(f"{LIGHT_QUEUE_PREFIX}*")):
        name, document = LIGHT_OFFSETS, with_light_table(document)
    if kind is GROUPS:
        document = {FORBIDDEN: {}, **document}
    path = Path(paths.config_dir(str(new)), name)
    path.write_text(json.dumps(document, indent=1), "utf-8")


def write_databases(store: StoreFiles, new: Path) -> None:
    """Write topics, groups and offsets as RocksDB of v1 of a new store. Raises StoreError, FormatError."""
    for kind in KINDS:
        document = stored_document(store, kind)
        rows: Mapping[str, object] = {} if document is None else table_of(document, kind)
        if kind is OFFSETS:
            rows = {name: {"offsetTable": queues} for name, queues in rows.items()}
        version = {codec.VERSION_KEY_V1.decode(): (document or {}).get("dataVersion")}
        pairs = {
            DEFAULT_FAMILY: _pairs(rows),
            codec.VERSION_FAMILY_V1: _pairs({name: value for name, value in version.items() if value is not None}),
            codec.FORBIDDEN_FAMILY_V1: _pairs(forbidden_of(document) if document and kind is GROUPS else {}),
        }
        make_rocksdb(Path(paths.config_dir(str(new)), kind.database), pairs)


def _pairs(values: Mapping[str, object]) -> Iterator[Pairs]:
    """Encode names and their JSON as pairs: keys and values differ in length, so that each pair is a chunk."""
    encoded = {name.encode(): json.dumps(value, separators=(",", ":")).encode() for name, value in values.items()}
    for key, value in sorted(encoded.items()):
        yield Pairs(key, len(key), value, len(value))
