"""Detects a store's layouts beside CommitLog, ConsumeQueue and IndexFile, and refuses operations that would harm them.

RocketMQ stores the same messages in several layouts. A tool that confuses two layouts loses data, so each tool calls
this module first. ``detect_layouts`` reads names and a few small files. Each ``…_refusal`` function returns None, or
one line with the layout that forbids an operation and what to do.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from rmq_formats.codecs import config_json, paths
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.codecs.variants import rocksdb_config
from rmq_formats.errors import DecodeError, StoreError, StoreLayoutError

ROCKSDB_SIGN: Final = "CURRENT"  # a file of each RocksDB; a topic of that name would be a directory
_DATABASE_BESIDE: Final = "consumequeue_rocksdb"  # beside the queue files, where a broker writes both
_ROCKSDB_TABLE_END: Final = bytes.fromhex("f7cff485b741e288")  # the magic number of a block-based table
_CLASSIC_DIRECTORIES: Final = frozenset({
    "commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "compaction", "timerlog",
})  # fmt: skip
_TOPIC_OF_5_4: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"


class Variant(StrEnum):
    """Store layouts beside the classic one."""

    DLEDGER = "DLedger CommitLog"
    LIGHT_QUEUES = "light queues (LMQ)"
    BATCH_QUEUES = "batch queues (BatchConsumeQueue)"
    ROCKSDB_QUEUES = "ConsumeQueue in RocksDB"
    ROCKSDB_CONFIG = "config in RocksDB"
    TIERED = "tiered storage"
    COMPACTION = "compacted topics"
    CONTROLLER = "controller mode"
    FROM_5_4 = "broker 5.4 or later"


class Name(Protocol):
    """One name in a directory."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def is_directory(self) -> bool:
        """True for a directory."""
        ...


class Tree(Protocol):
    """Files that can be listed and read: a ``Storage``, or a broker's own disk."""

    def entries(self, path: str) -> Sequence[Name]:
        """Names in a directory; empty where there is none. Raises StoreError."""
        ...

    def read_bytes(self, path: str) -> bytes:
        """Return a whole small file. Raises StoreError."""
        ...


@dataclass(frozen=True, slots=True)
class StoreVariants:
    """Detected layouts of a store.

    Attributes:
        evidence: file or directory that proves each layout.
        has_queue_files: whether ``consumequeue`` has topics' directories; beside a RocksDB, whether one has files.
        unknown_queue_file: the first file among the topics' directories that is of no known layout; None without.
    """

    evidence: Mapping[Variant, str] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()
    has_queue_files: bool = False
    unknown_queue_file: str | None = None

    def __contains__(self, variant: Variant) -> bool:
        return variant in self.evidence

    @property
    def queue_database(self) -> str | None:
        """Directory of the ConsumeQueue in RocksDB; None where there is none."""
        place = self.evidence.get(Variant.ROCKSDB_QUEUES)
        return place if place is None or place.endswith(f"/{_DATABASE_BESIDE}") else place.rpartition("/")[0]

    @property
    def only_queue_database(self) -> str | None:
        """Directory of the ConsumeQueue in RocksDB, if there are no ConsumeQueue files beside it."""
        return None if self.has_queue_files else self.queue_database

    @property
    def rebuilds_as_database(self) -> bool:
        """True if a rebuild writes the ConsumeQueue as a RocksDB: the RocksDB replaces the queue files."""
        database = self.only_queue_database
        return database is not None and not database.endswith(f"/{_DATABASE_BESIDE}")


