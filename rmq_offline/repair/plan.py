"""Plans a repair, from a verification's report and the store's files, before anything is changed."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec

from rmq_formats.codecs import paths
from rmq_formats.errors import FormatError, StoreError, StoreLayoutError, StoreSizeError
from rmq_formats.read.broker_config import stored_topics
from rmq_formats.read.log_end import cut_segments, find_leftovers
from rmq_formats.read.queue_databases import open_queues
from rmq_formats.storage.queue_files import named_topics, walk_queues
from rmq_formats.storage.segments import LocalStorage, Segment, list_segments
from rmq_formats.storage.store_files import StoreFiles, configured_log_directories
from rmq_offline.repair.dledger_entries import EntryRepair, plan_entries, relative_path
from rmq_offline.repair.filler import Fill, LogRange
from rmq_offline.repair.lost_units import is_index_touched, lost_ranges, touched_queues, with_lost_messages
from rmq_offline.repair.scan import scan_log
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify import finding_kinds, layout_finding_kinds
from rmq_offline.verify.delay_levels import infer_delay_levels
from rmq_offline.verify.findings import Finding, FindingList, Severity
from rmq_offline.verify.phases.plan import VerifyOptions, resolve_sizes
from rmq_offline.verify.report import VerifyReport

MAX_NEW_FILES: Final = 1024  # limit of missing files to create; a file with a damaged name may be exabytes away
MAX_CHECKPOINT_BYTES: Final = 1 << 20  # a larger checkpoint is moved aside; others are copied
_NO_FILLERS: Final = (
    "of which the members of the group have the same bytes, so that no filler may replace it: restore it from another "
    "member, or take out what is sound with rmq convert --to classic"
)
_DERIVED_QUEUES: Final = ("consumequeue", "consumequeue_ext", "batchconsumequeue")
_DERIVED: Final = (*_DERIVED_QUEUES, "index")
_MOVED: Final = frozenset({
    finding_kinds.SEGMENT_FOREIGN, finding_kinds.STRAY, finding_kinds.QUEUE_FOREIGN, finding_kinds.EXT_FOREIGN,
    finding_kinds.EXT_FILE_SIZE, finding_kinds.INDEX_FILE_SIZE,
})  # fmt: skip
_ADDED: Final = frozenset({"queues", "index", "accept"})  # fields that manifests of rmq 0.1.0 do not have
_KEYS: Final = {"log_ranges": "stretches", "existing_bytes": "held"}  # keys in plan files, which all versions read


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Planned changes of a repair, which may be applied twice. Paths are relative to the store's root.

    Attributes:
        log_ranges: ranges of the log that are quarantined and overwritten.
        sizes: log files to be given another size, or to be made: path and bytes.
        moves: files and directories that are quarantined.
        configs: config files to be replaced by their ``.bak``.
        queues: topics and queue ids of the queues that are rebuilt; None is all.
        live_topics: if all queues are rebuilt, their topics; None is all topics in the log.
        accept: queues whose messages or ends may be lost, by the operator's consent.
    """

    store_sizes: StoreSizes
    log_ranges: tuple[LogRange, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    moves: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    rebuild: bool = False
    queues: tuple[tuple[str, int], ...] | None = None
    index: bool = True
    accept: tuple[str, ...] = ()
    live_topics: frozenset[str] | None = None
    checkpoint: bool = False
    entries: EntryRepair | None = None
    left: tuple[Finding, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if the plan has no steps."""
        changes = self.log_ranges, self.sizes, self.moves, self.configs, self.rebuild, self.checkpoint, self.entries
        return not any(changes)

    def to_json(self) -> str:
        """Encode the plan as JSON."""
        document = {_KEYS.get(name, name): value for name, value in asdict(self).items()}
        document["stretches"] = [_encode_log_range(log_range) for log_range in self.log_ranges]
        document["left"] = [finding.to_dict() for finding in self.left]
        document["live_topics"] = None if self.live_topics is None else sorted(self.live_topics)
        return json.dumps(document, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "RepairPlan":
        """Decode the plan from ``to_json``."""
        document: dict[str, Any] = json.loads(text)
        keys = {field.name: _KEYS.get(field.name, field.name) for field in fields(cls)}
        values = {name: document[key] for name, key in keys.items() if key in document or key not in _ADDED}
        values["log_ranges"] = [{**item, "existing_bytes": item["held"]} for item in values["log_ranges"]]
        unrepaired = tuple(finding_kinds.restore_finding(item) for item in values.pop("left"))
        return replace(msgspec.convert(values, cls), left=unrepaired)


def _encode_log_range(log_range: LogRange) -> dict[str, Any]:
    document = {_KEYS.get(name, name): value for name, value in asdict(log_range).items()}
    return {**document, "copy": log_range.copy if log_range.existing_bytes else None}


def infer_log_file_bytes(root: str, options: VerifyOptions) -> int | None:
    """Determine ``mappedFileSizeCommitLog``: from the options, else from the files' sizes and distances.

    Raises StoreSizeError for an option that contradicts the files.
    """
    segments = list_segments(LocalStorage(), paths.commitlog_dir(root))
    file_bytes = options.commitlog_file_bytes
    if file_bytes is not None:
        _refuse_other_size(segments, file_bytes)
        return file_bytes
    starts = [segment.start_offset for segment in segments]
    distances = Counter(after - before for before, after in pairwise(starts))
    sizes = Counter(segment.size_bytes for segment in segments if segment.size_bytes)
    # A distance that occurs once, between far longer files, shows a misplaced file, not a file size.
    half = max(sizes, default=0) / 2
    likely_sizes = {distance for distance, count in distances.items() if count > 1 or distance >= half}
    return max(
        sizes.keys() | likely_sizes,
        key=lambda size: (
            -_faults(segments, size),
            len(_on_grid(segments, size)),
            sizes[size] + distances[size],
            sizes[size],
            size,
        ),
        default=None,
    )


def _refuse_other_size(segments: Sequence[Segment], file_bytes: int) -> None:
    """Refuse another size than that of files which follow each other: they would be moved away, cut or filled up."""
    distances = {after.start_offset - before.start_offset for before, after in pairwise(segments)}
    sizes = distances & {segment.size_bytes for segment in segments}
    if len(distances) == 1 and sizes and file_bytes not in sizes:
        size = sizes.pop()
        raise StoreSizeError(
            f"--commitlog-file-bytes {file_bytes}: the {len(segments)} files of the CommitLog follow each other at "
            f"{size} bytes. Give {size}; a broker of this store needs mappedFileSizeCommitLog={size}"
        )


def _refuse_other_queue_size(store: StoreFiles, option: str, file_bytes: int | None, directory: str) -> None:
    """Refuse another size than that of most queue files. Raises StoreSizeError.

    The files would be moved away, and so be no evidence of their queues.
    """
    files = Counter(segment.size_bytes for queue in walk_queues(store.storage, directory) for segment in queue.segments)
    if file_bytes is None or not files:
        return
    size, count = files.most_common(1)[0]
    if size not in {0, file_bytes} and count > max(1, files.total() // 2):
        raise StoreSizeError(
            f"--{option} {file_bytes}: {count} of {files.total()} files in {directory} have {size} bytes. Give {size}; "
            "a broker of this store needs this size in its settings"
        )


def _on_grid(segments: Sequence[Segment], file_bytes: int) -> list[Segment]:
    """Select the files that begin at multiples of the file size; the others are misplaced."""
    shift = Counter(segment.start_offset % file_bytes for segment in segments).most_common(1)
    return [segment for segment in segments if segment.start_offset % file_bytes == shift[0][0]] if shift else []


def _faults(segments: Sequence[Segment], file_bytes: int) -> int:
    """Count the faults of a log on the assumption of a file size; the likeliest size has the fewest faults.

    Larger files count as one fault together: a tool may have resized them all.
    """
    on_grid = _on_grid(segments, file_bytes)
    misplaced = len(segments) - len(on_grid)
    gaps = sum(after.start_offset - before.start_offset > file_bytes for before, after in pairwise(on_grid))
    too_long = len({segment.size_bytes for segment in on_grid if segment.size_bytes > file_bytes})
    too_short = sum(0 < segment.size_bytes < file_bytes for segment in on_grid)
    return misplaced + gaps + too_long + too_short


def plan_repair(store: StoreFiles, options: VerifyOptions, report: VerifyReport) -> RepairPlan:
    """Plan the repair of a store's findings; the options have ``infer_log_file_bytes``.

    Raises StoreError for a fault that no repair can remove.
    """
    root = store.root
    has_entries = bool(store.dledger_directories)
    if has_entries or configured_log_directories(root):
        segments = store.segments
    else:
        segments = list_segments(store.storage, paths.commitlog_dir(root))
    segments = cut_segments(segments, find_leftovers(store, segments) if segments else None)
    sizes = resolve_sizes(store, segments, options, FindingList())
    for option, file_bytes, directory in (
        ("consumequeue-file-bytes", options.consumequeue_file_bytes, paths.consumequeue_dir(root)),
        ("batchconsumequeue-file-bytes", options.batchconsumequeue_file_bytes, paths.batch_consumequeue_dir(root)),
    ):
        _refuse_other_queue_size(store, option, file_bytes, directory)
    if options.delay_levels_ms is None:
        sizes = replace(sizes, delay_levels_ms=infer_delay_levels(store, segments, sizes.delay_levels_ms))
    kinds = {kind for kind in report.counts if kind.severity is not Severity.INFO}
    repaired = {kind for kind in kinds if kind.is_repaired}
    plan = RepairPlan(sizes, left=tuple(finding for finding in report.findings if not finding.kind.is_repaired))
    if has_entries:
        plan = _plan_entries(root, plan, segments, report)
    elif any(kind.code.startswith("commitlog") for kind in repaired):
        _refuse_log_elsewhere(root)
        plan = _plan_log(store, plan, segments)
    configs = tuple(
        f"config/{Path(finding.path).name}"
        for finding in report.findings
        if finding.kind == finding_kinds.CONFIG_UNPARSABLE and finding.path
    )
    no_files = [name for name in configs if not Path(root, name).is_file()]
    moves = dict.fromkeys([*plan.moves, *_strays(root, report), *no_files])
    ranges = lost_ranges(plan.log_ranges)
    queues = _faulty_queues(root, report, tuple(moves))
    if queues is not None:
        queues |= touched_queues(root, ranges)
        if queues and store.layouts.rebuilds_as_database:
            queues = None
    makes_index = any(kind.code.partition(".")[0] == "index" for kind in repaired)
    makes_index |= any(_is_whole_tree(root, path, "index") for path in moves)
    makes_index = makes_index or is_index_touched(root, ranges, sizes.index_slots)
    is_rebuilt = queues is None or bool(queues) or makes_index
    is_log_changed = bool(ranges or plan.sizes or (plan.moves and not has_entries))
    return replace(
        plan,
        left=(*plan.left, *_odd_properties(report, ranges)),
        moves=tuple(moves),
        configs=configs,
        rebuild=is_rebuilt,
        queues=None if queues is None else tuple(sorted(queues)),
        index=makes_index,
        live_topics=_live_topics(store) if queues is None and finding_kinds.TOPIC_DELETED in report.counts else None,
        checkpoint=is_rebuilt or is_log_changed or any(kind.code.startswith("checkpoint") for kind in kinds),
    )


def _odd_properties(report: VerifyReport, ranges: Sequence[tuple[int, int]]) -> Iterator[Finding]:
    """Yield the findings about properties of records that stay: an entry without a separator may be what was sent."""
    for finding in report.findings:
        at = -1 if finding.physical_offset is None else finding.physical_offset
        if finding.kind == finding_kinds.LOG_PROPERTIES and not any(begin <= at < end for begin, end in ranges):
            yield finding


def _faulty_queues(root: str, report: VerifyReport, moves: Sequence[str]) -> set[tuple[str, int]] | None:
    """Return the queues that are to be rebuilt; None stands for all queues."""
    faults = [
        kind
        for kind in report.counts
        if kind.severity is not Severity.INFO and kind.is_repaired and kind.code.partition(".")[0] in _DERIVED_QUEUES
    ]
    if any(kind not in report.faulty_queues for kind in faults):
        return None
    if any(_is_whole_tree(root, path, name) for path in moves for name in _DERIVED_QUEUES):
        return None
    return {queue for kind in faults for queue in report.faulty_queues[kind]}


def _is_whole_tree(root: str, path: str, name: str) -> bool:
    """Return whether a path that is moved away is a tree of derived files, or a directory in one.

    Such a directory may be reached by a link to one that belongs there.
    """
    return path == name or (path.startswith(f"{name}/") and Path(root, path).is_dir())


def _plan_entries(root: str, plan: RepairPlan, segments: Sequence[Segment], report: VerifyReport) -> RepairPlan:
    """Plan the changes of a DLedger CommitLog, and refuse those of the older half before it."""
    kinds = {kind for kind in report.counts if kind.severity is not Severity.INFO and kind.is_repaired}
    log_kinds = {kind for kind in kinds if kind.code.partition(".")[0] in {"commitlog", "dledger"}}
    for finding in report.findings:
        is_older = (finding.path or "").startswith(f"{paths.commitlog_dir(root)}/")
        if finding.kind in log_kinds and (is_older or finding.kind == finding_kinds.LOG_TOPIC):
            place = f"{finding.path}: {finding.detail}"
            raise StoreLayoutError(f"{place}, beside a DLedger CommitLog, {_NO_FILLERS}")
    if not log_kinds:
        return plan
    entry_repair, log_ranges, sizes = plan_entries(
        root,
        [segment for segment in segments if segment.head_bytes],
        plan.store_sizes.commitlog_file_bytes,
        makes_index=bool(log_kinds & {layout_finding_kinds.ENTRY_UNIT, layout_finding_kinds.ENTRY_UNIT_SURPLUS}),
        writes_checkpoint=layout_finding_kinds.DLEDGER_CHECKPOINT in log_kinds,
    )
    unrepaired = plan.left
    if entry_repair.checkpoint is None:
        unrepaired += tuple(
            finding for finding in report.findings if finding.kind == layout_finding_kinds.DLEDGER_CHECKPOINT
        )
    moves = [
        f"{entry_repair.directory}/{name}"
        for name, is_made in (("index", entry_repair.makes_index), ("checkpoint", entry_repair.checkpoint is not None))
        if is_made and Path(root, entry_repair.directory, name).exists()
    ]
    entries = entry_repair if entry_repair.makes_index or entry_repair.checkpoint is not None else None
    return replace(plan, log_ranges=log_ranges, sizes=sizes, moves=tuple(moves), left=unrepaired, entries=entries)


def _plan_log(store: StoreFiles, plan: RepairPlan, segments: Sequence[Segment]) -> RepairPlan:
    root = store.root
    file_bytes = plan.store_sizes.commitlog_file_bytes
    on_grid = _on_grid(segments, file_bytes)
    foreign = [segment for segment in segments if segment not in on_grid]
    sizes, surplus, unrepaired = [], [], []
    new_starts = set()
    every: list[Segment] = []
    for segment in on_grid:
        gap = (segment.start_offset - every[-1].start_offset) // file_bytes - 1 if every else 0
        if gap > MAX_NEW_FILES:
            detail = f"{gap} files are missing before it"
            unrepaired.append(Finding(finding_kinds.SEGMENT_MISSING, detail, segment.path, segment.start_offset))
            gap = 0
        for _ in range(gap):
            start = every[-1].start_offset + file_bytes
            every.append(Segment(f"{paths.commitlog_dir(root)}/{paths.segment_name(start)}", start, 0))
            new_starts.add(start)
            sizes.append((relative_path(root, every[-1].path), file_bytes))
        every.append(segment)
        if segment.size_bytes != file_bytes:
            sizes.append((relative_path(root, segment.path), file_bytes))
        if segment.size_bytes > file_bytes:
            surplus.append(_surplus(root, segment, file_bytes))
    scan = scan_log(store, every, file_bytes)
    for item in scan.unfillable:
        detail = f"{item.detail}: {item.size} bytes, too few for a filler"
        unrepaired.append(Finding(_KINDS[item.code], detail, f"{root}/{item.path}", item.physical_offset, item.size))
    missing = finding_kinds.SEGMENT_MISSING.code
    log_ranges = [
        replace(item, code=missing, detail="no file holds this range") if item.file_offset in new_starts else item
        for item in scan.log_ranges
    ]
    return replace(
        plan,
        log_ranges=(*with_lost_messages(root, log_ranges), *surplus),
        sizes=tuple(sizes),
        left=(*plan.left, *unrepaired),
        moves=tuple(relative_path(root, segment.path) for segment in foreign),
    )


def _strays(root: str, report: VerifyReport) -> Iterator[str]:
    """List the files in the way, and those that would be deleted with the replaced derived files."""
    for kind in _MOVED:
        paths_of_kind = [finding.path for finding in report.findings if finding.kind == kind and finding.path]
        if report.counts.get(kind, 0) > len(paths_of_kind):
            raise StoreError(f"{root}: more than {len(paths_of_kind)} files are {kind.code}; {kind.remedy}")
        yield from dict.fromkeys(_first_link(root, relative_path(root, path)) for path in paths_of_kind)
    for finding in report.findings:  # a regular file of another size stays, as a witness of its queue
        if finding.kind == finding_kinds.QUEUE_FILE_SIZE and finding.path and not Path(finding.path).is_file():
            yield _first_link(root, relative_path(root, finding.path))
    for name in (*_DERIVED, "config"):
        if Path(root, name).exists() and not Path(root, name).is_dir():
            yield name
    checkpoint = Path(paths.checkpoint_file(root))
    if checkpoint.exists() and (not checkpoint.is_file() or checkpoint.stat().st_size > MAX_CHECKPOINT_BYTES):
        yield checkpoint.name


def _first_link(root: str, path: str) -> str:
    """Return the first link on a path below a directory of the store; without a link, the path."""
    names = path.split("/")
    ways = ("/".join(names[:count]) for count in range(2, len(names) + 1))
    return next((way for way in ways if Path(root, way).is_symlink()), path)


def _refuse_log_elsewhere(root: str) -> None:
    """Refuse to change a log outside of the store: plan and quarantine name paths below its root."""
    directories = configured_log_directories(root)
    if directories:
        raise StoreLayoutError(
            f"{directories[0]}: the log is damaged, and is not in {root}. "
            f"Move its files to {paths.commitlog_dir(root)} for the repair."
        )


def _live_topics(store: StoreFiles) -> frozenset[str] | None:
    """List the topics of the config or of queues: a rebuild must not restore deleted topics."""
    topics = frozenset(named_topics(store))
    database = store.layouts.queue_database
    if database is not None:
        with suppress(FormatError), open_queues(store.storage, database) as queues:
            topics |= {topic for topic, _ in queues.queues()}
    with suppress(StoreError):  # a file that does not parse: the verification has reported it
        topics |= frozenset(stored_topics(store) or ())
    return topics


def _surplus(root: str, segment: Segment, file_bytes: int) -> LogRange:
    path, start, size = relative_path(root, segment.path), segment.start_offset, segment.size_bytes - file_bytes
    code, detail = finding_kinds.SEGMENT_SIZE.code, "bytes beyond the size of the log's files"
    with LocalStorage().open(segment.path) as file:
        existing_bytes = max(0, file.data_end() - file_bytes)  # zeros are not copied, be they a terabyte
    return LogRange(path, start, start + file_bytes, size, existing_bytes, code, detail, Fill.NONE)


_KINDS: Final = {kind.code: kind for kind in finding_kinds.ALL}
