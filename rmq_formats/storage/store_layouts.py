"""Detection of a store's layouts beside CommitLog, ConsumeQueue and IndexFile, by names and a few small files.

RocketMQ stores the same messages in several layouts. A tool that confuses two layouts loses data, so each tool calls
``detect_layouts`` first, and then the functions of ``layout_refusals``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final, Protocol

from rmq_formats.codecs import paths, rocksdb_config, topics_json
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX
from rmq_formats.errors import DecodeError, StoreError

# Files of each RocksDB, the second one where the first is lost; a topic of that name would be a directory.
_ROCKSDB_SIGNS: Final = ("CURRENT", "MANIFEST-*")
_ROCKSDB_TABLE_END: Final = bytes.fromhex("f7cff485b741e288")  # the magic number of a block-based table
_CLASSIC_DIRECTORIES: Final = frozenset({
    "commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "config", "compaction", "timerlog",
})  # fmt: skip
_TOPIC_OF_5_4: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"


@dataclass(frozen=True, slots=True)
class LayoutRules:
    """Files that prove a layout, and what a tool may do beside them.

    Attributes:
        root_names: names in the store's root; each proves the layout.
        directory: directory below the store's root that proves the layout by any entry.
        config_names: files of ``config``, with or without ``.bak``; each proves the layout.
        queue_signs: patterns of files in ``consumequeue``; each proves that the ConsumeQueue there is a database.
        queue_directory: directory of that database where the broker also writes queue files.
        offline_write_refusal: why offline jobs do not append to a store with this layout; None if they do.
        broker_can_write: ``rmq broker`` appends to a store that offline jobs refuse.
        refers_to_log: files of this layout name offsets of the CommitLog, which may not be replaced.
        has_own_log: this layout has messages in logs beside the CommitLog.
    """

    root_names: tuple[str, ...] = ()
    directory: str | None = None
    config_names: tuple[str, ...] = ()
    queue_signs: tuple[str, ...] = ()
    queue_directory: str | None = None
    offline_write_refusal: str | None = None
    broker_can_write: bool = False
    refers_to_log: bool = False
    has_own_log: bool = False


class StoreLayout(StrEnum):
    """Store layouts beside the classic one, with their rules."""

    rules: LayoutRules

    def __new__(cls, text: str, rules: LayoutRules) -> "StoreLayout":
        """Make a layout whose value is its name for people."""
        layout = str.__new__(cls, text)
        layout._value_ = text
        layout.rules = rules
        return layout

    DLEDGER = "DLedger CommitLog", LayoutRules(offline_write_refusal="a DLedger CommitLog")
    ROCKSDB_QUEUES = (
        "ConsumeQueue in RocksDB",
        LayoutRules(
            queue_signs=_ROCKSDB_SIGNS,
            queue_directory="consumequeue_rocksdb",
            offline_write_refusal="the ConsumeQueue is in RocksDB",
        ),
    )
    LIGHT_QUEUES = (
        "light queues (LMQ)",
        LayoutRules(
            config_names=("lmqConsumerOffset.json",), offline_write_refusal="light queues (LMQ)", broker_can_write=True
        ),
    )
    BATCH_QUEUES = (
        "batch queues (BatchConsumeQueue)",
        LayoutRules(
            directory="batchconsumequeue",
            offline_write_refusal="batch queues (BatchConsumeQueue)",
            broker_can_write=True,
        ),
    )
    ROCKSDB_CONFIG = (
        "config in RocksDB",
        LayoutRules(offline_write_refusal="the broker's topics and consumer offsets are in RocksDB"),
    )
    TIERED = (
        "tiered storage",
        LayoutRules(
            root_names=("tiered_index_file",),
            config_names=("tieredStoreMetadata.json",),
            refers_to_log=True,
            has_own_log=True,
        ),
    )
    COMPACTION = (
        "compacted topics",
        LayoutRules(directory="compaction/compactionLog", refers_to_log=True, has_own_log=True),
    )
    CONTROLLER = (
        "controller mode",
        LayoutRules(root_names=("epochFileCheckpoint", "brokerIdentity"), refers_to_log=True),
    )
    FROM_5_4 = "broker 5.4 or later", LayoutRules(root_names=("rocksdbstore",))


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
class StoreLayouts:
    """Detected layouts of a store.

    Attributes:
        evidence: file or directory that proves each layout.
        has_queue_files: whether ``consumequeue`` has topics' directories; beside a RocksDB, whether one has files.
        unknown_queue_file: the first file among the topics' directories that is of no known layout.
    """

    evidence: Mapping[StoreLayout, str] = field(default_factory=dict)
    batch_topics: frozenset[str] = frozenset()
    has_queue_files: bool = False
    unknown_queue_file: str | None = None

    def __contains__(self, layout: StoreLayout) -> bool:
        return layout in self.evidence

    @property
    def queue_layout(self) -> StoreLayout | None:
        """Layout of the database with the ConsumeQueue; None without a database."""
        return next((layout for layout in self.evidence if layout.rules.queue_signs), None)

    @property
    def queue_database(self) -> str | None:
        """Directory of the database with the ConsumeQueue; None without one."""
        layout = self.queue_layout
        if layout is None:
            return None
        place = self.evidence[layout]
        return place if place.endswith(f"/{layout.rules.queue_directory}") else place.rpartition("/")[0]

    @property
    def only_queue_database(self) -> str | None:
        """Directory of the database with the ConsumeQueue, if there are no ConsumeQueue files beside it."""
        return None if self.has_queue_files else self.queue_database

    @property
    def rebuilds_as_database(self) -> bool:
        """True if a rebuild writes the ConsumeQueue as a RocksDB: the RocksDB replaces the queue files."""
        database, layout = self.only_queue_database, self.queue_layout
        if database is None or layout is not StoreLayout.ROCKSDB_QUEUES:
            return False
        return not database.endswith(f"/{layout.rules.queue_directory}")


def is_own_directory(name: str) -> bool:
    """Return whether a directory of a store's root has, by its name, files of the store."""
    databases = [layout.rules.queue_directory for layout in StoreLayout if layout.rules.queue_directory is not None]
    return name in _CLASSIC_DIRECTORIES or name.startswith((*databases, "dledger-", "rocksdb", "tiered"))


