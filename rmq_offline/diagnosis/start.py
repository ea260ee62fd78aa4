"""Why a broker does not start with a store: lock, files, owners, config, settings, limits of the system."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.layout import COMMITLOG_FILE_BYTES, CONSUMEQUEUE_FILE_BYTES
from rmq_formats.errors import StoreError
from rmq_formats.read.dirty import broker_runs
from rmq_formats.read.log_end import readable_segments
from rmq_formats.storage.broker_conf import BrokerConf
from rmq_formats.storage.queue_files import queue_directories
from rmq_formats.storage.segments import Entry, list_segments
from rmq_formats.storage.settings_file import read_settings_file
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.diagnosis.answers import Answer, Question
from rmq_offline.diagnosis.recovery import estimate_start
from rmq_offline.repair.config import GROUPS, TOPICS
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.config_files import read_config_texts
from rmq_offline.verify.findings import FindingList

_LONG_START_S: Final = 60.0
_MAP_COUNT: Final = Path("/proc/sys/vm/max_map_count")
_MAX_MAPS: Final = 0.9  # of the limit: the JVM maps files of its own
_PARTS: Final = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config")


def start_answers(root: str, conf: BrokerConf | None) -> Iterator[Answer]:
    """Look for what stops a broker's start. Raises StoreError."""
    store = open_store(root)
    if broker_runs(store):
        yield _answer(
            "the store's lock is held",
            "a broker runs on this store; a second one does not start",
            f"fuser -v {quote(paths.lock_file(root))}",
            is_fault=False,
        )
    yield from _owner_answers(root)
    yield from _log_answers(store, conf)
    yield from _queue_answers(store, conf)
    yield from _config_answers(store)
    if conf is not None:
        yield from _setting_answers(root, conf)
        yield from _layout_answers(store, conf)
    yield from _recovery_answers(store)


def _answer(observation: str, reason: str, command: str, *, is_fault: bool = True) -> Answer:
    return Answer(Question.START, observation, reason, command, is_fault)


def _foreign_answer(path: str, owner: str) -> Answer:
    reason = "the broker takes it for a file of a wrong size, and does not start"
    command = f"mv {quote(path)} /somewhere/else"
    return _answer(f"{path}: a file in {owner} directory that is no part of it", reason, command)


def _owner_answers(root: str) -> Iterator[Answer]:
    """Report files of another owner than the store's, and files that this user may not read and write."""
    owner = Path(root).stat().st_uid
    stranger_count, first = 0, ""
    for path in _paths_below(root):
        with suppress(OSError):
            if path.lstat().st_uid != owner:
                stranger_count += 1
                first = first or str(path)
    if stranger_count:
        yield _answer(
            f"{stranger_count} files are not of the store's owner (uid {owner}), such as {first}",
            "a broker of that user may not open them, as after a start as root or a restored backup",
            f"chown -R --reference={quote(root)} {quote(root)}",
        )
    refused = [path for path in (Path(root), *_paths_below(root)) if not _is_accessible(path)]
    if refused:
        more = f", and so are {len(refused) - 1} more" if len(refused) > 1 else ""
        yield _answer(
            f"{refused[0]}: this user may not read and write it{more}",
            "a broker of this user does not start, and what cannot be read is not looked at here: run rmq doctor as "
            "the broker's user",
            f"ls -ld {quote(str(refused[0]))}",
        )


def _is_accessible(path: Path) -> bool:
    try:
        mode = os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)
        return not path.exists() or os.access(path, mode)
    except OSError:  # in a directory that cannot be read
        return True


def _paths_below(root: str) -> Iterator[Path]:
    """List the store's parts, and files and directories there, down to the files of queues."""
    for name in _PARTS:
        yield Path(root, name)
        for pattern in ("*", "*/*", "*/*/*"):
            with suppress(OSError):
                yield from Path(root, name).glob(pattern)


