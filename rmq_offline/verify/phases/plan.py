"""Plans a verification: lists the store's files, finds the log's end, and determines the broker's file sizes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import islice, pairwise
from typing import Any, Final

from rmq_formats.codecs import paths
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.index import NO_TAGS, IndexHeader, parse_index_tags
from rmq_formats.codecs.layout import (
    BATCH_FILE_BYTES,
    BATCH_UNIT_BYTES,
    COMMITLOG_FILE_BYTES,
    CONSUMEQUEUE_FILE_BYTES,
    DEFAULT_DELAY_LEVELS,
    INDEX_ENTRIES,
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_PHYSICAL_OFFSET_AT,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
    INDEX_SLOTS,
    UNIT_BYTES,
    index_file_bytes,
)
from rmq_formats.errors import FormatError, OptionError, StoreError
from rmq_formats.read.index_lookup import IndexFile
from rmq_formats.read.index_tags import find_index_tags
from rmq_formats.read.log_end import count_leftovers, cut_segments, find_leftovers
from rmq_formats.storage.broker_conf import BrokerConf
from rmq_formats.storage.queue_files import queue_directories
from rmq_formats.storage.segments import Entry, Segment, Storage, canonical_path, read_range
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Finding, FindingList, Kind

LINK_TO_NOWHERE: Final = "a link to nowhere"
LOST_AND_FOUND: Final = "lost+found"  # made by the file system, where the log's directory is a mount of its own
SAMPLE: Final = 256  # queue files sampled to infer the size of all


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """Sizes of ``StoreSizes`` that the caller sets; None means the sizes of the store's files, else the defaults.

    Attributes:
        tier: ``tieredStoreFilePath``; this broker's files there are verified too. None skips the tier.
        has_index: ``messageIndexEnable``; if False, a missing Index is no finding.
        queue_database: ``storeType=defaultRocksDB``: a rebuild makes the ConsumeQueue as a RocksDB.
    """

    commitlog_file_bytes: int | None = None
    consumequeue_file_bytes: int | None = None
    consumequeue_ext_file_bytes: int | None = None
    index_slots: int | None = None
    index_entries: int | None = None
    delay_levels_ms: tuple[int, ...] | None = None
    tags_from: int | None = None
    batchconsumequeue_file_bytes: int | None = None
    tier: str | None = None
    queue_database: bool = False
    has_index: bool = True

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], conf: BrokerConf | None = None, tier: str | None = None
    ) -> "VerifyOptions":
        """Make options of the arguments of ``SIZE_OPTIONS``, which override a ``broker.conf``. Raises OptionError."""
        values = {name: value for name, value in arguments.items() if value is not None}
        if "delay_levels" in values:
            values["delay_levels_ms"] = delay_levels_ms(values.pop("delay_levels"))
        if "index_tags" in values:
            values["tags_from"] = parse_index_tags(values.pop("index_tags"))
        settings = {} if conf is None else conf.sizes
        has_database = conf is not None and conf.has_rocksdb_queues
        has_index = conf is None or conf.has_index
        return cls(**{**settings, **values}, tier=tier, queue_database=has_database, has_index=has_index)

    def check(self) -> None:
        """Refuse sizes that no broker could use. Raises StoreSizeError, naming the option."""
        names = {item.name for item in fields(StoreSizes)}
        sizes = {item.name: getattr(self, item.name) for item in fields(self) if item.name in names}
        StoreSizes(**{name: value for name, value in sizes.items() if value is not None}).check()


def list_or_report(storage: Storage, path: str, kind: Kind, findings: FindingList) -> list[Entry]:
    """List a directory; where it cannot be listed, and for links to nowhere, add a finding."""
    for name in storage.dangling_symlinks(path):
        findings.report(kind, LINK_TO_NOWHERE, f"{path}/{name}")
    try:
        return storage.entries(path)
    except StoreError as error:
        findings.report(kind, str(error), path)
        return []


def find_segments(store: StoreFiles, findings: FindingList) -> list[Segment]:
    """List the CommitLog files; other entries become findings."""
    return [
        segment
        for directory, head_bytes in store.log_directories
        for segment in _find_segments(store.storage, directory, head_bytes, findings)
    ]


def _find_segments(storage: Storage, directory: str, head_bytes: int, findings: FindingList) -> Iterator[Segment]:
    for entry in list_or_report(storage, directory, finding_kinds.SEGMENT_UNREADABLE, findings):
        path = f"{directory}/{entry.name}"
        start_offset = paths.parse_segment_name(entry.name, entry.size_bytes)
        if entry.is_directory and entry.name == LOST_AND_FOUND:
            continue
        if entry.is_directory:
            findings.report(finding_kinds.STRAY, "a directory among the CommitLog's files", path)
        elif (compressed_offset := paths.parse_compressed_segment_name(entry.name)) is not None:
            detail = f"a compressed file, which may hold the log from {compressed_offset} on"
            findings.report(
                finding_kinds.SEGMENT_COMPRESSED, detail, path, physical_offset=compressed_offset, size=entry.size_bytes
            )
        elif start_offset is None:
            findings.report(finding_kinds.SEGMENT_FOREIGN, "no name of a CommitLog file", path, size=entry.size_bytes)
        else:
            yield Segment(path, start_offset, entry.size_bytes, head_bytes, entry.version)


def check_segments(segments: Sequence[Segment], file_bytes: int) -> Iterator[Finding]:
    """Find gaps, overlaps and wrong sizes of the CommitLog's files, readable or not."""
    for segment in segments:
        if segment.size_bytes == 0 and segment is segments[-1]:
            yield Finding(finding_kinds.SEGMENT_EMPTY, "the last file is empty", segment.path, segment.start_offset)
        elif segment.size_bytes != file_bytes:
            kind, detail = finding_kinds.SEGMENT_SIZE, "file of another size than the others"
            path, begin, size = segment.path, segment.start_offset, segment.size_bytes
            yield Finding(kind, detail, path, begin, size, expected=str(file_bytes), actual=str(size))
    for before, after in pairwise(segments):
        if before.end_offset > after.start_offset:
            detail = f"begins {before.end_offset - after.start_offset} bytes before the end of {before.path}"
            yield Finding(finding_kinds.SEGMENT_OVERLAP, detail, after.path, after.start_offset)
        elif before.end_offset < after.start_offset and before.size_bytes >= file_bytes:
            missing = after.start_offset - before.end_offset
            yield Finding(finding_kinds.SEGMENT_MISSING, "no file holds this range", None, before.end_offset, missing)