def detect_layouts(tree: Tree, root: str) -> StoreVariants:
    """Detect the layouts of a store, ignoring files that cannot be listed or read."""
    top = {entry.name: entry.is_directory for entry in _listed(tree, root)}
    evidence: dict[Variant, str] = {}
    for dledger in dledger_directories(tree, root):
        evidence.setdefault(Variant.DLEDGER, dledger)
    unknown = None
    queues = _listed(tree, paths.consumequeue_dir(root))
    names = {entry.name for entry in queues if not entry.is_directory}
    sign = next((name for name in sorted(names) if name == ROCKSDB_SIGN or name.startswith("MANIFEST-")), None)
    if sign is not None:  # the second one, where the first is lost
        evidence[Variant.ROCKSDB_QUEUES] = f"{paths.consumequeue_dir(root)}/{sign}"
    elif top.get(_DATABASE_BESIDE):
        evidence[Variant.ROCKSDB_QUEUES] = f"{root}/{_DATABASE_BESIDE}"
    elif names:
        unknown = f"{paths.consumequeue_dir(root)}/{min(names)}"
    topics = [entry.name for entry in queues if entry.is_directory]
    light = next((name for name in topics if name.startswith(LIGHT_QUEUE_PREFIX)), None)
    if light is not None:
        evidence[Variant.LIGHT_QUEUES] = f"{paths.consumequeue_dir(root)}/{light}"
    batch = {entry.name for entry in _listed(tree, paths.batch_consumequeue_dir(root))}
    if batch:
        evidence[Variant.BATCH_QUEUES] = paths.batch_consumequeue_dir(root)
    if top.get("config"):
        batch |= _recognise_config(tree, paths.config_dir(root), evidence)
    if _listed(tree, f"{root}/compaction/compactionLog"):
        evidence[Variant.COMPACTION] = f"{root}/compaction/compactionLog"
    for variant, name in (
        (Variant.TIERED, "tiered_index_file"), (Variant.CONTROLLER, "epochFileCheckpoint"),
        (Variant.CONTROLLER, "brokerIdentity"), (Variant.FROM_5_4, "rocksdbstore"),
    ):  # fmt: skip
        if name in top:
            evidence.setdefault(variant, f"{root}/{name}")
    has_files = bool(topics)
    if Variant.ROCKSDB_QUEUES in evidence:  # directories stay where a broker has written files before
        has_files = any(_has_queue_files(tree, f"{paths.consumequeue_dir(root)}/{topic}") for topic in topics)
    return StoreVariants(evidence, frozenset(batch), has_files, unknown)


def _has_queue_files(tree: Tree, topic: str) -> bool:
    queues = [entry.name for entry in _listed(tree, topic) if entry.is_directory]
    return any(
        _is_segment(entry) and not entry.is_directory for name in queues for entry in _listed(tree, f"{topic}/{name}")
    )


def dledger_directories(tree: Tree, root: str) -> list[str]:
    """Return the directories of DLedger CommitLogs' entries, by name: one in a store with a DLedger CommitLog.

    It is ``dledger-<selfId>/data`` in the store, unless ``storePathDLedgerCommitLog`` or somebody has put it elsewhere:
    whatever is called ``data`` there, at most two directories down, and holds files with a segment's names, is one.
    """
    directories = []
    for entry in _listed(tree, root):
        if entry.is_directory and entry.name not in _CLASSIC_DIRECTORIES:
            directories += _dledger_data(tree, f"{root}/{entry.name}", entry.name.startswith("dledger-"))
    return directories


def _dledger_data(tree: Tree, path: str, is_named: bool) -> list[str]:
    """Return the directories ``data`` in a directory or one below it; one that is named as DLedger's may be empty."""
    below = [entry.name for entry in _listed(tree, path) if entry.is_directory]
    if is_named and "data" in below:
        return [f"{path}/data"]
    places = [f"{path}/data"] * ("data" in below) + [f"{path}/{name}/data" for name in below]
    return [data for data in places if any(map(_is_segment, _listed(tree, data)))]


def _is_segment(entry: Name) -> bool:
    return paths.parse_segment_name(entry.name) is not None


def _recognise_config(tree: Tree, config: str, evidence: dict[Variant, str]) -> set[str]:
    """Add the layouts found in ``config``, and return its topics with a BatchConsumeQueue."""
    names = {entry.name: entry.is_directory for entry in _listed(tree, config)}
    for name in rocksdb_config.DATABASES:
        if names.get(name) and is_rocksdb(tree, f"{config}/{name}"):
            evidence.setdefault(Variant.ROCKSDB_CONFIG, f"{config}/{name}")
    if "tieredStoreMetadata.json" in names:
        evidence[Variant.TIERED] = f"{config}/tieredStoreMetadata.json"
    if "lmqConsumerOffset.json" in names:
        evidence.setdefault(Variant.LIGHT_QUEUES, f"{config}/lmqConsumerOffset.json")
    batch: set[str] = set()
    for name in ("topics.json", "topics.json.bak"):
        if names.get(name) is not False:
            continue
        text = _read(tree, f"{config}/{name}").decode("utf-8", "replace")
        if f'"{_TOPIC_OF_5_4}"' in text:
            evidence.setdefault(Variant.FROM_5_4, f"{config}/{name}")
        if "BatchCQ" in text:  # to parse the file of 100,000 topics takes seconds
            batch |= _batch_topics(text)
        if batch:
            evidence.setdefault(Variant.BATCH_QUEUES, f"{config}/{name}")
    return batch