def _log_answers(store: StoreFiles, conf: BrokerConf | None) -> Iterator[Answer]:
    configured = None if conf is None else conf.sizes.get("commitlog_file_bytes", COMMITLOG_FILE_BYTES)
    directories = [directory for directory, head_bytes in store.log_directories if not head_bytes]
    files = [(directory, entry) for directory in directories for entry in store.storage.entries(directory)]
    segments = [entry for _, entry in files if paths.parse_segment_name(entry.name, entry.size_bytes) is not None]
    compressed = set(_compressed_segments(files))
    for path in sorted(compressed):
        yield _answer(
            f"{path}: a segment of the CommitLog that was compressed in place",
            "the broker does not start with it, and its messages are in no other file",
            f"gunzip {quote(path)}" if path.endswith(".gz") else f"file {quote(path)}",
        )
    if not segments and compressed:
        return
    if not segments and not store.dledger_directories:
        queues = bool(store.storage.entries(paths.consumequeue_dir(store.root)))
        yield _answer(
            f"no CommitLog file in {', '.join(directories)}" + (", and there are queues" if queues else ""),
            "a broker that starts so deletes all queues, and begins at offset 0: the log is on a disk that is not "
            "mounted, or storePathCommitLog names another directory",
            f"rmq inspect {quote(store.root)} -c broker.conf; mount",
        )
        return
    for directory, entry in files:
        is_segment = entry.is_directory or paths.parse_segment_name(entry.name, entry.size_bytes) is not None
        if not is_segment and f"{directory}/{entry.name}" not in compressed:
            yield _foreign_answer(f"{directory}/{entry.name}", "the CommitLog's")
    yield from _size_answers(store.root, "mappedFileSizeCommitLog", segments, configured, "CommitLog")


def _compressed_segments(files: Sequence[tuple[str, Entry]]) -> Iterator[str]:
    """Yield the paths of compressed segments without the uncompressed segment beside them."""
    names = {entry.name for _, entry in files if entry.size_bytes}
    for directory, entry in files:
        start_offset = paths.parse_compressed_segment_name(entry.name)
        if start_offset is not None and paths.segment_name(start_offset) not in names:
            yield f"{directory}/{entry.name}"


def _size_answers(root: str, setting: str, entries: list[Entry], configured: int | None, what: str) -> Iterator[Answer]:
    """Report files of another size than the setting, or than most files; a start deletes an empty last file."""
    sizes = Counter(entry.size_bytes for entry in entries)
    if not sizes:
        return
    common = sizes.most_common(1)[0][0]
    expected = configured or common
    odd_files = [entry for entry in entries if entry.size_bytes not in {expected, 0}]
    if configured is not None and common != configured:
        yield _answer(
            f"{what} files have {common} bytes, and {setting} is {configured}",
            "a broker does not start with files of another size than its setting; a setting that is not in the file is "
            "the default",
            f"set {setting}={common} in broker.conf",
        )
    elif odd_files:
        yield _answer(
            f"{len(odd_files)} {what} files have another size than {expected}, such as {odd_files[0].name} with "
            f"{odd_files[0].size_bytes}",
            "the broker stops at such a file: it was cut by a copy or a full disk, or made with another setting",
            f"rmq repair {quote(root)} --plan",
        )


def _queue_answers(store: StoreFiles, conf: BrokerConf | None) -> Iterator[Answer]:
    if store.layouts.queue_database is not None:
        return
    directory = paths.consumequeue_dir(store.root)
    entries: list[Entry] = []
    for topic, queue in queue_directories(store.storage.entries, directory):
        for entry in store.storage.entries(f"{directory}/{topic}/{queue}"):
            if entry.is_directory:
                continue
            if paths.parse_segment_name(entry.name, entry.size_bytes) is None:
                yield _foreign_answer(f"{directory}/{topic}/{queue}/{entry.name}", "a queue's")
            else:
                entries.append(entry)
    configured = None if conf is None else conf.sizes.get("consumequeue_file_bytes", CONSUMEQUEUE_FILE_BYTES)
    yield from _size_answers(store.root, "mappedFileSizeConsumeQueue", entries, configured, "ConsumeQueue")
    with suppress(OSError, ValueError):
        limit = int(_MAP_COUNT.read_text())
        if len(entries) > limit * _MAX_MAPS:
            yield _answer(
                f"{len(entries)} files of queues, and vm.max_map_count is {limit}",
                "each file is a map of the broker's process; beyond the limit it stops with 'Map failed'",
                f"sysctl -w vm.max_map_count={max(655_360, 4 * len(entries))}",
            )