def bound_by_log_end(
    store: StoreFiles, segments: Sequence[Segment], ends: Sequence[int], findings: FindingList
) -> tuple[list[Segment], list[int]]:
    """Bound segments, and the ends of their data in the files, by the log's end; report the records after that end."""
    leftovers = find_leftovers(store, segments) if segments else None
    if leftovers is None:
        return list(segments), list(ends)
    counts = count_leftovers(store.storage, segments, leftovers)
    path = next(item.path for item in segments if item.start_offset <= leftovers.log_end <= item.end_offset)
    detail = f"the log ends at {leftovers.log_end}; a recovery left {counts.messages} records after it"
    if counts.messages > counts.older:
        detail += f", {counts.messages - counts.older} of them not older than its last record"
    findings.add(Finding(finding_kinds.LOG_LEFTOVER, detail, path, leftovers.log_end, leftovers.size_bytes))
    cut = cut_segments(segments, leftovers)
    bounds = [end if item.log_bytes is None else min(end, item.log_bytes) for item, end in zip(cut, ends, strict=True)]
    return cut, bounds


def resolve_sizes(
    store: StoreFiles, segments: Sequence[Segment], options: VerifyOptions, findings: FindingList
) -> StoreSizes:
    """Return the broker's sizes: those of the options, else those of the store's files, which are reported."""

    def resolve(name: str, default: int, infer: Callable[[int], int]) -> int:
        preset: int | None = getattr(options, name)
        if preset is not None:
            return preset
        size = infer(default)
        if size != default:
            detail = f"{size}, as the store's files have it; the default is {default}"
            findings.report(finding_kinds.LAYOUT, f"--{name.replace('_', '-')} {detail}")
        return size

    def common_size(directory: str, multiple: int) -> Callable[[int], int]:
        return lambda default: _common_size(store.storage, directory, multiple) or default

    log_sizes = Counter(segment.size_bytes for segment in segments if segment.size_bytes)
    log_size = log_sizes.most_common(1)[0][0] if log_sizes else COMMITLOG_FILE_BYTES
    log_bytes = resolve("commitlog_file_bytes", COMMITLOG_FILE_BYTES, lambda _: log_size)
    queue_size = common_size(paths.consumequeue_dir(store.root), UNIT_BYTES)
    queue_bytes = resolve("consumequeue_file_bytes", CONSUMEQUEUE_FILE_BYTES, queue_size)
    ext_bytes = options.consumequeue_ext_file_bytes
    if ext_bytes is None:
        ext_bytes = _common_size(store.storage, paths.consumequeue_ext_dir(store.root), 1)
    index_slots, index_entry_count = _index_sizes(store, options)
    slots = resolve("index_slots", INDEX_SLOTS, lambda _: index_slots)
    entries = resolve("index_entries", INDEX_ENTRIES, lambda _: index_entry_count)
    levels = options.delay_levels_ms or delay_levels_ms(DEFAULT_DELAY_LEVELS)
    tags_from = options.tags_from
    if tags_from is None:
        tags_from, reason = find_index_tags(store, segments)
        if tags_from != NO_TAGS:
            findings.report(finding_kinds.LAYOUT, f"--index-tags {reason}")
    batch_size = common_size(paths.batch_consumequeue_dir(store.root), BATCH_UNIT_BYTES)
    batch_bytes = resolve("batchconsumequeue_file_bytes", BATCH_FILE_BYTES, batch_size)
    return StoreSizes(log_bytes, queue_bytes, ext_bytes, slots, entries, levels, tags_from, batch_bytes)