def detect_layouts(tree: Tree, root: str) -> StoreLayouts:
    """Detect the layouts of a store, ignoring files that cannot be listed or read."""
    top = {entry.name: entry.is_directory for entry in _listed(tree, root)}
    evidence: dict[StoreLayout, str] = {}
    for dledger in dledger_directories(tree, root):
        evidence.setdefault(StoreLayout.DLEDGER, dledger)
    queues = _listed(tree, paths.consumequeue_dir(root))
    names = sorted(entry.name for entry in queues if not entry.is_directory)
    for layout in StoreLayout:
        sign = next((name for name in names if _is_sign(name, layout.rules.queue_signs)), None)
        if sign is not None:
            evidence[layout] = f"{paths.consumequeue_dir(root)}/{sign}"
        elif top.get(layout.rules.queue_directory or ""):
            evidence[layout] = f"{root}/{layout.rules.queue_directory}"
    has_database = any(layout.rules.queue_signs for layout in evidence)
    unknown = f"{paths.consumequeue_dir(root)}/{names[0]}" if names and not has_database else None
    topics = [entry.name for entry in queues if entry.is_directory]
    light = next((name for name in topics if name.startswith(LIGHT_QUEUE_PREFIX)), None)
    if light is not None:
        evidence[StoreLayout.LIGHT_QUEUES] = f"{paths.consumequeue_dir(root)}/{light}"
    batch = {entry.name for entry in _listed(tree, paths.batch_consumequeue_dir(root))}
    for layout in StoreLayout:
        directory = layout.rules.directory
        if directory is not None and _listed(tree, f"{root}/{directory}"):
            evidence[layout] = f"{root}/{directory}"
    if top.get("config"):
        batch |= _recognise_config(tree, paths.config_dir(root), evidence)
    for layout in StoreLayout:
        name = next((name for name in layout.rules.root_names if name in top), None)
        if name is not None:
            evidence.setdefault(layout, f"{root}/{name}")
    has_files = bool(topics)
    if has_database:  # directories stay where a broker has written files before
        has_files = any(_has_queue_files(tree, f"{paths.consumequeue_dir(root)}/{topic}") for topic in topics)
    return StoreLayouts(evidence, frozenset(batch), has_files, unknown)