def _config_answers(store: StoreFiles) -> Iterator[Answer]:
    findings = FindingList()
    directory = paths.config_dir(store.root)
    read_config_texts(store.storage, directory, findings)
    for finding in findings.kept:
        is_lost = finding.kind == finding_kinds.CONFIG_LOST
        if is_lost and (finding.path or "").rpartition("/")[2] in {TOPICS, GROUPS}:
            reason = "it can be made anew from log, queues and offsets"
            command = f"rmq repair {quote(store.root)} --what config"
        elif is_lost:
            reason = "restore it from a backup, or from a slave"
            command = f"ls -l {quote(directory)}"
        elif finding.kind == finding_kinds.CONFIG_UNPARSABLE:
            reason = "a broker takes the .bak, which is a few seconds older"
            command = f"rmq repair {quote(store.root)} --plan"
        else:
            continue
        if is_lost:
            reason = f"a broker starts without what it had, or not at all where a .bak does not parse either; {reason}"
        yield _answer(f"{finding.path}: {finding.detail}", reason, command, is_fault=is_lost)


def _setting_answers(root: str, conf: BrokerConf) -> Iterator[Answer]:
    """Report settings that Java parses in an unexpected way, and settings of another store."""
    values = read_settings_file(Path(conf.path))
    for key, value in values.items():
        text = value if isinstance(value, str) else ""
        if text != text.rstrip():
            yield _answer(
                f"{conf.path}: the value of {key} ends with a blank",
                "Java takes the blank for a part of the value: a path with it is another directory, a number is none",
                f"sed -i 's/[ \\t]*$//' {quote(conf.path)}",
            )
        if key.startswith("storePath") and (text.startswith("~") or "${" in text):
            yield _answer(
                f"{conf.path}: {key}={text}",
                "Java expands neither ~ nor ${…}: the path is a directory of that name",
                f"write the whole path in {conf.path}",
            )
    if conf.root is not None and os.path.realpath(conf.root.strip()) != os.path.realpath(root):
        yield _answer(
            f"{conf.path}: storePathRootDir is {conf.root}, and not {root}",
            "the broker of this file starts with another store",
            f"rmq doctor {quote(conf.root)} -c {quote(conf.path)}",
            is_fault=False,
        )
    if conf.root is None:
        yield _answer(
            f"{conf.path}: storePathRootDir is not set",
            "the broker's store is ~/store of its user",
            f"set storePathRootDir={root} in {conf.path}",
            is_fault=False,
        )


def _layout_answers(store: StoreFiles, conf: BrokerConf) -> Iterator[Answer]:
    layouts = store.layouts
    if conf.has_dledger != (StoreLayout.DLEDGER in layouts):
        has_log = bool(list_segments(store.storage, paths.commitlog_dir(store.root)))
        yield _answer(
            f"{conf.path}: enableDLegerCommitLog={str(conf.has_dledger).lower()}, and the store "
            f"{'has' if StoreLayout.DLEDGER in layouts else 'has no'} log of DLedger",
            "the broker begins an empty log beside the one that is there"
            if not conf.has_dledger or not has_log
            else "the broker begins a log of DLedger after the classic one",
            f"rmq inspect {quote(store.root)}",
        )
    in_rocksdb = StoreLayout.ROCKSDB_QUEUES in layouts
    if conf.has_rocksdb_queues != in_rocksdb and (conf.has_rocksdb_queues or not layouts.has_queue_files):
        store_type = "default" if in_rocksdb else "defaultRocksDB"
        place, target = ("RocksDB", "classic") if in_rocksdb else ("files", "rocksdb")
        yield _answer(
            f"{conf.path}: storeType={store_type}, and the store has its queues in {place}",
            "the broker finds no queue, and makes them anew from what is left of the log: their offsets begin at 0",
            f"rmq convert {quote(store.root)} --to {target} --out NEW",
        )


def _recovery_answers(store: StoreFiles) -> Iterator[Answer]:
    with suppress(StoreError):
        estimate = estimate_start(store, readable_segments(store))
        if estimate is not None and estimate.seconds > _LONG_START_S:
            yield _answer(
                f"a start reads {estimate.files} files, {estimate.bytes:,} bytes",
                f"it takes about {estimate.seconds:.0f} s: {estimate.reason}",
                f"rmq checkpoint {quote(store.root)}",
                is_fault=False,
            )
