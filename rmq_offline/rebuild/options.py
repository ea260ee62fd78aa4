"""Options of a rebuild, with the broker's file sizes: as requested, or as the store's own files have them."""

from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace

from rmq_formats.codecs import paths, topics_json
from rmq_formats.codecs.index import INDEX_TAGS
from rmq_formats.codecs.layout import UNIT_BYTES
from rmq_formats.errors import (
    DecodeError,
    OptionError,
    StoreError,
    StoreLayoutError,
    StoreNotFoundError,
    StoreSizeError,
)
from rmq_formats.read.broker_config import lists_all_topics, stored_topics
from rmq_formats.read.index_tags import find_index_tags
from rmq_formats.storage.queue_files import walk_queues
from rmq_formats.storage.segments import Entry, Segment, open_storage
from rmq_formats.storage.store_files import StoreFiles, open_store
from rmq_formats.storage.store_layouts import StoreLayout
from rmq_offline.tasks.store_sizes import StoreSizes
from rmq_offline.verify.delay_levels import infer_delay_levels
from rmq_offline.verify.findings import FindingList
from rmq_offline.verify.phases.plan import VerifyOptions, resolve_sizes


@dataclass(frozen=True, slots=True)
class RebuildOptions:
    """Options of a rebuild.

    Attributes:
        live_topics: the topics that are rebuilt; None is all.
        index_tags: in words, whether TAGS are indexed and why.
        batch_topics: topics whose queues are BatchConsumeQueues.
        queue_database: write the ConsumeQueue as a RocksDB, even if the store has queue files.
        queues: topics and queue ids of the queue files that are rebuilt; other files stay. None is all.
        from_log_alone: make queues from the log, and ignore the store's queues.
        written_queues: queues with new messages of a write; they may have no files yet, though nobody deleted them.
    """

    consumequeue: bool
    index: bool
    sizes: StoreSizes
    live_topics: frozenset[str] | None = None
    index_tags: str = ""
    batch_topics: frozenset[str] = frozenset()
    queue_database: bool = False
    queues: frozenset[tuple[str, int]] | None = None
    from_log_alone: bool = False
    written_queues: frozenset[tuple[str, int]] = frozenset()

    def rebuilds(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue is rebuilt. A RocksDB is always rebuilt as a whole."""
        return self.queues is None or self.queue_database or (topic, queue_id) in self.queues


def options_from_arguments(
    what: str, sizes: VerifyOptions, store: str, live_topics_of: str | None = None, *, from_log_alone: bool = False
) -> RebuildOptions:
    """Build the options from the arguments of ``jobs/rebuild.py`` and ``rmq rebuild``.

    Args:
        what: ``all``, ``consumequeue`` or ``index``.
        store: path or URI; empty for a new store, whose sizes default to RocketMQ's.
        live_topics_of: path of a ``topics.json``, whose topics alone are rebuilt.

    Raises:
        OptionError: an unknown ``what``, or a ``topics.json`` that cannot be read or names no topic.
        StoreLayoutError: the store's own topics are asked for, and are in RocksDB of v2, which does not have all.
        StoreSizeError: a size that no broker could use.
    """
    sizes.check()
    if what not in {"all", "consumequeue", "index"}:
        raise OptionError(f"--what {what}: give all, consumequeue or index")
    live_topics = None
    if live_topics_of is not None:
        live_topics = _live_topics(live_topics_of, store)
        if not live_topics:
            raise OptionError(f"--topics-json {live_topics_of}: names no topic, so that all queues would be left out")
    resolved, tags_reason = _resolve_sizes(store, sizes) if store else (_default_sizes(sizes), "")
    return RebuildOptions(
        what != "index",
        what != "consumequeue",
        resolved,
        live_topics,
        tags_reason,
        queue_database=sizes.queue_database,
        from_log_alone=from_log_alone,
    )


def _default_sizes(sizes: VerifyOptions) -> StoreSizes:
    names = [item.name for item in fields(StoreSizes)]
    return StoreSizes(**{name: value for name in names if (value := getattr(sizes, name)) is not None})


def _resolve_sizes(store: str, sizes: VerifyOptions) -> tuple[StoreSizes, str]:
    """Resolve the sizes and delay levels as a verification does; also return in words why TAGS are indexed or not."""
    files = open_store(store)
    segments: list[Segment] = []
    with suppress(StoreError):  # the rebuild reports it
        segments = files.segments
    tags_from, reason = sizes.tags_from, next((word for word, at in INDEX_TAGS.items() if at == sizes.tags_from), "")
    if tags_from is None:
        tags_from, reason = find_index_tags(files)
    resolved = resolve_sizes(files, segments, replace(sizes, tags_from=tags_from), FindingList())
    if sizes.delay_levels_ms is None:
        levels = infer_delay_levels(files, segments, resolved.delay_levels_ms)
        resolved = replace(resolved, delay_levels_ms=levels)
    return resolved, reason


def parse_rebuild_options(arguments: Namespace, sizes: VerifyOptions, store: str) -> RebuildOptions:
    """Build the options of a rebuild from the values of ``REBUILD_OPTIONS``. Raises OptionError, StoreError."""
    if arguments.only_live_topics:
        live_topics_of = f"{store}/config/topics.json" if arguments.topics_json is None else arguments.topics_json
    elif arguments.topics_json is None:
        live_topics_of = None
    else:
        raise OptionError(
            f"--topics-json {arguments.topics_json}: only with --only-live-topics, without it all topics are rebuilt"
        )
    return options_from_arguments(arguments.what, sizes, store, live_topics_of, from_log_alone=arguments.from_log_alone)


def _live_topics(live_topics_of: str, store: str) -> frozenset[str]:
    """Return the topics of a ``topics.json``, or of RocksDB if the file would be the store's own."""
    storage, path = open_storage(live_topics_of)
    files = open_store(store)
    is_own = path == f"{paths.config_dir(files.root)}/topics.json"
    if is_own and StoreLayout.ROCKSDB_CONFIG in files.layouts:
        if not lists_all_topics(files):
            raise StoreLayoutError(
                f"{paths.config_dir(files.root)}/rdb: config in RocksDB of v2 has no topic that the broker made by "
                "itself, so that it does not tell which topics live; give --topics-json"
            )
        return frozenset(stored_topics(files) or ())
    try:
        return frozenset(topics_json.topic_names(storage.read_bytes(path).decode("utf-8", "replace")))
    except StoreNotFoundError as error:
        raise OptionError(f"--topics-json {live_topics_of}: no such file") from error
    except DecodeError as error:
        raise OptionError(f"--topics-json {live_topics_of}: {error}") from error


def _usual_size(files: Sequence[Segment | Entry]) -> int:
    sizes = Counter(file.size_bytes for file in files).most_common(1)
    return sizes[0][0] if sizes else 0


def check_existing_sizes(store: StoreFiles, options: RebuildOptions) -> None:
    """Refuse files of another size than the broker's setting, with which it would not start. Raises StoreSizeError."""
    sizes = options.sizes
    for kind, directory, expected, unit_bytes in (
        ("ConsumeQueue", paths.consumequeue_dir(store.root), sizes.consumequeue_file_bytes, UNIT_BYTES),
        (
            "BatchConsumeQueue",
            paths.batch_consumequeue_dir(store.root),
            sizes.batchconsumequeue_file_bytes,
            1,
        ),  # of any multiple
    ):
        first_queue = next(walk_queues(store.storage, directory), None)  # all queues of a broker have one size
        files = () if first_queue is None else first_queue.segments
        size = _usual_size(files)
        if options.consumequeue and size not in {0, expected} and size % unit_bytes == 0:
            raise StoreSizeError(
                f"{files[0].path}: {kind} files here have {size} bytes, not {expected}; "
                f"give --{kind.lower()}-file-bytes {size}, or --out another directory"
            )
    directory = paths.index_dir(store.root)
    size = _usual_size([file for file in store.storage.entries(directory) if paths.is_index_file_name(file.name)])
    if options.index and size not in {0, sizes.index_file_bytes}:
        raise StoreSizeError(
            f"{directory}: IndexFiles here have {size} bytes, not the {sizes.index_file_bytes} of "
            f"--index-slots {sizes.index_slots} and --index-entries {sizes.index_entries}"
        )
