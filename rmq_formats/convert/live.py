"""Comparison of the messages that consumers get of a new store and of its source."""

from collections import Counter

from rmq_formats.arrow.schema import Mode
from rmq_formats.errors import StoreLayoutError
from rmq_formats.read.query import Include, Queue
from rmq_formats.read.queue_places import QueuePlaces
from rmq_formats.storage.segments import open_storage
from rmq_formats.store import Store


def refuse_other_messages(store: str, new: str) -> None:
    """Refuse a conversion whose queues, made of the log, have other messages than those of the store.

    Example: topic Orders was deleted after 40 messages, made again, and has 25 now. The log alone gives the 40.

    Raises:
        StoreLayoutError: a queue would have more or fewer messages.
        StoreError: a store cannot be read.
    """
    storage, root = open_storage(store)
    if QueuePlaces(storage, root, 0, 0).has_no_queues:
        return
    before, after = _live_messages(store), _live_messages(new)
    for topic, queue_id in sorted(before | after):
        queue = topic, queue_id
        if before[queue] != after[queue]:
            raise StoreLayoutError(
                f"{root}: consumers get {before[queue]:,} messages of {topic}/{queue_id}, and {after[queue]:,} of the "
                "new store, whose queues are made of the log: the topic was deleted and made again, or offsets were "
                "given twice. Convert the store when the former messages have expired"
            )


def _live_messages(store: str) -> Counter[Queue]:
    """Count what consumers get, by queue."""
    counts: Counter[Queue] = Counter()
    for batch in Store(store).arrow(
        ["topic", "queue_id"], include=Include.LIVE, mode=Mode.DROPMALFORMED, verify_crc=False
    ):
        counts.update(zip(batch["topic"].to_pylist(), batch["queue_id"].to_pylist(), strict=True))
    return counts
