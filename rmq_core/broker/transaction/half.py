"""Half messages: redirection to the half topic, storage of new copies and of committed messages.

Source: ``TransactionalMessageBridge``, ``EndTransactionProcessor#endMessageTransaction``.
"""

from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables import names
from rmq_core.broker.tables.timer_admission import is_timer
from rmq_core.broker.tables.waiters import REAL_QUEUE_ID, REAL_TOPIC
from rmq_core.broker.transaction.half_record import HalfRecord
from rmq_core.store.results import PutResult
from rmq_formats.codecs.layout import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK, PROPERTY_DELAY, PROPERTY_UNIQ_KEY
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import StoredMessage

HALF_QUEUE: Final = 0  # the only queue of the half topic, and of the op topic
TRANSACTION: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
_TRANSACTION_ID: Final = "__transactionId__"


def is_transaction(properties: dict[str, str]) -> bool:
    """Return whether a message's properties mark a half message."""
    return properties.get(TRANSACTION, "").lower() == "true"


def to_half(topic: str, queue_id: int, properties: dict[str, str]) -> tuple[str, int]:
    """Return the topic and queue of half messages; add the real topic and queue to the properties.

    A delay is removed, as by Java's producer: in the original it would replace the real topic.

    Args:
        topic: real topic.
        queue_id: real queue.
        properties: of the message, with its UNIQ_KEY; modified.
    """
    properties.pop(PROPERTY_DELAY, None)
    properties[_TRANSACTION_ID] = properties[PROPERTY_UNIQ_KEY]
    properties[REAL_TOPIC] = topic
    properties[REAL_QUEUE_ID] = str(queue_id)
    return names.HALF_TOPIC, HALF_QUEUE


def real_queue(properties: dict[str, str]) -> tuple[str, int] | None:
    """Return the real topic and queue of a half message; None without one."""
    topic, queue_id = properties.get(REAL_TOPIC, ""), properties.get(REAL_QUEUE_ID, "")
    return (topic, int(queue_id)) if topic and queue_id.isdecimal() and len(queue_id) < 11 else None


def put_committed(
    state: BrokerState, half: HalfRecord, end_properties: dict[str, str], queue: tuple[str, int]
) -> PutResult:
    """Store a committed message in its real topic, or as a timer message if it has a delivery time.

    The properties are unchanged, as in the original, unless the message waits.

    Args:
        state: of the broker.
        half: the half message.
        end_properties: from ``HalfRecord.end_properties``.
        queue: real topic and queue.

    Raises:
        ResponseError: refused as a timer message.
    """
    encoded = half.properties_bytes
    if is_timer(queue[0], end_properties):
        properties = half.properties
        queue = state.timers.redirect(*queue, properties)
        encoded = encode_properties(properties)
    return state.store.appender.put(
        *queue, half.body, encoded, half.born_timestamp_ms, half.born_host, state.clock_ms(), flag=half.flag,
        sys_flag=half.sys_flag & ~FLAG_TRANSACTION_MASK | FLAG_TRANSACTION_COMMIT,
        reconsume_times=half.reconsume_times, prepared_transaction_offset=half.physical_offset,
    )  # fmt: skip


def put_half_again(
    state: BrokerState, half: StoredMessage, properties: dict[str, str], topic: str = names.HALF_TOPIC
) -> PutResult:
    """Store a half message again, at the end of the queue, in place of the old one.

    The flag remains, unlike in the original. If the properties are too long, the old ones remain.

    Args:
        state: of the broker.
        half: as read.
        properties: of the new copy.
        topic: another one, for a discarded half message.
    """

    def put(encoded: bytes) -> PutResult:
        return state.store.appender.put(
            topic, HALF_QUEUE, half.body, encoded, half.born_timestamp_ms, half.born_host.to_bytes(),
            state.clock_ms(), flag=half.flag, sys_flag=half.sys_flag, reconsume_times=half.reconsume_times,
        )  # fmt: skip

    result = put(encode_properties(properties))
    return put(half.properties_bytes) if result.status.is_hopeless else result
