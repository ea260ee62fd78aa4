"""Assigns queue offsets in light message queues (LMQ) to messages.

Source: ``LmqDispatch``, ``CommitLog.DefaultAppendMessageCallback#handlePropertiesForLmqMsg``.
"""

import re
from collections.abc import Callable, Collection
from typing import Final

from rmq_core.store.commitlog.record_encoder import QueueParts
from rmq_core.store.consumequeue.table import ConsumeQueueTable
from rmq_formats.codecs.layout import PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_QUEUE_OFFSET, SCHEDULE_TOPIC
from rmq_formats.codecs.paths import is_safe_topic
from rmq_formats.codecs.properties import decode_properties, encode_properties
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, RETRY_PREFIX, SYSTEM_TOPIC_PREFIX

INNER_MULTI_DISPATCH: Final = f"{PROPERTY_INNER_MULTI_DISPATCH}\x01".encode()  # in encoded properties
INNER_MULTI_QUEUE_OFFSET: Final = f"{PROPERTY_INNER_MULTI_QUEUE_OFFSET}\x01".encode()
_SEPARATOR: Final = ","
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
LMQ_QUEUE_ID: Final = 0


def split_lmq_names(text: str) -> list[str]:
    """Split a list of LMQ names as Java does, without empty parts at the end. Source: ``String#split``."""
    return text.rstrip(_SEPARATOR).split(_SEPARATOR) if text.strip(_SEPARATOR).strip() else []


def decode_lmq_names(properties: bytes) -> list[str]:
    """List the LMQs that a message's encoded properties name."""
    return split_lmq_names(decode_properties(properties).get(PROPERTY_INNER_MULTI_DISPATCH, ""))


def is_lmq(name: str) -> bool:
    """Return whether a name has the prefix of LMQs, is safe as a directory name and has no control characters."""
    return name.startswith(LIGHT_QUEUE_PREFIX) and is_safe_topic(name) and _CONTROL.search(name) is None


class LmqOffsets:
    """Next offsets of the LMQs that messages name. Each LMQ has the single queue id 0."""

    def __init__(
        self, open_queue: Callable[[str, int], QueueParts | None], queues: ConsumeQueueTable, max_count: int
    ) -> None:
        """Assign offsets of ``max_count`` LMQs at most; ``open_queue`` (``Appender.queue``) returns their queues."""
        self._open_queue = open_queue
        self._queues = queues
        self._max_count = max_count
        self._names: set[str] | None = None

    @property
    def names(self) -> set[str]:
        """Names of all LMQs with messages. Callers that create or delete an LMQ update this set."""
        if self._names is None:
            self._names = {name for name in self._queues.topics() if name.startswith(LIGHT_QUEUE_PREFIX)}
        return self._names

    def reserve(self, names: Collection[str]) -> bool:
        """Reserve room for the LMQs of a message; False if the store would have too many.

        A delayed message creates its LMQs much later. Without the reservation, many delayed messages would each find
        room for one more LMQ.
        """
        new_names = set(names) - self.names
        if new_names and len(self.names) + len(new_names) > self._max_count:
            return False
        self.names.update(new_names)
        return True

    def assign_offsets(self, topic: str, properties: bytes) -> tuple[bytes, Collection[QueueParts]]:
        """Add a message's LMQ offsets to its properties, in the order of the LMQ names.

        Messages to retry, system and schedule topics get no LMQ offsets; their delivered copies do. Messages of topics
        with batch queues get none, as Java's dispatch of batch queues ignores LMQ offsets. A message with an invalid
        LMQ name gets none either: the offsets that Java writes for such a message stop Java's dispatch.

        Args:
            properties: of the message, encoded; LMQ offsets from the client are ignored.

        Returns:
            The new properties, and the LMQs whose next offset increases by one when the message is stored.
        """
        if topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX)) or topic == SCHEDULE_TOPIC:
            return properties, ()
        properties_by_name = decode_properties(properties)
        is_batch_topic = topic in self._queues.batch_topics
        names = [] if is_batch_topic else split_lmq_names(properties_by_name.get(PROPERTY_INNER_MULTI_DISPATCH, ""))
        queues = [self._open_queue(name, LMQ_QUEUE_ID) if is_lmq(name) else None for name in names]
        opened_queues = [queue for queue in queues if queue is not None]
        if not names or len(opened_queues) < len(names):
            if properties_by_name.pop(PROPERTY_INNER_MULTI_QUEUE_OFFSET, None) is None:
                return properties, ()
            return encode_properties(properties_by_name), ()
        properties_by_name[PROPERTY_INNER_MULTI_QUEUE_OFFSET] = _SEPARATOR.join(
            str(queue.next_offset) for queue in opened_queues
        )
        return encode_properties(properties_by_name), dict.fromkeys(opened_queues)