def with_delay_levels(sizes: StoreSizes, levels: tuple[int, ...], findings: FindingList) -> StoreSizes:
    """Return the sizes with the delay levels of the store's own queues."""
    if levels == sizes.delay_levels_ms:
        return sizes
    text = " ".join(f"{level // 1000}s" for level in levels)
    findings.report(finding_kinds.LAYOUT, f'--delay-levels "{text}", as the store\'s queues have it')
    return replace(sizes, delay_levels_ms=levels)


def _queue_files(storage: Storage, directory: str) -> Iterator[Entry]:
    """List the files of the queues under ``consumequeue`` or ``consumequeue_ext``, in any order.

    Directories that cannot be listed are skipped: the task that checks their queues reports them.
    """

    def list_entries(path: str) -> list[Entry]:
        try:
            return storage.entries(path)
        except StoreError:
            return []

    for topic, queue in queue_directories(list_entries, directory):
        for entry in list_entries(f"{directory}/{topic}/{queue}"):
            if not entry.is_directory and paths.parse_segment_name(entry.name) is not None:
                yield entry


def _common_size(storage: Storage, directory: str, multiple: int) -> int:
    """Return the size that most files of queues have; 0 where there are none."""
    sizes = Counter(entry.size_bytes for entry in islice(_queue_files(storage, directory), SAMPLE))
    plausible = [(count, size) for size, count in sizes.items() if size > 0 and size % multiple == 0]
    return max(plausible)[1] if plausible else 0


def index_entries(store: StoreFiles) -> list[Entry]:
    """List the IndexFiles, oldest first. Raises StoreError."""
    return [
        entry
        for entry in store.storage.entries(paths.index_dir(store.root))
        if not entry.is_directory and paths.is_index_file_name(entry.name)
    ]


