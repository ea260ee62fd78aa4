"""What a repair will do to a store: made from a verification's report and the files as they are, before any change."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from rmq_formats import config_json, paths
from rmq_formats.errors import StoreError
from rmq_formats.findings import Finding, FindingList, Severity
from rmq_formats.offline.repair_filler import Fill, Place, Stretch
from rmq_formats.offline.repair_places import with_places
from rmq_formats.offline.repair_scan import scan_log
from rmq_formats.offline.verify_config import config_texts
from rmq_formats.offline.verify_delays import told_delay_levels
from rmq_formats.offline.verify_plan import StoreLayout, VerifyOptions, resolve_layout
from rmq_formats.offline.verify_report import VerifyReport
from rmq_formats.segment import LocalStorage, Segment, list_segments, opened
from rmq_formats.verify import kinds

MAX_NEW_FILES: Final = 1024  # for missing ones; a file that is named by chance may be exabytes away
MAX_CHECKPOINT_BYTES: Final = 1 << 20  # a larger one is moved aside; of others there is a copy
_DERIVED: Final = ("consumequeue", "consumequeue_ext", "index")
_MOVED: Final = frozenset({
    kinds.SEGMENT_FOREIGN, kinds.STRAY, kinds.QUEUE_FOREIGN, kinds.EXT_FOREIGN,
    # A file of another size would keep rebuild from starting, as it does the broker.
    kinds.QUEUE_FILE_SIZE, kinds.EXT_FILE_SIZE, kinds.INDEX_FILE_SIZE,
})  # fmt: skip
_NOT_REPAIRED: Final = frozenset({
    kinds.LOG_HEADER, kinds.LOG_TIME, kinds.LOG_CLOCK, kinds.QUEUE_OFFSET_REPEATED, kinds.QUEUE_OFFSET_DISPLACED,
    kinds.QUEUE_OFFSET_GAP, kinds.SEGMENT_UNREADABLE, kinds.TOPIC_UNKNOWN, kinds.CONFIG_LOST, kinds.CONFIG_TOPICS,
    kinds.CONSUMER_OFFSET, kinds.DELAY_OFFSET,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What is to be done; all of it can be done twice. Paths are from the store's root.

    Attributes:
        layout: the broker's sizes.
        stretches: of the log, to be copied aside and overwritten.
        sizes: log files to be given another size, or to be made: path and bytes.
        moves: files and directories to be put aside.
        configs: config files to be replaced by their ``.bak``.
        rebuild: make ConsumeQueue and Index anew.
        live_topics: whose queues are made; None is all topics in the log.
        checkpoint: write it anew.
        left: what cannot be repaired.
    """

    layout: StoreLayout
    stretches: tuple[Stretch, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    moves: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    rebuild: bool = False
    live_topics: frozenset[str] | None = None
    checkpoint: bool = False
    left: tuple[Finding, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (
            self.stretches or self.sizes or self.moves or self.configs or self.rebuild or self.checkpoint
        )  # fmt: skip

    def to_json(self) -> str:
        """The plan as JSON."""
        fields = asdict(self)
        fields["stretches"] = [{**asdict(item), "copy": item.copy if item.held else None} for item in self.stretches]
        fields["left"] = [finding.to_dict() for finding in self.left]
        fields["live_topics"] = None if self.live_topics is None else sorted(self.live_topics)
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "RepairPlan":
        """The reverse of ``to_json``."""
        fields: dict[str, Any] = json.loads(text)
        layout = fields["layout"]
        live_topics = fields["live_topics"]
        return cls(
            layout=StoreLayout(**{**layout, "delay_levels_ms": tuple(layout["delay_levels_ms"])}),
            stretches=tuple(_stretch(item) for item in fields["stretches"]),
            sizes=tuple((path, size) for path, size in fields["sizes"]),
            moves=tuple(fields["moves"]),
            configs=tuple(fields["configs"]),
            rebuild=fields["rebuild"],
            live_topics=None if live_topics is None else frozenset(live_topics),
            checkpoint=fields["checkpoint"],
            left=tuple(Finding.from_dict(item) for item in fields["left"]),
        )


def log_file_bytes(root: str, options: VerifyOptions) -> int | None:
    """``mappedFileSizeCommitLog``: as given, else as the files' sizes and the distances between them tell."""
    if options.commitlog_file_bytes is not None:
        return options.commitlog_file_bytes
    segments = list_segments(LocalStorage(), paths.commitlog_dir(root))
    starts = [segment.start_offset for segment in segments]
    distances = Counter(after - before for before, after in pairwise(starts))
    sizes = Counter(segment.size_bytes for segment in segments if segment.size_bytes)
    # A distance that occurs once, between far longer files, tells of a misplaced file and not of a size.
    half = max(sizes, default=0) / 2
    told = {distance for distance, count in distances.items() if count > 1 or distance >= half}
    return max(
        sizes.keys() | told,
        key=lambda size: (
            -_faults(segments, size), len(_on_grid(segments, size)), sizes[size] + distances[size], sizes[size], size,
        ),
        default=None,
    )  # fmt: skip


def _on_grid(segments: Sequence[Segment], file_bytes: int) -> list[Segment]:
    """The files that stand where files of a size do; the others are misplaced."""
    shift = Counter(segment.start_offset % file_bytes for segment in segments).most_common(1)
    return [segment for segment in segments if segment.start_offset % file_bytes == shift[0][0]] if shift else []


def _faults(segments: Sequence[Segment], file_bytes: int) -> int:
    """What must have happened to a log of files of a size: the fewer things, the likelier is the size.

    A size that is too large counts once, however many files have it: a tool may have made them all so.
    """
    own = _on_grid(segments, file_bytes)
    misplaced = len(segments) - len(own)
    gaps = sum(after.start_offset - before.start_offset > file_bytes for before, after in pairwise(own))
    too_long = len({segment.size_bytes for segment in own if segment.size_bytes > file_bytes})
    too_short = sum(0 < segment.size_bytes < file_bytes for segment in own)
    return misplaced + gaps + too_long + too_short


def plan_repair(root: str, options: VerifyOptions, report: VerifyReport) -> RepairPlan:
    """Say what is to be done about a store's findings.

    Args:
        root: of the store, on this machine.
        options: as the verification had them, ``commitlog_file_bytes`` as by ``log_file_bytes``.
        report: of the verification.

    Raises:
        StoreError: something that no repair can work with.
    """
    storage = LocalStorage()
    segments = list_segments(storage, paths.commitlog_dir(root))
    layout = resolve_layout(storage, root, segments, options, FindingList())
    if options.delay_levels_ms is None:
        layout = replace(layout, delay_levels_ms=told_delay_levels(storage, root, segments, layout.delay_levels_ms))
    told = {kind for kind in report.counts if kind.severity is not Severity.INFO}
    plan = RepairPlan(layout, left=tuple(finding for finding in report.findings if finding.kind in _NOT_REPAIRED))
    if any(kind.code.startswith("commitlog") for kind in told - _NOT_REPAIRED):
        plan = _plan_log(root, plan, segments)
    derived = any(kind.code.partition(".")[0] in _DERIVED for kind in told - _NOT_REPAIRED)
    configs = tuple(
        f"config/{Path(finding.path).name}" for finding in report.findings
        if finding.kind == kinds.CONFIG_UNPARSABLE and finding.path
    )  # fmt: skip
    no_files = [name for name in configs if not Path(root, name).is_file()]
    moves = dict.fromkeys([*plan.moves, *_strays(root, report), *no_files])
    # A directory may be moved by way of a link to one that belongs there.
    derived |= any(Path(root, path).is_dir() and path.partition("/")[0] in _DERIVED for path in moves)
    is_rebuilt = derived or bool(plan.stretches or plan.sizes or plan.moves)
    return replace(
        plan,
        moves=tuple(moves),
        configs=configs,
        rebuild=is_rebuilt,
        live_topics=_live_topics(root) if is_rebuilt and kinds.TOPIC_DELETED in report.counts else None,
        checkpoint=is_rebuilt or any(kind.code.startswith("checkpoint") for kind in told),
    )  # fmt: skip


def _plan_log(root: str, plan: RepairPlan, segments: Sequence[Segment]) -> RepairPlan:
    """The part of a plan that is about the CommitLog."""
    file_bytes = plan.layout.commitlog_file_bytes
    own = _on_grid(segments, file_bytes)
    foreign = [segment for segment in segments if segment not in own]
    sizes, surplus, left = [], [], []
    made = set()
    every: list[Segment] = []
    for segment in own:
        gap = (segment.start_offset - every[-1].start_offset) // file_bytes - 1 if every else 0
        if gap > MAX_NEW_FILES:
            detail = f"{gap} files are missing before it"
            left.append(Finding(kinds.SEGMENT_MISSING, detail, segment.path, segment.start_offset))
            gap = 0
        for _ in range(gap):
            start = every[-1].start_offset + file_bytes
            every.append(Segment(f"{paths.commitlog_dir(root)}/{paths.segment_name(start)}", start, 0))
            made.add(start)
            sizes.append((_relative(root, every[-1].path), file_bytes))
        every.append(segment)
        if segment.size_bytes != file_bytes:
            sizes.append((_relative(root, segment.path), file_bytes))
        if segment.size_bytes > file_bytes:
            surplus.append(_surplus(root, segment, file_bytes))
    found = scan_log(LocalStorage(), root, every, file_bytes)
    left += [
        Finding(_KINDS[item.code], f"{item.detail}: {item.size} bytes, too few for a filler", f"{root}/{item.path}",
                item.physical_offset, item.size)
        for item in found.left
    ]  # fmt: skip
    missing = kinds.SEGMENT_MISSING.code
    stretches = [
        replace(item, code=missing, detail="no file holds this range") if item.file_offset in made else item
        for item in found.stretches
    ]
    return replace(
        plan, stretches=(*with_places(root, stretches), *surplus), sizes=tuple(sizes), left=(*plan.left, *left),
        moves=tuple(_relative(root, segment.path) for segment in foreign),
    )  # fmt: skip


def _strays(root: str, report: VerifyReport) -> Iterator[str]:
    """What is in the way, or would be deleted with the derived files that are replaced."""
    for kind in _MOVED:
        paths_of_kind = [finding.path for finding in report.findings if finding.kind == kind and finding.path]
        if report.counts.get(kind, 0) > len(paths_of_kind):
            raise StoreError(f"{root}: more than {len(paths_of_kind)} files are {kind.code}; {kind.remedy}")
        yield from (_relative(root, path) for path in paths_of_kind)
    for name in (*_DERIVED, "config"):
        if Path(root, name).exists() and not Path(root, name).is_dir():
            yield name
    checkpoint = Path(paths.checkpoint_file(root))
    if checkpoint.exists() and (not checkpoint.is_file() or checkpoint.stat().st_size > MAX_CHECKPOINT_BYTES):
        yield checkpoint.name


def _live_topics(root: str) -> frozenset[str] | None:
    """Topics that are known or have queues: a rebuild must not bring back those that were deleted."""
    topics = {path.name for path in Path(paths.consumequeue_dir(root)).glob("*")}
    text = config_texts(LocalStorage(), paths.config_dir(root), FindingList()).get("topics.json")
    return frozenset(topics | set(config_json.topic_names(text) if text else ()))


def _surplus(root: str, segment: Segment, file_bytes: int) -> Stretch:
    size = segment.size_bytes - file_bytes
    with opened(LocalStorage(), segment.path) as file:
        held = max(0, file.data_end() - file_bytes)  # of zeros no copy is made, be they a terabyte
    return Stretch(
        _relative(root, segment.path), segment.start_offset, segment.start_offset + file_bytes, size, held,
        kinds.SEGMENT_SIZE.code, "bytes behind the size that a file has", Fill.NONE,
    )  # fmt: skip


def _stretch(fields: dict[str, Any]) -> Stretch:
    own = {name: value for name, value in fields.items() if name != "copy"}
    places = tuple(Place(**place) for place in fields["places"])
    return Stretch(**{**own, "fill": Fill(fields["fill"]), "places": places})


def _relative(root: str, path: str) -> str:
    return path[len(root.rstrip("/")) + 1 :]


_KINDS: Final = {kind.code: kind for kind in kinds.ALL}