def _has_queue_files(tree: Tree, topic: str) -> bool:
    queues = [entry.name for entry in _listed(tree, topic) if entry.is_directory]
    return any(
        _is_segment(entry) and not entry.is_directory for name in queues for entry in _listed(tree, f"{topic}/{name}")
    )


def dledger_directories(tree: Tree, root: str) -> list[str]:
    """Return the directories of DLedger CommitLogs' entries, by name.

    Without ``storePathDLedgerCommitLog`` there is one, ``dledger-<selfId>/data`` in the store. Each directory ``data``,
    at most two levels down, that has files with a segment's names, is one.
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


def _recognise_config(tree: Tree, config: str, evidence: dict[StoreLayout, str]) -> set[str]:
    """Add the layouts found in ``config``, and return its topics with a BatchConsumeQueue."""
    names = {entry.name: entry.is_directory for entry in _listed(tree, config)}
    for name in rocksdb_config.DATABASES:
        if names.get(name) and is_rocksdb(tree, f"{config}/{name}"):
            evidence.setdefault(StoreLayout.ROCKSDB_CONFIG, f"{config}/{name}")
    for layout in StoreLayout:
        files = [file for name in layout.rules.config_names for file in (name, f"{name}.bak")]
        file = next((file for file in files if file in names), None)
        if file is not None:
            evidence.setdefault(layout, f"{config}/{file}")
    batch: set[str] = set()
    for name in ("topics.json", "topics.json.bak"):
        if names.get(name) is not False:
            continue
        text = _read(tree, f"{config}/{name}").decode("utf-8", "replace")
        if f'"{_TOPIC_OF_5_4}"' in text:
            evidence.setdefault(StoreLayout.FROM_5_4, f"{config}/{name}")
        if "BatchCQ" in text:  # to parse the file of 100,000 topics takes seconds
            batch |= _batch_topics(text)
        if batch:
            evidence.setdefault(StoreLayout.BATCH_QUEUES, f"{config}/{name}")
    return batch


def _batch_topics(text: str) -> set[str]:
    try:
        configs = topics_json.topic_configs(text)
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


def _is_sign(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _has_sign(tree: Tree, directory: str, patterns: Sequence[str]) -> bool:
    return any(_is_sign(entry.name, patterns) and not entry.is_directory for entry in _listed(tree, directory))


def queue_database_layout(tree: Tree, directory: str) -> StoreLayout | None:
    """Return the layout of the database with the ConsumeQueue in a store's directory; None without a database."""
    name = directory.rpartition("/")[2]
    layouts = [layout for layout in StoreLayout if layout.rules.queue_signs]
    in_place = [layout for layout in layouts if name in {"consumequeue", layout.rules.queue_directory}]
    return next((layout for layout in in_place if _has_sign(tree, directory, layout.rules.queue_signs)), None)


def is_rocksdb(tree: Tree, directory: str) -> bool:
    """Return whether a directory contains a RocksDB, and not the queues of a topic."""
    return _has_sign(tree, directory, _ROCKSDB_SIGNS)


def is_rocksdb_table(tail: bytes) -> bool:
    """Return whether a file's last bytes are those of a RocksDB table (``*.sst``)."""
    return tail.endswith(_ROCKSDB_TABLE_END)