def _index_sizes(store: StoreFiles, options: VerifyOptions) -> tuple[int, int]:
    """Determine slots and entries of the IndexFiles."""
    preset = options.index_slots or INDEX_SLOTS, options.index_entries or INDEX_ENTRIES
    if options.index_slots is not None and options.index_entries is not None:
        return preset
    try:
        files = index_entries(store)
        sizes = Counter(entry.size_bytes for entry in files)
        size = sizes.most_common(1)[0][0] if sizes else 0
        if size == index_file_bytes(*preset) or size < INDEX_HEADER_BYTES + INDEX_SLOT_BYTES + 2 * INDEX_ENTRY_BYTES:
            return preset
        if options.index_slots is not None or options.index_entries is not None:
            slots, entries = preset
            if options.index_slots is not None:
                entries = (size - INDEX_HEADER_BYTES - slots * INDEX_SLOT_BYTES) // INDEX_ENTRY_BYTES
            else:
                slots = (size - INDEX_HEADER_BYTES - entries * INDEX_ENTRY_BYTES) // INDEX_SLOT_BYTES
            return (slots, entries) if slots > 0 and entries > 0 else preset
    except StoreError:
        return preset
    for entry in files:
        if entry.size_bytes == size:
            path = f"{paths.index_dir(store.root)}/{entry.name}"
            with suppress(StoreError):  # an unreadable one is reported by its own task
                slots_and_entries = _sizes_by_last_entry(store.storage, path) or _sizes_by_slots(store.storage, path)
                if slots_and_entries:
                    return slots_and_entries
    return _sizes_by_ratio(size) or preset


def _sizes_by_last_entry(storage: Storage, path: str) -> tuple[int, int] | None:
    """Determine slots and entries by the position of the file's last entry; None where no position fits.

    The header has the number of entries, and the physical offsets of the first and the last entry: only one position
    of the entries, give or take zeros at the end of the last, agrees with both.
    """
    with storage.open(path) as file:
        header = IndexHeader.decode(read_range(file, 0, INDEX_HEADER_BYTES).ljust(INDEX_HEADER_BYTES, b"\0"))
        slot_bytes = file.data_end() - INDEX_HEADER_BYTES - header.index_count * INDEX_ENTRY_BYTES
        if header.index_count < 2:
            return None
        for slots in range(max(1, -(-slot_bytes // INDEX_SLOT_BYTES)), max(1, slot_bytes // INDEX_SLOT_BYTES + 7)):
            entries_at = INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES
            entry_bytes = file.size_bytes - entries_at
            if entry_bytes < 2 * INDEX_ENTRY_BYTES or entry_bytes % INDEX_ENTRY_BYTES:
                continue
            offset_at = entries_at + INDEX_ENTRY_PHYSICAL_OFFSET_AT
            first = int.from_bytes(read_range(file, offset_at + INDEX_ENTRY_BYTES, 8), "big")
            last_at = offset_at + (header.index_count - 1) * INDEX_ENTRY_BYTES
            last = int.from_bytes(read_range(file, last_at, 8), "big")
            if (first, last) == (header.begin_physical_offset, header.end_physical_offset):
                return slots, entry_bytes // INDEX_ENTRY_BYTES
    return None


def _sizes_by_slots(storage: Storage, path: str) -> tuple[int, int] | None:
    """Determine slots and entries of a damaged file by the header's number of used slots."""
    with storage.open(path) as file:
        try:
            index_file = IndexFile.read(file, path)
        except FormatError:
            return None
    return (index_file.slots, index_file.entries) if index_file.slots else None


def _sizes_by_ratio(size_bytes: int) -> tuple[int, int] | None:
    """Guess slots and entries of files without an entry, if they can be in the ratio of the defaults."""
    ratio = INDEX_ENTRIES // INDEX_SLOTS
    slots, rest = divmod(size_bytes - INDEX_HEADER_BYTES, INDEX_SLOT_BYTES + ratio * INDEX_ENTRY_BYTES)
    return None if rest else (slots, slots * ratio)


def is_a_store(store: StoreFiles) -> bool:
    """Return whether any part of a store is under a root. Raises StoreError where that cannot be listed."""
    names = {entry.name for entry in store.storage.entries(store.root)}
    parts = {"commitlog", "consumequeue", "consumequeue_ext", "index", "checkpoint", "abort"}
    return bool(store.dledger_directories or names & parts)


def refuse_inside_store(root: str, option: str, path: str | None) -> None:
    """Refuse an output path inside the store, into which a verification writes nothing. Raises OptionError."""
    if path is not None and canonical_path(path).is_relative_to(canonical_path(root)):
        raise OptionError(f"{option} {path}: is in the store, which is only read")
