"""Classification of queues without files: deleted in order, or lost.

A broker that deletes a topic removes its queues and the consumer offsets of its groups, and keeps its messages in the
log. Made again under its name, the topic has no file until its next message.
"""

import functools
from collections.abc import Collection
from dataclasses import dataclass

from rmq_formats.codecs import paths
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, SYSTEM_TOPICS, lite_parts
from rmq_formats.errors import StoreError
from rmq_formats.kernels.units import PHYSICAL_OFFSET
from rmq_formats.read.log_end import dispatched_end
from rmq_formats.read.queues import ConsumeQueue
from rmq_formats.scan.derived_images import Rows
from rmq_formats.storage.queue_files import topic_queues
from rmq_formats.storage.store_files import StoreFiles
from rmq_offline.verify import finding_kinds
from rmq_offline.verify.findings import Kind


def is_deleted(topic: str, known_topics: Collection[str] | None) -> bool:
    """Return whether the list of topics lacks a topic. No list has light queues, and no clean-up deletes them."""
    return known_topics is not None and topic not in known_topics and not topic.startswith(LIGHT_QUEUE_PREFIX)


@dataclass(frozen=True)
class AbsentQueues:
    """Classifier of queues without files; ``known_topics`` is None without ``config/topics.json``."""

    store: StoreFiles
    known_topics: Collection[str] | None

    def classify(self, topic: str, records: Rows, *, has_consumer_offset: bool, has_bound: bool | None = None) -> Kind:
        """Return the kind of finding about a queue without files, or without units in RocksDB.

        Args:
            records: ascending by physical offset; at least one.
            has_consumer_offset: whether a group has committed an offset above 0 in the queue.
            has_bound: whether RocksDB has the queue's largest offset, which is deleted with the queue; None for files.
                In RocksDB the topic's other queues prove nothing: a broker of 5.3 deletes only queues in use since its
                start (``DefaultMessageStore#deleteTopics``).
        """
        if is_deleted(topic, self.known_topics):
            return finding_kinds.TOPIC_DELETED
        if has_consumer_offset or topic in SYSTEM_TOPICS:
            return finding_kinds.QUEUE_MISSING
        if lite_parts(topic) is not None:
            return finding_kinds.TOPIC_DELETED
        if self.known_topics is None:
            return finding_kinds.QUEUE_MISSING
        last = int(records[-1, PHYSICAL_OFFSET])
        was_deleted = self._is_dispatched and self._begins_after(topic, last) if has_bound is None else not has_bound
        return finding_kinds.QUEUE_ABSENT if was_deleted else finding_kinds.QUEUE_MISSING

    @functools.cached_property
    def _is_dispatched(self) -> bool:
        """True if any queue has a unit: a broker whose queues have none dispatches its whole log when it starts."""
        return dispatched_end(self.store, self.store.segments) > 0

    def _begins_after(self, topic: str, physical_offset: int) -> bool:
        """Return whether all units of the topic are of later records, as after the topic was made again."""
        directory = paths.consumequeue_dir(self.store.root)
        try:
            topics = [entry.name for entry in self.store.storage.entries(directory)]
            is_light = topic.startswith(LIGHT_QUEUE_PREFIX)  # which are deleted one by one
            if not topics or (is_light and not any(name.startswith(LIGHT_QUEUE_PREFIX) for name in topics)):
                return False
            for queue in topic_queues(self.store.storage, directory, topic):
                units = ConsumeQueue(self.store.storage, queue)
                first = units.first_since(0)
                if first is not None and first != units.first_since(physical_offset + 1):
                    return False
        except StoreError:
            return False
        return True