def _batch_topics(text: str) -> set[str]:
    try:
        configs = config_json.topic_configs(text)
    except DecodeError:
        return set()
    return {name for name, item in configs.items() if item.has_batch_queues}


def _listed(tree: Tree, path: str) -> Sequence[Name]:
    try:
        return tree.entries(path)
    except StoreError:
        return ()


def _read(tree: Tree, path: str) -> bytes:
    try:
        return tree.read_bytes(path)
    except (StoreError, OSError):
        return b""


def is_rocksdb(tree: Tree, directory: str) -> bool:
    """Return whether a directory contains a RocksDB, and not the queues of a topic."""
    return any(entry.name == ROCKSDB_SIGN and not entry.is_directory for entry in _listed(tree, directory))


def is_rocksdb_table(tail: bytes) -> bool:
    """Return whether a file's last bytes are those of a RocksDB table (``*.sst``)."""
    return tail.endswith(_ROCKSDB_TABLE_END)


# --- what must not be done ------------------------------------------------------------------


def refuse(reason: str | None) -> None:
    """Raise StoreLayoutError with a reason; None is no reason."""
    if reason is not None:
        raise StoreLayoutError(reason)


def log_read_refusal(dledger: Sequence[str]) -> str | None:
    """Return why the whole CommitLog cannot be read; ``dledger`` comes from ``dledger_directories``."""
    if len(dledger) < 2:
        return None
    return (
        f"{dledger[1]}: a second DLedger CommitLog beside {dledger[0]}; a broker has one, so move the other out of the "
        "store"
    )


def rebuild_refusal(layouts: StoreVariants) -> str | None:
    """Return why a rebuild cannot write the kind of ConsumeQueue of a store."""
    return None if layouts.rebuilds_as_database else queue_rebuild_refusal(layouts)


def queue_rebuild_refusal(layouts: StoreVariants) -> str | None:
    """Return why the ConsumeQueue files cannot be rebuilt from the CommitLog."""
    if Variant.ROCKSDB_QUEUES in layouts:
        reason = "the ConsumeQueue is in RocksDB"
        return (
            f"{layouts.evidence[Variant.ROCKSDB_QUEUES]}: {reason}; rmq rebuild --what index rebuilds the Index alone"
        )
    if layouts.unknown_queue_file is not None:
        return unknown_file_refusal(layouts.unknown_queue_file, "no topic's directory")
    return None


def queue_write_refusal(layouts: StoreVariants) -> str | None:
    """Return why a sink cannot write the files below ``consumequeue`` from units alone."""
    if Variant.BATCH_QUEUES in layouts:
        what = "batch queues (BatchConsumeQueue), which are made of the CommitLog alone"
        return f"{layouts.evidence[Variant.BATCH_QUEUES]}: {what}; use rmq rebuild"
    if Variant.ROCKSDB_CONFIG in layouts:
        what = "config in RocksDB, which alone tells which topics have batch queues (BatchConsumeQueue)"
        return f"{layouts.evidence[Variant.ROCKSDB_CONFIG]}: {what}; use rmq rebuild"
    return queue_rebuild_refusal(layouts)


def batch_topics_refusal(layouts: StoreVariants, wanted_batch_topics: frozenset[str]) -> str | None:
    """Return why the files below ``consumequeue`` do not serve topics with batch queues."""
    if wanted_batch_topics:
        return (
            f"{layouts.evidence[Variant.BATCH_QUEUES]}: topic {min(wanted_batch_topics)} has batch queues "
            "(BatchConsumeQueue); leave accessPath to auto, or scan"
        )
    return None


def queue_files_refusal(layouts: StoreVariants, database: str | None) -> str | None:
    """Return why a store has no ConsumeQueue files for an access path or a tool that needs them.

    Args:
        database: the RocksDB with the store's queues; see ``read.variants.queue_choice``.
    """
    if database is None:
        return None
    return (
        f"{layouts.evidence[Variant.ROCKSDB_QUEUES]}: the ConsumeQueue is in RocksDB; leave accessPath to auto, or scan"
    )


