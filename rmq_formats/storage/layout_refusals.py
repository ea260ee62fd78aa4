"""Refusals of operations that would harm a store's layouts.

Each ``…_refusal`` function returns None, or one line with the layout that forbids an operation and what to do.
"""

from collections.abc import Collection, Iterable, Sequence

from rmq_formats.codecs import paths
from rmq_formats.errors import StoreLayoutError
from rmq_formats.storage.store_layouts import StoreLayout, StoreLayouts, Tree


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


def rebuild_refusal(layouts: StoreLayouts) -> str | None:
    """Return why a rebuild cannot write the kind of ConsumeQueue of a store."""
    return None if layouts.rebuilds_as_database else queue_rebuild_refusal(layouts)


def queue_rebuild_refusal(layouts: StoreLayouts) -> str | None:
    """Return why the ConsumeQueue files cannot be rebuilt from the CommitLog."""
    layout = layouts.queue_layout
    if layout is not None:
        reason = f"{layouts.evidence[layout]}: {layout.rules.offline_write_refusal}"
        return f"{reason}; rmq rebuild --what index rebuilds the Index alone"
    if layouts.unknown_queue_file is not None:
        return unknown_file_refusal(layouts.unknown_queue_file, "no topic's directory")
    return None


def queue_write_refusal(layouts: StoreLayouts) -> str | None:
    """Return why a sink cannot write the files below ``consumequeue`` from units alone."""
    if StoreLayout.BATCH_QUEUES in layouts:
        what = "batch queues (BatchConsumeQueue), which are made of the CommitLog alone"
        return f"{layouts.evidence[StoreLayout.BATCH_QUEUES]}: {what}; use rmq rebuild"
    if StoreLayout.ROCKSDB_CONFIG in layouts:
        what = "config in RocksDB, which alone tells which topics have batch queues (BatchConsumeQueue)"
        return f"{layouts.evidence[StoreLayout.ROCKSDB_CONFIG]}: {what}; use rmq rebuild"
    return queue_rebuild_refusal(layouts)


def batch_topics_refusal(layouts: StoreLayouts, wanted_batch_topics: frozenset[str]) -> str | None:
    """Return why the files below ``consumequeue`` do not serve topics with batch queues."""
    if not wanted_batch_topics:
        return None
    evidence, topic = layouts.evidence[StoreLayout.BATCH_QUEUES], min(wanted_batch_topics)
    return f"{evidence}: topic {topic} has batch queues (BatchConsumeQueue); leave accessPath to auto, or scan"


def queue_files_refusal(layouts: StoreLayouts, database: str | None) -> str | None:
    """Return why no ConsumeQueue files serve an access path or a tool; ``database`` is the one with the queues."""
    layout = layouts.queue_layout
    if database is None or layout is None:
        return None
    return f"{layouts.evidence[layout]}: {layout.rules.offline_write_refusal}; leave accessPath to auto, or scan"


def broker_refusal(layouts: StoreLayouts, *, light_queues: bool) -> str | None:
    """Return why a broker may not open the store."""
    if StoreLayout.LIGHT_QUEUES in layouts and not light_queues:
        what = "light queues (LMQ), which a broker writes with enableLmq=true and enableMultiDispatch=true"
        return f"{layouts.evidence[StoreLayout.LIGHT_QUEUES]}: {what}"
    return _first_write_refusal(layouts, [layout for layout in StoreLayout if not layout.rules.broker_can_write])


def write_refusal(layouts: StoreLayouts) -> str | None:
    """Return why a job may not add to the store."""
    return _first_write_refusal(layouts, StoreLayout)


def _first_write_refusal(layouts: StoreLayouts, considered: Iterable[StoreLayout]) -> str | None:
    for layout in considered:
        reason = layout.rules.offline_write_refusal
        if layout not in layouts or reason is None:
            continue
        rule = ", which rmq does not write. Append to this store with RocketMQ's own broker."
        if layout.rules.broker_can_write:
            rule = ": offline jobs do not append to them. Start rmq broker on this store and send the messages to it."
        return f"{layouts.evidence[layout]}: {reason}{rule}"
    return None


def repair_refusal(layouts: StoreLayouts) -> str | None:
    """Return why a repair cannot restore a store: it repairs the CommitLog, and rebuilds the other files."""
    return None if layouts.unknown_queue_file is not None else rebuild_refusal(layouts)


def log_replacement_refusal(layouts: StoreLayouts) -> str | None:
    """Return why the CommitLog may not be replaced: offsets in other files would lead to other messages."""
    for layout in StoreLayout:
        if layout.rules.refers_to_log and layout in layouts:
            return (
                f"{layouts.evidence[layout]}: {layout} refers to offsets of the CommitLog that is to be "
                "replaced; write to another directory"
            )
    return write_refusal(layouts)


def timer_log_refusal(tree: Tree, root: str) -> str | None:
    """Return why the CommitLog may not be replaced beside a timerlog, whose units name records by their offsets."""
    if not tree.entries(f"{root}/timerlog"):
        return None
    return (
        f"{root}/timerlog: timer messages refer to offsets of the CommitLog that is to be replaced; move timerlog, "
        "timerwheel and config/timercheck out of the store, or write to another directory"
    )


def truncate_refusal(layouts: StoreLayouts) -> str | None:
    """Return why a repair may not truncate the log."""
    if StoreLayout.CONTROLLER not in layouts:
        return None
    return (
        f"{layouts.evidence[StoreLayout.CONTROLLER]}: controller mode, whose epochs refer to the part of the "
        "CommitLog that would be truncated; let the broker recover the store, or restore it from a replica"
    )


def records_refusal(root: str, light_topics: Sequence[str], batch_topics: Sequence[str]) -> str | None:
    """Return why records of the log prevent a ConsumeQueue rebuild, or an append.

    Args:
        light_topics: whose messages were put into light queues.
        batch_topics: that have inner batches, where no config names the topics with batch queues.
    """
    log = paths.commitlog_dir(root)
    if light_topics:
        topic = min(light_topics)
        return f"{log}: messages of topic {topic} were put into light queues (LMQ), which rmq does not append to"
    if not batch_topics:
        return None
    return (
        f"{log}: topic {min(batch_topics)} has inner batches, and without config/topics.json nothing tells which other "
        "topics have batch queues (BatchConsumeQueue); rmq rebuild --what index rebuilds the Index alone"
    )


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
