"""A broker's settings that concern its store at rest, out of the ``broker.conf`` that the operator names.

A file of settings *inside* of a store is never followed: a store is evidence, and may come from anybody.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.index import parse_index_tags
from rmq_formats.codecs.layout import EXT_FILE_BYTES, UNIT_BYTES
from rmq_formats.errors import OptionError
from rmq_formats.storage.segments import list_segments
from rmq_formats.storage.settings_file import read_settings_file
from rmq_formats.storage.store_files import open_store, use_log_directories

_ROCKSDB: Final = "defaultrocksdb"
# A value that begins so makes the broker split its list at colons, as releases before 4.8 did.
_SEPARATORS: Final = (",", ":")


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """The settings of a file that concern a store at rest; None where the file does not have one.

    Attributes:
        sizes: sizes, ``delay_levels_ms`` and ``tags_from``, by their names in ``VerifyOptions``.
        root: ``storePathRootDir``.
        commitlog_paths: ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths``, as they are written.
        has_rocksdb_queues: ``storeType=defaultRocksDB``.
        has_dledger: ``enableDLegerCommitLog=true``.
        has_index: ``messageIndexEnable``.
    """

    path: str
    sizes: Mapping[str, Any] = field(default_factory=dict)
    root: str | None = None
    commitlog_paths: tuple[str, ...] = ()
    has_rocksdb_queues: bool = False
    has_dledger: bool = False
    has_index: bool = True

    def log_directories(self, store: str) -> tuple[str, ...]:
        """Return the directories of a store's CommitLog; empty for ``<store>/commitlog``. Raises OptionError.

        Paths below ``storePathRootDir`` are looked for below the store, which may be a copy elsewhere.
        """
        files = open_store(store)
        directories = tuple(dict.fromkeys(self._below_store(path, files.root) for path in self.commitlog_paths))
        if directories in {(), (paths.commitlog_dir(files.root),)}:
            return ()
        if not files.storage.is_local:
            raise OptionError(f"{self.path}: storePathCommitLog is no part of {store}. Copy the log there, too.")
        if not any(Path(directory).is_dir() for directory in directories):
            raise OptionError(f"{self.path}: storePathCommitLog {', '.join(directories)}: no such directory")
        is_copy = self.root is not None and os.path.realpath(self.root) != os.path.realpath(files.root)
        store_log = paths.commitlog_dir(files.root)
        if is_copy and store_log not in directories and list_segments(files.storage, store_log):
            raise OptionError(
                f"{self.path}: storePathCommitLog is that of {self.root}, and {store_log} has files of its own. "
                "Take the line out of the file to read those."
            )
        return directories

    def _below_store(self, path: str, root: str) -> str:
        former = None if self.root is None else self.root.rstrip("/")
        if former and (path == former or path.startswith(f"{former}/")):
            return f"{root}{path[len(former) :]}"
        return path


def read_broker_conf(file: str) -> BrokerConf:
    """Read a ``broker.conf`` of Java's, or a TOML file of ours; other settings are passed over. Raises OptionError."""
    values = {_JAVA_NAMES.get(key, key): str(value).strip() for key, value in read_settings_file(Path(file)).items()}

    def parsed(key: str, parse: Callable[[str], Any]) -> Any:
        text = values.get(key, "")
        if not text:
            return None
        try:
            return parse(text)
        except (ValueError, OptionError) as error:
            raise OptionError(f"{file}: {key} has a bad value: {text!r}") from error

    sizes = {name: parsed(key, parse) for name, (key, parse) in _SIZES.items()}
    if parsed("enableConsumeQueueExt", _boolean):
        sizes["consumequeue_ext_file_bytes"] = parsed("mappedFileSizeConsumeQueueExt", int) or EXT_FILE_BYTES
    return BrokerConf(
        file,
        {name: value for name, value in sizes.items() if value is not None},
        values.get("storePathRootDir") or None,
        (*_path_list(values.get("storePathCommitLog")), *_path_list(values.get("readOnlyCommitLogStorePaths"))),
        values.get("storeType", "").lower() == _ROCKSDB,
        bool(parsed("enableDLegerCommitLog", _boolean)),
        parsed("messageIndexEnable", _boolean) is not False,
    )


def use_broker_conf(file: str | None, stores: tuple[str, ...] | list[str]) -> BrokerConf | None:
    """Read the operator's ``broker.conf``, and use its log directories for these stores.

    Raises OptionError for a bad file, or if several stores have one log.
    """
    if file is None:
        return None
    conf = read_broker_conf(file)
    configured = {store: directories for store in stores if (directories := conf.log_directories(store))}
    if len(configured) > 1 and len(set(configured.values())) < len(configured):
        raise OptionError(f"{file}: storePathCommitLog is the log of one store. Name one.")
    for store, directories in configured.items():
        use_log_directories(open_store(store).root, directories)
    return conf


def _path_list(text: str | None) -> list[str]:
    """Split a list of paths at commas, or at colons as releases before 4.8 do (``MixAll.MULTI_PATH_SPLITTER``)."""
    separator = next((candidate for candidate in _SEPARATORS if candidate in (text or "")), ",")
    parts = [part.strip() for part in (text or "").split(separator)]
    return [part.rstrip("/") or "/" for part in parts if part]


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "false"}:
        raise ValueError(text)
    return text.lower() == "true"


def _whole_units(text: str) -> int:
    """Round a size up to whole units. Source: ``MessageStoreConfig#getMappedFileSizeConsumeQueue``."""
    return -(-int(text) // UNIT_BYTES) * UNIT_BYTES


_SIZES: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "commitlog_file_bytes": ("mappedFileSizeCommitLog", int),
    "consumequeue_file_bytes": ("mappedFileSizeConsumeQueue", _whole_units),
    "batchconsumequeue_file_bytes": ("mapperFileSizeBatchConsumeQueue", int),
    "index_slots": ("maxHashSlotNum", int),
    "index_entries": ("maxIndexNum", int),
    "delay_levels_ms": ("messageDelayLevel", delay_levels_ms),
    "tags_from": ("indexTags", parse_index_tags),
}
# Our names, as TOML files may have them.
_JAVA_NAMES: Final[Mapping[str, str]] = {
    "root": "storePathRootDir",
    "commitlog_path": "storePathCommitLog",
    "consumequeue_ext_enabled": "enableConsumeQueueExt",
    "consumequeue_ext_file_bytes": "mappedFileSizeConsumeQueueExt",
    "index_enabled": "messageIndexEnable",
    "delay_levels": "messageDelayLevel",
    "index_tags": "indexTags",
    **{name: key for name, (key, _) in _SIZES.items()},
}