_NOT_WRITTEN: Final = {
    Variant.DLEDGER: "a DLedger CommitLog",
    Variant.ROCKSDB_QUEUES: "the ConsumeQueue is in RocksDB",
    Variant.LIGHT_QUEUES: "light queues (LMQ)",
    Variant.BATCH_QUEUES: "batch queues (BatchConsumeQueue)",
    Variant.ROCKSDB_CONFIG: "the broker's topics and consumer offsets are in RocksDB",
}

_BY_BROKER: Final = (Variant.LIGHT_QUEUES, Variant.BATCH_QUEUES)


def broker_refusal(layouts: StoreVariants, *, light_queues: bool) -> str | None:
    """Return why a broker may not open the store."""
    if Variant.LIGHT_QUEUES in layouts and not light_queues:
        what = "light queues (LMQ), which a broker writes with enableLmq=true and enableMultiDispatch=true"
        return f"{layouts.evidence[Variant.LIGHT_QUEUES]}: {what}"
    return write_refusal(layouts, but=(Variant.LIGHT_QUEUES, Variant.BATCH_QUEUES))


def write_refusal(layouts: StoreVariants, but: Collection[Variant] = ()) -> str | None:
    """Return why neither a job nor a broker may add to the store; layouts in ``but`` are no reason."""
    for variant, reason in _NOT_WRITTEN.items():
        if variant in layouts and variant not in but and variant in _BY_BROKER:
            return (
                f"{layouts.evidence[variant]}: {reason}, to which rmq adds as a broker alone; send its messages to one"
            )
        if variant in layouts and variant not in but:
            return (
                f"{layouts.evidence[variant]}: {reason}, which rmq does not write: nothing may be added to this store; "
                "open it with RocketMQ's own broker"
            )
    return None


def repair_refusal(layouts: StoreVariants) -> str | None:
    """Return why a repair cannot restore a store: it repairs the CommitLog, and rebuilds the other files."""
    return None if layouts.unknown_queue_file is not None else rebuild_refusal(layouts)


def log_replacement_refusal(layouts: StoreVariants) -> str | None:
    """Return why the CommitLog may not be replaced: offsets in other files would lead to other messages."""
    for variant in (Variant.TIERED, Variant.COMPACTION, Variant.CONTROLLER):
        if variant in layouts:
            return (
                f"{layouts.evidence[variant]}: {variant} refers to offsets of the CommitLog that is to be "
                "replaced; write to another directory"
            )
    return write_refusal(layouts)


def truncate_refusal(layouts: StoreVariants) -> str | None:
    """Return why a repair may not truncate the log."""
    if Variant.CONTROLLER not in layouts:
        return None
    return (
        f"{layouts.evidence[Variant.CONTROLLER]}: controller mode, whose epochs refer to the part of the "
        "CommitLog that would be truncated; let the broker recover the store, or restore it from a replica"
    )


def records_refusal(root: str, light_topics: Sequence[str], batch_topics: Sequence[str]) -> str | None:
    """Return why records of the log prevent a ConsumeQueue rebuild, or an append.

    Args:
        light_topics: whose messages were put into light queues.
        batch_topics: that have inner batches, where nothing tells which other topics have batch queues.
    """
    if light_topics:
        what = f"messages of topic {min(light_topics)} were put into light queues (LMQ), which rmq does not append to"
        return f"{paths.commitlog_dir(root)}: {what}"
    if batch_topics:
        what = (
            f"topic {min(batch_topics)} has inner batches, and without config/topics.json nothing tells which other "
            "topics have batch queues (BatchConsumeQueue)"
        )
    else:
        return None
    return f"{paths.commitlog_dir(root)}: {what}; rmq rebuild --what index rebuilds the Index alone"


def dispatch_refusal(commitlog: str, batch_topics: Collection[str]) -> str | None:
    """Return why a broker may not dispatch its log: topics have inner batches, but no config of batch queues."""
    if not batch_topics:
        return None
    return (
        f"{commitlog}: topic {min(batch_topics)} has inner batches, which belong into batch queues "
        "(BatchConsumeQueue), and config/topics.json does not say that it has those; bring that file back"
    )


def unknown_file_refusal(path: str, what: str) -> str:
    """Return the reason to refuse a publication that would replace an unknown file."""
    return f"{path}: {what}, and rmq does not know it; move it out of the store first"
